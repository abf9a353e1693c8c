#include "partitioner/choices/listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

}  // namespace
}  // namespace stagecraft::partitioner
