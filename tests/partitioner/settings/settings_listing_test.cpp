#include "partitioner/settings/settings_listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partitioner/search/least_time.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

/// A space of one graph, and a search in it: a best plan of 10 s; one of 12 s that is settled; a setting without plan
/// that may have a better one; one that needs too much memory; and one that is not possible.
struct Told {
  SettingSpace space;
  SettingsSearch search;

  Told() {
    Graph graph = testing::chain_graph({1}, {2});
    graph.microbatch_samples = 2;
    space.graphs = {{graph, 4, "measured with microbatches of 2 samples"}};
    add("1f1b", {}, 12, 10);
    add("gpipe", {}, 10, 9);
    add("zb-h1", {}, {}, 8);
    add("1f1b", 32_B, {}, 11);
    search.trials.back().need = 2000_B;
    add("gpipe", 32_B, {}, kForever.value);
    search.best = 1;
    search.lower_bound = 8_s;
  }
  void add(const std::string& schedule, std::optional<Bytes> bucket, std::optional<double> step, double bound) {
    SettingTrial trial;
    trial.settings.plan.schedule = schedule;
    trial.settings.plan.microbatches = 4;
    trial.settings.plan.gradient_bucket_bytes = bucket;
    trial.lower_bound = Seconds(bound);
    if (step) {
      RankedPlan ranked;
      ranked.plan.model = "m";
      ranked.plan.schedule = schedule;
      ranked.plan.microbatches = 4;
      ranked.plan.stages = {{{"l0"}, {0, 1}}};
      ranked.prediction.iteration = Seconds(*step);
      RankMemory memory;
      memory.total = 1000_B;
      ranked.prediction.timeline.memory = {memory};
      trial.plan = ranked;
    }
    search.trials.push_back(trial);
  }
};

TEST(SettingsListing, OrdersSettingsAndSaysHowEachFared) {
  const Told told;
  const format::PlanList list = settings_list(told.search, told.space, testing::flat_topology(2));
  std::vector<std::string> outcomes;
  for (const format::ListedSetting& setting : list.settings) outcomes.push_back(setting.outcome);
  EXPECT_THAT(outcomes, ElementsAre("best", "not better", "open", "does not fit", "no plan"));
  EXPECT_EQ(list.list, "settings");
  EXPECT_EQ(list.schedule, "gpipe");
  EXPECT_EQ(list.lower_bound, 8_s);
  EXPECT_EQ(list.considered, 2);
  EXPECT_EQ(list.plans.size(), 1U);
  EXPECT_EQ(list.settings[3].memory, 2000_B);
  EXPECT_FALSE(list.settings[4].lower_bound);
  const std::string text = settings_list_text(list, 2, "~", 100);
  EXPECT_THAT(text, AllOf(HasSubstr("4 x 2 gpipe       none ~10.0 s     ~9.00 s ~1000 B best\n"),
                          HasSubstr("4 x 2 1f1b        none ~12.0 s     ~10.0 s ~1000 B not better\n"),
                          HasSubstr("and 3 more; --all shows them\n"), Not(HasSubstr("recompute")),
                          HasSubstr("1 of 5 settings is open: time was up before it was clear that no plan with it is "
                                    "better\n")));
  EXPECT_THAT(settings_list_text(list, 0, "", 100),
              AllOf(HasSubstr("32 B             11.0 s 1.95 KiB does not fit\n"), Not(HasSubstr("more;"))));
  EXPECT_EQ(settings_note(told.search, told.space),
            "best of 5 settings, 1 of them open: 4 microbatches of 2 samples, gpipe");
}

/// Bounds are those of the graph's own times.
TEST(SettingsListing, HasNoBoundsWhereDevicesDiffer) {
  const Told told;
  Topology topology = testing::flat_topology(2);
  topology.others.push_back({});
  const format::PlanList list = settings_list(told.search, told.space, topology);
  EXPECT_FALSE(list.lower_bound);
  for (const format::ListedSetting& setting : list.settings) EXPECT_FALSE(setting.lower_bound);
}

}  // namespace
}  // namespace stagecraft::partitioner
