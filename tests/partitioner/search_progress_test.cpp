#include "partitioner/search_progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "partitioner/choices/gather.h"
#include "partitioner/choices/settings_search.h"
#include "partitioner/strategies/strategies.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using namespace std::chrono_literals;

TEST(SearchProgress, TellsWhatASearchFoundSoFar) {
  SearchProgress::Clock::time_point now{};
  SearchProgress progress([&] { return now; });
  EXPECT_EQ(progress.state().search, "");
  {
    const ToldPart part(&progress, "zb-h1 (2 of 6)");
    const ToldSearch search(&progress, "optimal");
    search.ends_after(3_s);
    search.tried(4, 9);
    progress.found(2_s);
    progress.found(1_s);
    progress.found(1.5_s);
    search.proved(0.9_s);
    search.proved(0.5_s);  // proves less than what is known
    progress.predicted();
    progress.predicted();
    progress.simulated(0.25);
    now += 1200ms;
    const SearchState state = progress.state();
    EXPECT_EQ(state.part, "zb-h1 (2 of 6)");
    EXPECT_EQ(state.search, "optimal");
    EXPECT_DOUBLE_EQ(state.passed.value, 1.2);
    EXPECT_EQ(state.limit, 3_s);
    EXPECT_EQ(state.best, 1_s);
    EXPECT_EQ(state.lower_bound, 0.9_s);
    EXPECT_EQ(state.done, 4U);
    EXPECT_EQ(state.all, 9U);
    EXPECT_EQ(state.predicted, 2);
    EXPECT_EQ(state.simulated, 0.25);
  }
  EXPECT_EQ(progress.state().part, "");
  progress.predicted();
  EXPECT_EQ(progress.state().simulated, 0);  // the plan that was being simulated
}

TEST(SearchProgress, OfTheNextSearchBeginsAfresh) {
  SearchProgress::Clock::time_point now{};
  SearchProgress progress([&] { return now; });
  {
    const ToldSearch first(&progress, "optimal");
    first.ends_after(3_s);
    first.proved(1_s);
    progress.found(2_s);
    progress.predicted();
  }
  now += 5s;
  const ToldSearch second(&progress, "improving");
  now += 1s;
  const SearchState state = progress.state();
  EXPECT_EQ(state.search, "improving");
  EXPECT_EQ(state.passed, 1_s);
  EXPECT_FALSE(state.limit || state.best || state.lower_bound);
  EXPECT_EQ(state.predicted, 0);
}

// The bound of a part of the plans bounds the others not.
TEST(SearchProgress, TakesOnlyPlansFromASearchWithinAnother) {
  SearchProgress progress;
  const ToldSearch outer(&progress, "settings");
  outer.ends_after(10_s);
  outer.proved(1_s);
  {
    const ToldSearch inner(&progress, "optimal");
    inner.ends_after(3_s);
    inner.proved(5_s);
    inner.tried(1, 2);
    progress.found(4_s);
  }
  const SearchState state = progress.state();
  EXPECT_EQ(state.search, "settings");
  EXPECT_EQ(state.limit, 10_s);
  EXPECT_EQ(state.lower_bound, 1_s);
  EXPECT_EQ(state.best, 4_s);
  EXPECT_EQ(state.all, 0U);
}

TEST(SearchProgress, NamesPartsWithinParts) {
  SearchProgress progress;
  const ToldPart outer(&progress, "with 8 devices instead of 4");
  {
    const ToldPart inner(&progress, "2 devices (2 of 3)");
    EXPECT_EQ(progress.state().part, "with 8 devices instead of 4, 2 devices (2 of 3)");
  }
  EXPECT_EQ(progress.state().part, "with 8 devices instead of 4");
}

TEST(SearchProgress, NeedsNobodyWhoListens) {
  const ToldPart part(nullptr, "part");
  const ToldSearch search(nullptr, "optimal");
  search.ends_after(1_s);
  search.proved(1_s);
  search.tried(1, 2);
}

Constraints four_microbatches() {
  Constraints out;
  out.plan.microbatches = 4;
  return out;
}

/// What the strategies tell in the end is what they answer.
TEST(SearchProgress, OfStrategiesIsTheirAnswer) {
  const Graph graph = testing::chain_graph({1, 2, 3, 1}, {2, 1, 2, 2}, Bytes(1000));
  for (const std::string name : {"optimal", "auto", "pipedream", "profile"}) {
    SCOPED_TRACE(name);
    SearchProgress progress;
    const StrategyResult result =
        plan_with(name, graph, testing::flat_topology(3, 1e4), simulated_costs(progress), four_microbatches());
    const Ranking& ranking = std::get<Ranking>(result);
    const SearchState state = progress.state();
    EXPECT_THAT(state.search, ::testing::StartsWith(name));
    EXPECT_GE(state.predicted, 1);
    EXPECT_EQ(state.limit.has_value(), name == "optimal");
    if (name == "optimal" || name == "auto") { EXPECT_EQ(state.best, ranking.plans.front().prediction.iteration); }
    if (name == "optimal") {
      ASSERT_TRUE(state.lower_bound);
      EXPECT_GE(*state.lower_bound, *ranking.lower_bound * (1 - 1e-6));
    }
  }
}

TEST(SearchProgress, OfSettingsIsTheirAnswer) {
  Graph graph = testing::chain_graph({1, 2, 3, 1}, {2, 1, 2, 2}, Bytes(1000));
  SettingSpace space;
  space.graphs = {{graph, 4, "", true}};
  space.schedules = {"1f1b", "gpipe"};
  space.constraints = four_microbatches();
  SearchProgress progress;
  const SettingsSearch search = search_settings(space, testing::flat_topology(3, 1e4), simulated_costs(progress));
  const SearchState state = progress.state();
  EXPECT_EQ(state.search, "settings");
  EXPECT_EQ(state.limit, kDefaultTimeLimit);
  EXPECT_EQ(state.best, search.trials[search.best].plan->prediction.iteration);
  EXPECT_EQ(state.lower_bound, search.lower_bound);
  EXPECT_EQ(state.all, search.trials.size());
  EXPECT_EQ(state.done, search.trials.size());  // so small a space is searched to its end
}

/// A front asks about all four devices, then about the first one, two and three.
TEST(SearchProgress, OfAFrontNamesItsQuestions) {
  const Graph graph = testing::chain_graph({1, 2, 3, 1}, {2, 1, 2, 2}, Bytes(1000));
  SearchProgress progress;
  CostModel costs = simulated_costs(progress);
  std::vector<std::string> parts;
  costs.predict = [&, predict = costs.predict](const Graph& g, const Topology& t, const BoundPlan& p) {
    const std::string part = progress.state().part;
    if (parts.empty() || parts.back() != part) parts.push_back(part);
    return predict(g, t, p);
  };
  GatherOptions options;
  options.fewer_devices = true;
  (void)gather(graph, testing::flat_topology(4, 1e4), costs, four_microbatches(), options);
  EXPECT_THAT(parts, ::testing::ElementsAre("4 devices (1 of 4)", "1 device (2 of 4)", "2 devices (3 of 4)",
                                            "3 devices (4 of 4)"));
  EXPECT_EQ(progress.state().part, "");
}

}  // namespace
}  // namespace stagecraft::partitioner
