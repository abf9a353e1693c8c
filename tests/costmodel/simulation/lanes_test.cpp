#include "costmodel/simulation/lanes.h"

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

}  // namespace
}  // namespace stagecraft::simulation
