#include "partitioner/choices/schedule_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

#include "partitioner/strategies/strategies.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

Constraints of_four() {
  Constraints out;
  out.plan.microbatches = 4;
  return out;
}

/// A plan whose step and bound are given.
StrategyResult told(double step, std::optional<double> bound, bool fits = true) {
  RankedPlan ranked;
  ranked.prediction.iteration = Seconds(step);
  ranked.fits = fits;
  if (bound) ranked.plan.lower_bound = Seconds(*bound);
  Ranking out;
  out.plans.push_back(ranked);
  return out;
}

TEST(ScheduleSearch, ComparesSynchronousSchedulesThatTrain) {
  EXPECT_THAT(schedules_to_compare(),
              AllOf(Contains("gpipe"), Contains("1f1b"), Contains("interleaved-1f1b"), Contains("zb-h1"),
                    Not(Contains("pipedream")), Not(Contains("pipedream-2bw")), Not(Contains("forward")),
                    Not(Contains("listed"))));
}

TEST(ScheduleSearch, TakesTheShortestStepAndTheSmallestBound) {
  const auto plan = [](const Constraints& constraints) {
    if (constraints.plan.schedule == "a") return told(12, 9);
    if (constraints.plan.schedule == "b") return told(10, 10);
    return told(11, 8);
  };
  const ScheduleSearch search = search_schedules({"a", "b", "c"}, of_four(), plan);
  EXPECT_EQ(search.best, 1U);
  EXPECT_EQ(search.lower_bound, 8_s) << "a plan with c may take 8 s";
  EXPECT_EQ(trials_note(search), "a 12.0 s, b 10.0 s, c 11.0 s");
}

TEST(ScheduleSearch, TakesAPlanThatFitsBeforeAFasterOne) {
  const auto plan = [](const Constraints& constraints) {
    return constraints.plan.schedule == "a" ? told(10, {}, false) : told(11, 8);
  };
  const ScheduleSearch search = search_schedules({"a", "b"}, of_four(), plan);
  EXPECT_EQ(search.best, 1U);
  EXPECT_FALSE(search.lower_bound) << "nothing is known of a";
  EXPECT_THAT(trials_text(search, "", 80), HasSubstr("does not fit"));
}

TEST(ScheduleSearch, SaysWhichSchedulesHaveNoPlan) {
  const auto plan = [](const Constraints& constraints) -> StrategyResult {
    if (constraints.plan.schedule == "a") return Infeasible{"too large"};
    if (constraints.plan.schedule == "b") throw std::invalid_argument("not with replicas");
    return told(11, 8);
  };
  const ScheduleSearch search = search_schedules({"a", "b", "c"}, of_four(), plan);
  EXPECT_EQ(search.best, 2U);
  EXPECT_EQ(search.lower_bound, 8_s);
  EXPECT_EQ(trials_note(search), "c 11.0 s; no plan with a, b");
  EXPECT_THAT(trials_text(search, "", 80), AllOf(HasSubstr("no plan with a: too large"), HasSubstr("c  ")));
  EXPECT_THAT([&] { (void)search_schedules({"a", "b"}, of_four(), plan); },
              ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("a: too large"), HasSubstr("b: not with replicas"))));
}

// By planning with each schedule alone.
TEST(ScheduleSearch, IsAsGoodAsTheBestOfAllSchedules) {
  const unsigned seed = 17;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> time(0.1, 3);
  const CostModel costs = simulated_costs();
  for (int i = 0; i < 20; ++i) {
    std::vector<double> forward;
    std::vector<double> backward;
    const std::size_t layers = 2 + random() % 4;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      forward.push_back(time(random));
      backward.push_back(2 * time(random));
    }
    const Graph graph = testing::chain_graph(forward, backward, Bytes(100));
    const Topology topology = testing::flat_topology(static_cast<int>(1 + random() % 4), 1000);
    const auto plan = [&](const Constraints& constraints) {
      return plan_with(kDefaultStrategy, graph, topology, costs, constraints);
    };
    const ScheduleSearch search = search_schedules(schedules_to_compare(), of_four(), plan);
    ASSERT_EQ(search.trials.size(), schedules_to_compare().size());
    const auto& best = std::get<RankedPlan>(search.trials[search.best].answer);
    EXPECT_EQ(best.plan.schedule, search.trials[search.best].schedule);
    ASSERT_TRUE(search.lower_bound) << "seed " << seed << " case " << i;
    for (const std::string& schedule : schedules_to_compare()) {
      Constraints alone = of_four();
      alone.plan.schedule = schedule;
      const StrategyResult result = plan(alone);
      const RankedPlan& first = std::get<Ranking>(result).plans.front();
      EXPECT_LE(best.prediction.iteration, first.prediction.iteration) << "seed " << seed << " case " << i;
      EXPECT_LE(*search.lower_bound, *first.plan.lower_bound) << "seed " << seed << " case " << i;
    }
    EXPECT_LE(*search.lower_bound, best.prediction.iteration * (1 + 1e-9)) << "seed " << seed << " case " << i;
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
