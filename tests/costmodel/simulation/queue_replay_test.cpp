#include "costmodel/simulation/queue_replay.h"
#include "costmodel/bound_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <stdexcept>

#include "costmodel/interchange/torch_pipelining.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::ThrowsMessage;

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

/// Why lists in the notation of action_text, one line per rank, never end on two stages.
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

// Rank 0 sends its second activation before it asks for the first gradient; rank 1 sends the gradient before it asks
// for the second activation. Both continue if each direction has its own queue, and block each other in a shared queue.
TEST(FindDeadlock, NamesTheCycleWhereBothDirectionsShareAQueue) {
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
  EXPECT_EQ(deadlock(uneven, Queues::Edge, {0, 1}), std::nullopt);  // each rank reduces by itself
  EXPECT_EQ(deadlock(uneven, Queues::Edge, {0, 0}),
            "deadlock: 1REDUCE_GRAD of rank 1 waits for rank 0, which has ended. Stuck: rank 1 before 1REDUCE_GRAD "
            "(entry 2)");
}

TEST(FindDeadlock, ListsSixteenStuckRanksAndCountsTheRest) {
  // Twenty stages, the first of which waits for a microbatch's gradient before it sends its activation: all wait, the
  // others for their activations.
  const std::vector<double> times(20, 1);
  const Plan plan = testing::one_layer_a_stage(testing::chain_graph(times, times, 8_B), testing::flat_topology(20),
                                               std::vector<int>(20, 1), "1f1b", 1);
  const BoundPlan bound(plan);
  std::vector<std::vector<Action>> lists = bound.action_lists();
  std::ranges::stable_partition(lists[0], [](const Action& action) {
    return action.kind == ActionKind::ReceiveGradient || action.kind == ActionKind::Backward;
  });
  const std::string text =
      find_deadlock(MessageTable(bound, 1), lists, Queues::Edge, bound.reduce_groups()).value_or("");
  EXPECT_THAT(text, AllOf(HasSubstr("rank 0 before 0B0 (entry 2)"), HasSubstr("rank 15 before 15F0 (entry 2)"),
                          Not(HasSubstr("rank 16")), HasSubstr("and 4 more")));
}

TEST(FindDeadlock, EndsForEmptyLists) { EXPECT_EQ(deadlock("\n\n", Queues::Rank), std::nullopt); }

TEST(Queues, AreReadByTheWordsTheyAreWrittenWith) {
  for (const Queues queues : {Queues::Edge, Queues::Boundary, Queues::Pair, Queues::Rank})
    EXPECT_EQ(queues_by_name(to_string(queues)), queues);
  EXPECT_THAT(
      [] { (void)queues_by_name("lane"); },
      ThrowsMessage<std::invalid_argument>(AllOf(HasSubstr("\"lane\""), HasSubstr("edge, boundary, pair, rank"))));
}

// For any pipeline without skips: each boundary carries one activation and one gradient per microbatch unless one rank
// runs both ends. Each message is the output of one action and the input of another.
TEST(MessageTable, HandsEveryMessageFromOneActionToAnother) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    std::mt19937 random(seed);
    const int stages = 2 + static_cast<int>(random() % 3);
    const int microbatches = 1 + static_cast<int>(random() % 5);
    std::vector<int> replicas;
    for (int s = 0; s < stages; ++s) replicas.push_back(1 + static_cast<int>(random() % 3));
    const std::vector<double> times(static_cast<std::size_t>(stages), 1);
    const Plan plan = testing::one_layer_a_stage(testing::chain_graph(times, times, 8_B), testing::flat_topology(12),
                                                 replicas, "1f1b", microbatches);
    const MessageTable table(BoundPlan(plan), microbatches);
    EXPECT_EQ(table.count(), static_cast<std::size_t>(2 * (stages - 1) * microbatches)) << "seed " << seed;
    std::map<int, int> made;
    std::map<int, int> needed;
    for (int s = 0; s < stages; ++s) {
      for (int m = 0; m < microbatches; ++m) {
        for (const ActionKind kind : {ActionKind::Forward, ActionKind::Backward}) {
          const Action action{kind, s, m, -1};
          for (const int message : table.outputs(action)) {
            ++made[message];
            EXPECT_EQ(table.send(message).stage, s) << "seed " << seed;
            EXPECT_EQ(table.send(message).microbatch, m) << "seed " << seed;
          }
          for (const int message : table.inputs(action)) {
            ++needed[message];
            EXPECT_EQ(table.receive(message).stage, s) << "seed " << seed;
          }
        }
        EXPECT_THAT(table.outputs({ActionKind::WeightGradient, s, m, -1}), IsEmpty());
      }
    }
    EXPECT_EQ(made, needed) << "seed " << seed;
    EXPECT_EQ(made.size(), table.count()) << "seed " << seed;
    for (const auto& [message, times_made] : made) EXPECT_EQ(times_made, 1) << "seed " << seed;
  }
}

}  // namespace
}  // namespace stagecraft
