#include "costmodel/simulation/waiting.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/bound_plan.h"
#include "tests/costmodel/interleavings.h"

namespace stagecraft::simulation {
namespace {

using stagecraft::testing::row_plan;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::ThrowsMessage;

TEST(Lanes, JoinTheReplicasThatMeet) {
  // Stage 0 has ranks 0 and 1, stage 1 ranks 2, 3 and 4: after 6 microbatches the same ones meet again.
  SimulationInput input{.plan = BoundPlan(row_plan("gpipe", {2, 3}, 12)), .lists = {}, .stages = {}};
  input.transfer = [](int, bool, int, int) { return Transfer{}; };
  const Lanes lanes(input);
  EXPECT_EQ(lanes.count(), 6 * 2);
  const auto ends = [&](ActionKind kind, int stage, int microbatch, int peer) {
    const Lane& lane = lanes[lanes.of({kind, stage, microbatch, peer})];
    return std::pair(lane.from, lane.to);
  };
  EXPECT_THAT(ends(ActionKind::SendActivation, 0, 5, 1), Pair(1, 2 + 2));
  EXPECT_THAT(ends(ActionKind::ReceiveActivation, 1, 5, 0), Pair(1, 2 + 2));
  EXPECT_THAT(ends(ActionKind::SendGradient, 1, 5, 0), Pair(2 + 2, 1));
  EXPECT_EQ(lanes.of({ActionKind::SendActivation, 0, 5, 1}), lanes.of({ActionKind::ReceiveActivation, 1, 11, 0}));
  EXPECT_NE(lanes.of({ActionKind::SendActivation, 0, 5, 1}), lanes.of({ActionKind::SendGradient, 1, 5, 0}));
  EXPECT_EQ(lanes[0].handler(HandlingPart::SendFixed), lanes[0].from);
  EXPECT_EQ(lanes[0].handler(HandlingPart::ReceiveFixed), lanes[0].to);
}

TEST(Lanes, NameStagesWithoutABoundary) {
  const SimulationInput input{.plan = BoundPlan(row_plan("gpipe", {1, 1, 1}, 2)), .lists = {}, .stages = {}};
  const Lanes lanes(input);
  EXPECT_THAT([&] { (void)lanes.of({ActionKind::SendActivation, 0, 0, 2}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("there is no boundary between stage 0 and stage 2")));
}

TEST(Lanes, AskForTheCostOfTheirMessagesOnce) {
  SimulationInput input{.plan = BoundPlan(row_plan("gpipe", {1, 2}, 4)), .lists = {}, .stages = {}};
  std::vector<std::pair<int, int>> asked;
  input.transfer = [&](int, bool, int from, int to) {
    asked.emplace_back(from, to);
    return Transfer{.latency = Seconds(to), .transmission = {}};
  };
  Lanes lanes(input);
  Lane& lane = lanes[lanes.of({ActionKind::SendActivation, 0, 1, 1})];
  EXPECT_EQ(lanes.cost(lane).latency, Seconds(2));
  EXPECT_EQ(lanes.cost(lane).latency, Seconds(2));
  EXPECT_THAT(asked, ElementsAre(Pair(0, 2)));
}

using ::testing::IsEmpty;

constexpr Action reduce_of(int stage) { return {ActionKind::Reduce, stage, -1, -1}; }

SimulationInput input_of(const Plan& plan, std::vector<std::vector<Action>> lists) {
  return {.plan = BoundPlan(plan), .lists = std::move(lists), .stages = std::vector<StageCost>(plan.stages.size())};
}

std::vector<int> ranks_of(std::span<const ReduceGroups::Member> members) {
  std::vector<int> out;
  for (const ReduceGroups::Member& member : members) out.push_back(member.rank);
  return out;
}

TEST(ReduceGroups, AreReadyWhenTheLastMemberHasCome) {
  // Two replicas of stage 0, three of stage 1.
  SimulationInput input = input_of(row_plan("gpipe", {2, 3}, 6),
                                   {{reduce_of(0)}, {reduce_of(0)}, {reduce_of(1)}, {reduce_of(1)}, {reduce_of(1)}});
  ReduceGroups groups(input);
  EXPECT_THAT(groups.join({3, 1, Seconds(1)}), IsEmpty());
  EXPECT_THAT(groups.join({1, 0, Seconds(2)}), IsEmpty());
  EXPECT_THAT(groups.join({2, 1, Seconds(2)}), IsEmpty());
  EXPECT_EQ(groups.waiting(0), 1u);
  EXPECT_EQ(groups.waiting(1), 2u);
  EXPECT_THAT(ranks_of(groups.join({4, 1, Seconds(5)})), ElementsAre(3, 2, 4));
  EXPECT_EQ(groups.waiting(1), 0u);
  EXPECT_THAT(ranks_of(groups.join({0, 0, Seconds(9)})), ElementsAre(1, 0));
  // The next round.
  EXPECT_THAT(groups.join({0, 0, Seconds(10)}), IsEmpty());
  EXPECT_THAT(ranks_of(groups.join({1, 0, Seconds(11)})), ElementsAre(0, 1));
}

TEST(ReduceGroups, TakeTheTimeThatBucketsHaveLeft) {
  // The members come at 9 and 10 s. The first bucket is ready 6 s before, at 4, and takes 3: until 7. The second is
  // ready at 6, waits for the first, and takes 2: until 9. The third is ready at 10 and takes 1.
  SimulationInput input = input_of(row_plan("gpipe", {2}, 2), {{reduce_of(0)}, {reduce_of(0)}});
  input.stages[0].buckets = {{Seconds(3), Seconds(6)}, {Seconds(2), Seconds(4)}, {Seconds(1), Seconds(0)}};
  ReduceGroups groups(input);
  const std::vector<ReduceGroups::Member> members{{0, 0, Seconds(9)}, {1, 0, Seconds(10)}};
  EXPECT_DOUBLE_EQ(groups.time(members, Seconds(10)).value, 1);
  // A slower second bucket delays the third: 7 + 5 + 1 - 10.
  input.stages[0].buckets[1].time = Seconds(5);
  EXPECT_DOUBLE_EQ(groups.time(members, Seconds(10)).value, 3);
  // What is not in buckets follows.
  input.stages[0].reduce = Seconds(0.5);
  EXPECT_DOUBLE_EQ(groups.time(members, Seconds(10)).value, 3.5);
  input.stages[0].tied = Seconds(0.25);
  EXPECT_DOUBLE_EQ(groups.time(members, Seconds(10)).value, 3.75);
}

TEST(ReduceGroups, OfTiedStagesTakeTheLongestOfEachPart) {
  // Stages 0 and 2 share a parameter: one group. Their replicas' sums take 2 and 3 s, side by side; then the tied
  // parameter takes 1 s. Stage 2 came at 4 s; its bucket, ready 1 s before, takes 2 s: 1 s is left at 4 s, none at 6 s.
  Plan plan = row_plan("gpipe", {1, 1, 1}, 1);
  plan.tied.push_back({"w", {"l0", "l2"}});
  SimulationInput input = input_of(plan, {{reduce_of(0)}, {}, {reduce_of(2)}});
  input.stages[0].reduce = Seconds(2);
  input.stages[2].reduce = Seconds(3);
  input.stages[0].tied = input.stages[2].tied = Seconds(1);
  input.stages[2].buckets = {{Seconds(2), Seconds(1)}};
  ReduceGroups groups(input);
  EXPECT_THAT(groups.join({2, 2, Seconds(4)}), IsEmpty());
  const auto members = groups.join({0, 0, Seconds(6)});
  EXPECT_THAT(ranks_of(members), ElementsAre(2, 0));
  EXPECT_DOUBLE_EQ(groups.time(members, Seconds(6)).value, 3 + 1);
  EXPECT_DOUBLE_EQ(groups.time(members, Seconds(4)).value, 3 + 1 + 1);
}

TEST(ReduceGroups, OfARankWithSeveralStagesOnlyTheLastReduceWaits) {
  // Two ranks with two stages each. Stages 0 and 2, both of rank 0, and stage 1 share a parameter.
  Plan plan = row_plan("interleaved-1f1b", {1, 1, 1, 1}, 2, 2);
  plan.tied.push_back({"w", {"l0", "l1", "l2"}});
  SimulationInput input = input_of(plan, {{reduce_of(2), reduce_of(0)}, {reduce_of(1)}});
  input.stages[0].reduce = Seconds(2);
  input.stages[1].reduce = Seconds(4);
  input.stages[2].reduce = Seconds(3);
  ReduceGroups groups(input);
  EXPECT_FALSE(groups.is_last(0, 0));
  EXPECT_TRUE(groups.is_last(0, 1));
  EXPECT_TRUE(groups.is_last(1, 0));
  // It does the work of both: 2 + 3 s.
  EXPECT_THAT(groups.join({0, 0, Seconds(1)}), IsEmpty());
  const auto members = groups.join({1, 1, Seconds(1)});
  EXPECT_DOUBLE_EQ(groups.time(members, Seconds(1)).value, 5);
}

}  // namespace

}  // namespace stagecraft::simulation
