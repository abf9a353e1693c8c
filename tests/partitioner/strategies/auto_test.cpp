#include "partitioner/strategies/auto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A cost model with steps of `iteration` and stages that need `memory` each.
CostModel told(
    std::function<Seconds(const Plan&)> iteration,
    std::function<Bytes(const Plan&)> memory = [](const Plan&) { return Bytes(0); }) {
  CostModel out;
  out.predict = [=](const Graph&, const Topology&, const BoundPlan& bound) {
    const Plan& plan = bound.plan();
    Prediction prediction;
    prediction.iteration = iteration(plan);
    for (int s = 0; s < static_cast<int>(plan.stages.size()); ++s) {
      StagePrediction stage;
      stage.stage = s;
      stage.memory.total = memory(plan);
      prediction.stages.push_back(stage);
      prediction.timeline.memory.push_back({s, memory(plan), {}});
    }
    return std::variant<Prediction, Infeasible>(prediction);
  };
  out.memory = [=](const Graph&, const Topology&, const BoundPlan& plan) {
    return PlanMemory{{}, memory(plan.plan())};
  };
  return out;
}

/// Two layers of 3 s per microbatch, 4 microbatches: no plan computes for less than 12 s on two devices.
const Graph kGraph = testing::chain_graph({1, 1}, {2, 2});
const Topology kTwo = testing::flat_topology(2);

Ranking ranked(const CostModel& costs, const Constraints& constraints = {}) {
  return std::get<Ranking>(rank_plans(kGraph, kTwo, costs, constraints));
}

TEST(Ranking, TakesTheShortestPredictedStep) {
  // 100 s minus 2 s per stage: more than 1 % apart.
  const Ranking ranking =
      ranked(told([](const Plan& plan) { return Seconds(100 - 2.0 * static_cast<double>(plan.stages.size())); }));
  EXPECT_EQ(ranking.plans.front().plan.stages.size(), 2U);
  EXPECT_EQ(ranking.plans.front().plan.iteration, 96_s);
}

TEST(Ranking, TakesFewerDevicesAmongStepsWithinAHundredth) {
  // 100 s minus 0.4 s per device: the plans on two devices are less than 1 % faster.
  const Ranking ranking = ranked(told([](const Plan& plan) { return Seconds(100 - 0.4 * devices_of(plan)); }));
  EXPECT_EQ(devices_of(ranking.plans.front().plan), 1);
  EXPECT_EQ(ranking.plans.front().plan.iteration, 99.6_s);
}

TEST(Ranking, TakesFewerStagesAmongEquallyManyDevices) {
  // 110 s on one device; 100 s on two, as two stages or as two replicas of one stage.
  const Ranking ranking = ranked(told([](const Plan& plan) { return Seconds(devices_of(plan) == 1 ? 110 : 100); }));
  EXPECT_EQ(devices_of(ranking.plans.front().plan), 2);
  EXPECT_EQ(ranking.plans.front().plan.stages.size(), 1U);
}

TEST(Ranking, PredictsNoPlanWhoseComputeAloneTakesLongerThanTheBestStep) {
  int asked = 0;
  CostModel costs = told([&](const Plan&) {
    ++asked;
    return 1_s;
  });
  costs.least_step = simulated_costs().least_step;
  const Ranking ranking = ranked(costs);
  // The first plan with 12 s of compute is predicted to take 1 s, so no other can be as fast.
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(ranking.plans.size(), 1U);
  EXPECT_GE(ranking.slower, 2);
}

TEST(Ranking, PredictsEveryPlanOfAModelWithoutALowerBound) {
  const Ranking ranking = ranked(told([](const Plan&) { return 1_s; }));
  // One stage on one device, one stage on both, two stages.
  EXPECT_EQ(ranking.plans.size(), 3U);
  EXPECT_EQ(ranking.slower, 0);
}

TEST(Ranking, ExcludesPlansByTheBoundsOfTheModelThatItIsGiven) {
  // By its bounds plans with two stages take at least 50 s, the others none.
  CostModel costs = told([](const Plan&) { return 10_s; });
  costs.least_step = [](const Graph&, const BoundPlan& plan) { return Seconds(plan.stages() == 2 ? 50 : 0); };
  const Ranking ranking = ranked(costs);
  EXPECT_EQ(ranking.plans.size(), 2U);
  EXPECT_EQ(ranking.slower, 1);
}

TEST(Ranking, HasEachPlanOnce) {
  const Ranking ranking = ranked(told([](const Plan&) { return 100_s; }));
  for (std::size_t i = 0; i < ranking.plans.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) EXPECT_NE(ranking.plans[i].plan.stages, ranking.plans[j].plan.stages);
  }
  // One stage on one device, one stage on both, two stages.
  EXPECT_EQ(ranking.plans.size(), 3U);
}

TEST(Ranking, PutsPlansThatDoNotFitLastTheLeastNeedyFirst) {
  // Two stages need 50 B, one stage 200 B and two replicas of one stage 100 B.
  Constraints constraints;
  constraints.memory_limit = Bytes(60);
  const auto need = [](const Plan& plan) { return Bytes(plan.stages.size() == 2 ? 50 : 200 / devices_of(plan)); };
  const Ranking ranking =
      ranked(told([](const Plan& plan) { return Seconds(plan.stages.size() == 2 ? 400 : 100); }, need), constraints);
  ASSERT_EQ(ranking.plans.size(), 3U);
  EXPECT_EQ(ranking.plans[0].plan.stages.size(), 2U);
  EXPECT_TRUE(ranking.plans[0].fits);
  EXPECT_FALSE(ranking.plans[1].fits);
  EXPECT_EQ(devices_of(ranking.plans[1].plan), 2);
  EXPECT_EQ(devices_of(ranking.plans[2].plan), 1);
  EXPECT_EQ(least_need(kGraph, kTwo, told({}, need), constraints), Bytes(50));
}

TEST(Ranking, NamesTheLeastExcessWhereNothingFits) {
  Constraints constraints;
  constraints.memory_limit = Bytes(40);
  const auto need = [](const Plan& plan) { return Bytes(plan.stages.size() == 2 ? 50 : 200); };
  const auto result = rank_plans(kGraph, kTwo, told([](const Plan&) { return 100_s; }, need), constraints);
  EXPECT_THAT(std::get<Infeasible>(result).reason,
              StartsWith("no candidate of auto fits in memory, optimal tries more plans; in the smallest ("));
  EXPECT_THAT(std::get<Infeasible>(result).reason,
              HasSubstr("stage 0 needs up to 50 B on each device, the limit is 40 B"));
}

TEST(Ranking, SkipsWhatIsNotOfTheStagesAskedFor) {
  Constraints constraints;
  constraints.stages = 2;
  const Ranking ranking = ranked(told([](const Plan&) { return 100_s; }), constraints);
  for (const RankedPlan& ranked_plan : ranking.plans) EXPECT_EQ(ranked_plan.plan.stages.size(), 2U);
  // PipeDream with replicas finds one stage on both devices.
  EXPECT_EQ(skipped_text(ranking.skipped), "skipped 1 candidate: pipedream: it has 1 stage, expected 2 (1)");
}

TEST(SkippedText, AddsUpTheCandidates) {
  EXPECT_EQ(skipped_text({}), "");
  EXPECT_EQ(skipped_text({{"a", 2}, {"b", 1}}), "skipped 3 candidates: a (2); b (1)");
}

}  // namespace
}  // namespace stagecraft::partitioner
