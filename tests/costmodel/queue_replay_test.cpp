#include "costmodel/queue_replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/bound_plan.h"
#include "costmodel/interchange/actions_csv.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Two stages that send 8 B each way, two microbatches.
Plan two_stages(const std::vector<int>& replicas) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2}, 8_B);
  return testing::one_layer_a_stage(graph, testing::flat_topology(4), replicas, "1f1b", 2);
}

const Action kForward{ActionKind::Forward, 0, 0, -1};

TEST(MessageTable, KnowsWhoRunsAMicrobatch) {
  const MessageTable table(BoundPlan(two_stages({2, 1})), 2);
  EXPECT_EQ(table.runner(0, 0), 0);
  EXPECT_EQ(table.runner(0, 1), 1);
  EXPECT_EQ(table.runner(1, 0), 2);
  EXPECT_EQ(table.runner(1, 1), 2);
}

TEST(MessageTable, NumbersEveryMessageOnceAndKnowsItsTwoActions) {
  const MessageTable table(BoundPlan(two_stages({1, 1})), 2);
  EXPECT_EQ(table.count(), 4U);  // two microbatches, both ways
  EXPECT_EQ(table.boundary(0, 1), 0);
  EXPECT_EQ(table.boundary(1, 0), 0);
  EXPECT_EQ(table.boundary(1, 1), std::nullopt);
  for (int message = 0; message < 4; ++message) {
    EXPECT_EQ(table.message(table.send(message)), message);
    EXPECT_EQ(table.message(table.receive(message)), message);
  }
  const int gradient = table.message(0, true, 1);
  EXPECT_EQ(table.send(gradient), (Action{ActionKind::SendGradient, 1, 1, 0}));
  EXPECT_EQ(table.receive(gradient), (Action{ActionKind::ReceiveGradient, 0, 1, 1}));
}

TEST(MessageTable, KnowsWhatAnActionNeedsAndMakes) {
  const MessageTable table(BoundPlan(two_stages({1, 1})), 2);
  EXPECT_THAT(table.inputs(kForward), IsEmpty());
  EXPECT_THAT(table.outputs(kForward), ElementsAre(table.message(0, false, 0)));
  const Action backward{ActionKind::Backward, 0, 1, -1};
  EXPECT_THAT(table.inputs(backward), ElementsAre(table.message(0, true, 1)));
  EXPECT_THAT(table.outputs(backward), IsEmpty());
}

/// Why lists in the words of action_text, one line a rank, never end on two stages.
std::optional<std::string> deadlock(const std::string& lists, Queues queues, const std::vector<int>& groups = {0, 1}) {
  return find_deadlock(MessageTable(BoundPlan(two_stages({1, 1})), 2), interchange::parse_actions_csv(lists, "lists"),
                       queues, groups);
}

TEST(FindDeadlock, LetsListsEndInWhichEverySendMeetsItsReceive) {
  for (const Queues queues : {Queues::Edge, Queues::Boundary, Queues::Pair, Queues::Rank}) {
    EXPECT_EQ(deadlock("0F0,0SEND_F0,0RECV_B0,0B0,0F1,0SEND_F1,0RECV_B1,0B1\n"
                       "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n",
                       queues),
              std::nullopt)
        << to_string(queues);
  }
}

// Rank 0 sends its second activation before it asks for the first gradient, rank 1 sends the gradient before it asks
// for the second activation. Both go on where directions have queues of their own, and block each other in one queue.
TEST(FindDeadlock, NamesTheCircleWhereBothDirectionsShareAQueue) {
  const std::string lists =
      "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
      "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
  EXPECT_EQ(deadlock(lists, Queues::Edge), std::nullopt);
  EXPECT_EQ(deadlock(lists, Queues::Boundary), std::nullopt);
  for (const Queues queues : {Queues::Pair, Queues::Rank}) {
    EXPECT_EQ(deadlock(lists, queues),
              "deadlock: 0SEND_F1 of rank 0 waits for 1RECV_F1 of rank 1, which is queued behind 1SEND_B0; 1SEND_B0 of "
              "rank 1 waits for 0RECV_B0 of rank 0, which is queued behind 0SEND_F1. Stuck: rank 0 before 0B0 (entry "
              "6), rank 1 before 1F1 (entry 6)");
  }
}

TEST(FindDeadlock, NamesEndsOfOneEdgeThatDisagreeOnOrder) {
  const auto found = deadlock(
      "0F0,0F1,0SEND_F0,0SEND_F1\n"
      "1RECV_F1,1RECV_F0,1F0,1F1\n",
      Queues::Edge);
  EXPECT_EQ(found,
            "deadlock: 1RECV_F1 of rank 1 waits for 0SEND_F1 of rank 0, which is queued behind 0SEND_F0; 0SEND_F0 of "
            "rank 0 waits for 1RECV_F0 of rank 1, which is queued behind 1RECV_F1. Stuck: rank 1 before 1F0 (entry 3)");
}

TEST(FindDeadlock, LetsAReduceWaitForAllOfItsGroup) {
  const std::string uneven = "0REDUCE_GRAD\n1REDUCE_GRAD,1REDUCE_GRAD\n";
  EXPECT_EQ(deadlock("0REDUCE_GRAD\n1REDUCE_GRAD\n", Queues::Edge, {0, 0}), std::nullopt);
  EXPECT_EQ(deadlock(uneven, Queues::Edge, {0, 1}), std::nullopt);  // each for itself
  EXPECT_EQ(deadlock(uneven, Queues::Edge, {0, 0}),
            "deadlock: 1REDUCE_GRAD of rank 1 waits for rank 0, which has ended. Stuck: rank 1 before 1REDUCE_GRAD "
            "(entry 2)");
}

}  // namespace
}  // namespace stagecraft
