#include "partitioner/choices/listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/strategies/auto.h"
#include "tests/partitioner/two_stages.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Plans of 1, 2, ... `count` replicas of one stage, whose steps are 60 s over the replicas.
std::vector<RankedPlan> replicated(int count) {
  std::vector<RankedPlan> out;
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  for (int replicas = count; replicas >= 1; --replicas) {
    RankedPlan ranked;
    ranked.origin = "profile";
    ranked.plan = make_plan(graph, testing::flat_topology(count), {{0, 0}, {replicas}}, {});
    ranked.prediction.iteration = Seconds(60.0 / replicas);
    ranked.prediction.timeline.memory = {{0, Bytes(1024), {}}};
    out.push_back(ranked);
  }
  return out;
}

format::PlanList list_of(const std::vector<RankedPlan>& plans, const ListRequest& request) {
  Gathered gathered;
  gathered.plans = plans;
  return plan_list(plans, gathered, request);
}

TEST(Chosen, TakesTheFirstOfThoseThatMeetTheGoal) {
  std::vector<RankedPlan> plans = replicated(4);
  EXPECT_EQ(chosen(plans, {.most = 3}).size(), 3U);
  EXPECT_EQ(chosen(plans, {}).size(), 4U);
  for (RankedPlan& ranked : plans) ranked.prediction.samples_per_s = 60 / ranked.prediction.iteration.value;
  // 4, 3, 2, 1 samples/s; devices times step is 60 for each.
  EXPECT_EQ(chosen(plans, {.goal = {Objective::Time, 2.5}}).size(), 2U);
  EXPECT_TRUE(chosen(plans, {.goal = {Objective::Time, 5}}).empty());
  EXPECT_EQ(chosen(plans, {.most = 1, .goal = {Objective::Cost, {}}})[0].plan.stages[0].devices.size(), 4U);
  EXPECT_EQ(chosen(plans, {.front = true}).size(), 4U);
}

TEST(PlanList, HasThePartsOfEachStepAndTheMemoryLimit) {
  RankedPlan ranked = replicated(2)[0];
  StagePrediction stage;
  stage.replicas = 2;
  stage.compute = 20_s;
  stage.reduce = 4_s;
  stage.exposed_transfer = 1_s;
  stage.bubble = 5_s;
  ranked.prediction.stages = {stage};
  const format::PlanList list = list_of({ranked}, {.memory_limit = 100_B});
  EXPECT_EQ(list.memory_limit, 100_B);
  EXPECT_EQ(list.plans[0].parts, (StepParts{.compute = 20_s, .reduce = 4_s, .exposed_transfer = 1_s, .bubble = 5_s}));
  EXPECT_FALSE(list.plans[0].explained);
  EXPECT_THAT(list_text(list, 10, "~", 80),
              AllOf(HasSubstr("    idle peak memory"), HasSubstr(" ~20.0 % ")));  // 6 of 30 s
}

TEST(ListText, ShowsTenPlansAndDevicesAsRanges) {
  const format::PlanList list = list_of(replicated(12), {});
  EXPECT_THAT(list_text(list, 10, "", 80), AllOf(HasSubstr("0-11"), HasSubstr("0-2 "), Not(HasSubstr("0,1 ")),
                                                 HasSubstr("and 2 more; --all shows them\n")));
  EXPECT_THAT(list_text(list, 0, "", 80), AllOf(HasSubstr("0,1 "), Not(HasSubstr("more"))));
  EXPECT_THAT(list_text(list, 10, "~", 80), AllOf(HasSubstr("~5.00 s"), HasSubstr("~1.00 KiB")));
}

/// Steps of 30 s (two devices) and 60 s (one).
TEST(ListText, SaysForHowManyPlansNothingBetterWasMissed) {
  const auto text = [](Seconds others) {
    Gathered gathered;
    gathered.others_lower_bound = others;
    return list_text(plan_list(chosen(replicated(2), {}), gathered, {}), 10, "", 80);
  };
  EXPECT_THAT(text(60_s), HasSubstr("proven: no other plan of the search has a shorter step than these\n"));
  EXPECT_THAT(text(59.9_s), HasSubstr("proven for the first 1: no other plan of the search has a shorter step;"));
  EXPECT_THAT(text(29.9_s), HasSubstr("time was up before it was proven that no other plan is shorter"));
  EXPECT_THAT(list_text(list_of(replicated(2), {}), 10, "", 80), Not(HasSubstr("proven")));
}

TEST(ListText, ShowsWhatStepsCost) {
  // 60 s of one device a step: at 6 for an hour 0.1 each, 100 for a thousand.
  EXPECT_THAT(list_text(list_of(replicated(2), {.price = 6}), 10, "", 80),
              AllOf(HasSubstr("price of 1000 steps\n"), HasSubstr(" 100\n")));
  EXPECT_THAT(list_text(list_of(replicated(2), {.goal = {Objective::Cost, {}}}), 10, "", 80),
              AllOf(HasSubstr("device time\n"), HasSubstr("60.0 s\n")));
  EXPECT_THAT(list_text(list_of(replicated(2), {}), 10, "", 80), Not(HasSubstr("device time")));
}

TEST(ListText, CountsTheDevicesOfAFront) {
  RankedPlan recomputed = replicated(3)[0];
  recomputed.plan.stages[0].recompute = true;
  EXPECT_THAT(list_text(list_of({recomputed}, {.front = true}), 10, "", 80),
              AllOf(HasSubstr("stages devices   step"), HasSubstr("profile, recomputed      1       3")));
}

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

TEST(RankingText, ShowsThePlansAndWhatFits) {
  RankedPlan large = two_stages();
  large.origin = "pipedream";
  large.fits = false;
  large.prediction.iteration = Seconds(10);
  EXPECT_EQ(ranking_text({{two_stages(), large}, {}, 0}, "~", 80),
            "plan              replicas    step    idle peak memory\n"
            "profile, 2 stages      2-1 ~20.0 s ~12.5 %   ~3.00 KiB\n"
            "pipedream              2-1 ~10.0 s ~12.5 %   ~3.00 KiB does not fit\n");
}

TEST(RankingText, SaysWhatItLeavesOut) {
  Ranking ranking{std::vector<RankedPlan>(14, two_stages()), {{"schedule: odd", 2}}, 1};
  for (std::size_t i = 1; i < ranking.plans.size(); ++i) {
    ranking.plans[i].prediction.iteration = Seconds(30 + static_cast<double>(i));
    for (std::size_t more = 0; more < i; ++more)
      ranking.plans[i].plan.stages.front().devices.push_back(10 + static_cast<int>(more));
  }
  EXPECT_THAT(ranking_text(ranking, "", 80),
              EndsWith("and 2 more\n"  // 14, of which 12 are shown
                       "1 more skipped: its compute time alone exceeds the best step\n"
                       "skipped 2 candidates: schedule: odd (2)\n"));
  ranking.slower = 2;
  EXPECT_THAT(ranking_text(ranking, "", 80),
              HasSubstr("2 more skipped: their compute time alone exceeds the best step\n"));
}

RankedPlan two_replicas_then_one() {
  RankedPlan out = two_stages();
  out.origin = "optimal";
  out.plan.stages[0].devices = {0, 1};
  out.plan.stages[1].devices = {2};
  return out;
}

/// Devices 0 and 1, 2 in order; the other way round they are placed. Plans of one shape differ in their cuts alone.
TEST(RankingText, HasARowForEachShape) {
  const RankedPlan in_order = two_replicas_then_one();
  RankedPlan slower = in_order;
  slower.prediction.iteration = Seconds(21);
  RankedPlan placed = in_order;
  placed.plan.stages[0].devices = {0, 2};
  placed.plan.stages[1].devices = {1};
  placed.prediction.iteration = Seconds(22);
  EXPECT_EQ(ranking_text({{in_order, slower, placed, slower}, {}, 0}, "", 80),
            "plan            replicas   step   idle peak memory\n"
            "optimal              2-1 20.0 s 12.5 %    3.00 KiB best of 3\n"
            "optimal, placed      2-1 22.0 s 12.5 %    3.00 KiB\n");
}

/// Steps of 20, 20.1 and 20.3 s: the second is within 1 % of the first, the third is not. The fourth is in two chunks.
TEST(RankingText, JoinsShapesWhoseStepsAreWithinOnePercent) {
  const RankedPlan first = two_replicas_then_one();
  RankedPlan tie = first;
  tie.plan.stages[0].devices = {0};
  tie.plan.stages[1].devices = {1, 2};
  tie.prediction.iteration = Seconds(20.1);
  RankedPlan slower = first;
  slower.plan.stages[1].devices = {2, 3};
  slower.prediction.iteration = Seconds(20.3);
  RankedPlan chunked = first;
  chunked.plan.stages = {first.plan.stages[1], first.plan.stages[1]};
  chunked.plan.stages[0].devices = chunked.plan.stages[1].devices = {0};
  chunked.plan.chunks = 2;
  chunked.prediction.iteration = Seconds(30);
  EXPECT_EQ(ranking_text({{first, first, tie, slower, chunked}, {}, 0, Seconds(20)}, "", 80),
            "plan              replicas   step   idle peak memory\n"
            "optimal                2-1 20.0 s 12.5 %    3.00 KiB best of 2; 1-2 within 1 %\n"
            "optimal                2-2 20.3 s 12.5 %    3.00 KiB\n"
            "optimal, 2 chunks      1-1 30.0 s 12.5 %    3.00 KiB\n");
}

/// Steps of 20 and 20.1 s differ by 0.5 %.
TEST(RankingText, SaysHowTiesAreDecidedUnlessABoundTellsThemApart) {
  Ranking ranking{{two_stages(), two_stages()}, {}, 0};
  ranking.plans[1].prediction.iteration = Seconds(20.1);
  const std::string ties = "steps within 1 % are ties: fewer devices, then fewer stages win\n";
  EXPECT_THAT(ranking_text(ranking, "", 80), EndsWith(ties));
  ranking.lower_bound = Seconds(20);
  EXPECT_THAT(ranking_text(ranking, "", 80), Not(HasSubstr(ties)));
  ranking.lower_bound.reset();
  ranking.plans[1].prediction.iteration = Seconds(20.3);
  EXPECT_THAT(ranking_text(ranking, "", 80), Not(HasSubstr(ties)));
}

TEST(RankingText, CountsTheStagesOfALongPlan) {
  RankedPlan ranked = two_stages();
  while (ranked.plan.stages.size() < 10) ranked.plan.stages.push_back(ranked.plan.stages.back());
  EXPECT_THAT(ranking_text({{ranked}, {}, 0}, "", 80), AllOf(StartsWith("plan "), HasSubstr(" 10 stages ")));
}

TEST(GapText, SaysHowFarFromTheBest) {
  EXPECT_EQ(gap_text(2_s, 2_s), "the best possible");
  EXPECT_EQ(gap_text(102_s, 100_s), "at most 2 % above the best possible");
  EXPECT_EQ(gap_text(100.01_s, 100_s), "at most 0.1 % above the best possible");
  EXPECT_EQ(gap_text(3_s, 1_s), "at most 200 % above the best possible");
  EXPECT_EQ(gap_text(1_s, 0_s), "without a lower bound");
}

}  // namespace
}  // namespace stagecraft::partitioner
