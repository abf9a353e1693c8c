#include "partitioner/costs/action_replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/bound_plan.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

const std::vector<int> kInOrder{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

using Lists = std::vector<std::vector<Action>>;

Action forward(int stage, int microbatch) { return {ActionKind::Forward, stage, microbatch, -1}; }
Action backward(int stage, int microbatch) { return {ActionKind::Backward, stage, microbatch, -1}; }
Action weights(int stage, int microbatch) { return {ActionKind::WeightGradient, stage, microbatch, -1}; }

StageSums stage(double forward_s, double backward_s, double weights_s = 0) {
  StageSums out;
  out.forward = Seconds(forward_s);
  out.backward = Seconds(backward_s);
  out.weights = Seconds(weights_s);
  return out;
}

/// A message from `from` to `to`, with gradients, that takes as long at both of two levels.
StageLink link(int from, int to, double forward_s, double back_s) {
  StageLink out;
  out.from = from;
  out.to = to;
  out.gradient = true;
  out.forward = {Seconds(forward_s), Seconds(forward_s)};
  out.back = {Seconds(back_s), Seconds(back_s)};
  return out;
}

/// Stages of 1 + 2 s and 2 + 4 s on a device each, and messages of 0.5 s there and 0.25 s back. The first stage's
/// forwards end after 1 and 2 s. The second one's begin at 1.5 and 3.5 s, its backwards end after 9.5 and 13.5 s. The
/// gradients come after 9.75 and 13.75 s: the last backward ends after 15.75 s.
TEST(ActionReplay, FollowsTwoMicrobatchesThereAndBack) {
  const Topology topology = testing::flat_topology(2);
  const std::vector<int> replicas{1, 1};
  const std::vector<int> first_rank{0, 1};
  const std::vector<StageSums> sums{stage(1, 2), stage(2, 4)};
  std::vector<StageLink> links{link(0, 1, 0.5, 0.25)};
  links[0].port = Seconds(0.5);
  links[0].port_back = Seconds(0.25);
  const Lists lists{{forward(0, 0), forward(0, 1), backward(0, 0), backward(0, 1)},
                    {forward(1, 0), forward(1, 1), backward(1, 0), backward(1, 1)}};
  ActionReplay replay(topology, 2, replicas, first_rank, kInOrder, sums, links, lists);
  ASSERT_TRUE(replay.run());
  EXPECT_EQ(replay.ends(), (std::vector<Seconds>{Seconds(15.75), Seconds(13.5)}));
  // Two messages each way: the first one when the first forward, or backward, has ended.
  EXPECT_EQ(replay.ports()[0].activations_out.first, Seconds(1));
  EXPECT_EQ(replay.ports()[0].activations_out.sum, Seconds(1));
  EXPECT_EQ(replay.ports()[1].activations_in.first, Seconds(1));
  EXPECT_EQ(replay.ports()[1].gradients_out.first, Seconds(9.5));
  EXPECT_EQ(replay.ports()[0].gradients_in.sum, Seconds(0.5));
  EXPECT_EQ(replay.ports()[0].activations_in.sum, Seconds(0));
}

/// Messages of 1 s, sent after 0.25, 0.5 and 0.75 s. To one rank they arrive one after the other: after 1.25, 2.25 and
/// 3.25 s. To two replicas in turn the second one does not wait: 1.25, 1.5 and 2.25 s.
TEST(ActionReplay, SendsMessagesBetweenTwoRanksOneAfterTheOther) {
  const Topology topology = testing::flat_topology(3);
  const std::vector<int> first_rank{0, 1};
  const std::vector<StageSums> sums{stage(0.25, 0), stage(0.125, 0)};
  const std::vector<StageLink> links{link(0, 1, 1, 0)};
  const std::vector<Action> sender{forward(0, 0), forward(0, 1), forward(0, 2)};
  {
    const std::vector<int> replicas{1, 1};
    const Lists lists{sender, {forward(1, 0), forward(1, 1), forward(1, 2)}};
    ActionReplay replay(topology, 3, replicas, first_rank, kInOrder, sums, links, lists);
    ASSERT_TRUE(replay.run());
    EXPECT_EQ(replay.ends()[1], Seconds(3.375));
  }
  const std::vector<int> replicas{1, 2};
  const Lists lists{sender, {forward(1, 0), forward(1, 2)}, {forward(1, 1)}};
  ActionReplay replay(topology, 3, replicas, first_rank, kInOrder, sums, links, lists);
  ASSERT_TRUE(replay.run());
  EXPECT_EQ(replay.ends(), (std::vector<Seconds>{Seconds(0.75), Seconds(2.375), Seconds(1.625)}));
}

/// Two stages of one rank need no message: 1 + 2 + 4 + 2 s. What is left of a backward follows it: 3 s more.
TEST(ActionReplay, SendsNothingWithinARank) {
  const Topology topology = testing::flat_topology(1);
  const std::vector<int> replicas{1, 1};
  const std::vector<int> first_rank{0, 0};
  const std::vector<StageSums> sums{stage(1, 2, 3), stage(2, 4)};
  const std::vector<StageLink> links{link(0, 1, 100, 100)};
  const Lists lists{{forward(0, 0), forward(1, 0), backward(1, 0), backward(0, 0), weights(0, 0)}};
  ActionReplay replay(topology, 1, replicas, first_rank, kInOrder, sums, links, lists);
  ASSERT_TRUE(replay.run());
  EXPECT_EQ(replay.ends(), std::vector<Seconds>{Seconds(12)});
}

/// Without gradients the first stage's backward waits for its forward alone: 1 + 2 s.
TEST(ActionReplay, WaitsForNoGradientsWhereNoneComeBack) {
  const Topology topology = testing::flat_topology(2);
  const std::vector<int> replicas{1, 1};
  const std::vector<int> first_rank{0, 1};
  const std::vector<StageSums> sums{stage(1, 2), stage(2, 4)};
  std::vector<StageLink> links{link(0, 1, 0.5, 0)};
  links[0].gradient = false;
  const Lists lists{{forward(0, 0), backward(0, 0)}, {forward(1, 0), backward(1, 0)}};
  ActionReplay replay(topology, 1, replicas, first_rank, kInOrder, sums, links, lists);
  ASSERT_TRUE(replay.run());
  EXPECT_EQ(replay.ends(), (std::vector<Seconds>{Seconds(3), Seconds(7.5)}));
}

TEST(ActionReplay, SaysThatListsDeadlock) {
  const Topology topology = testing::flat_topology(2);
  const std::vector<int> replicas{1, 1};
  const std::vector<int> first_rank{0, 1};
  const std::vector<StageSums> sums{stage(1, 2), stage(2, 4)};
  const std::vector<StageLink> links{link(0, 1, 0.5, 0.25)};
  // Each waits for the other's next microbatch.
  const Lists lists{{forward(0, 0), backward(0, 0), forward(0, 1), backward(0, 1)},
                    {forward(1, 0), forward(1, 1), backward(1, 0), backward(1, 1)}};
  ActionReplay replay(topology, 2, replicas, first_rank, kInOrder, sums, links, lists);
  EXPECT_FALSE(replay.run());
}

/// The ends of the ranks, from the definition: every action begins when the one before it on its rank has ended and its
/// message has come; every message when it is sent and the one before it between its two ranks has come. Times grow
/// until nothing changes.
std::vector<Seconds> ends_by_definition(int microbatches, const std::vector<int>& replicas,
                                        const std::vector<int>& first_rank, const std::vector<StageSums>& sums,
                                        const std::vector<StageLink>& links, const Lists& lists) {
  const auto size = [&](std::size_t count) { return std::vector<Seconds>(count * to_index(microbatches)); };
  const auto at = [&](int number, int m) { return to_index(number * microbatches + m); };
  using ThereAndBack = std::array<std::vector<Seconds>, 2>;
  ThereAndBack done{size(sums.size()), size(sums.size())};       // forwards, backwards
  ThereAndBack arrived{size(links.size()), size(links.size())};  // activations, gradients
  std::vector<Seconds> out(lists.size());
  for (bool changed = true; changed;) {
    changed = false;
    const auto raise = [&](Seconds& time, Seconds to) {
      changed = changed || time < to;
      time = std::max(time, to);
    };
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      Seconds now;
      for (const Action& action : lists[rank]) {
        const bool is_back = action.kind == ActionKind::Backward;
        const std::size_t way = is_back ? 1 : 0;
        for (std::size_t l = 0; l < links.size(); ++l) {
          if ((is_back ? links[l].from : links[l].to) == action.stage)
            now = std::max(now, arrived[way][at(static_cast<int>(l), action.microbatch)]);
        }
        if (is_back) now = std::max(now, done[0][at(action.stage, action.microbatch)]);
        now += is_back ? sums[to_index(action.stage)].backward : sums[to_index(action.stage)].forward;
        raise(done[way][at(action.stage, action.microbatch)], now);
      }
      out[rank] = now;
    }
    for (int l = 0; l < static_cast<int>(links.size()); ++l) {
      const StageLink& one = links[to_index(l)];
      const auto pair = [&](int m) {
        return std::pair(runner_of(first_rank[to_index(one.from)], replicas[to_index(one.from)], m),
                         runner_of(first_rank[to_index(one.to)], replicas[to_index(one.to)], m));
      };
      for (int m = 0; m < microbatches; ++m) {
        for (const std::size_t way : {0U, 1U}) {
          Seconds sent = done[way][at(way == 0 ? one.from : one.to, m)];
          for (int earlier = 0; earlier < m; ++earlier) {
            if (pair(earlier) == pair(m)) sent = std::max(sent, arrived[way][at(l, earlier)]);
          }
          raise(arrived[way][at(l, m)], sent + (way == 0 ? one.forward : one.back).front());
        }
      }
    }
  }
  return out;
}

TEST(ActionReplay, IsTheLongestPathOfRandomPipelines) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto some = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most)); };
    const int stages = 1 + some(4);
    PipelineShape shape;
    shape.stages = stages;
    shape.microbatches = 1 + some(6);
    std::vector<StageSums> sums;
    std::vector<StageLink> links;
    for (int s = 0; s < stages; ++s) {
      shape.replicas.push_back(1 + some(3));
      sums.push_back(stage(1 + some(8), 1 + some(8)));
      for (int to = s + 1; to < stages; ++to) {
        if (to == s + 1 || some(3) == 0) links.push_back(link(s, to, some(4), some(4)));
      }
    }
    shape.warmups = warmup_counts(shape.replicas);
    const std::vector<int> first_rank = first_ranks(shape.replicas, stages, Placement::Loop);
    const Lists lists = compute_lists(schedule_by_name(some(2) == 0 ? "1f1b" : "gpipe"), shape);
    const Topology topology = testing::flat_topology(static_cast<int>(lists.size()));
    ActionReplay replay(topology, shape.microbatches, shape.replicas, first_rank, kInOrder, sums, links, lists);
    ASSERT_TRUE(replay.run());
    EXPECT_EQ(replay.ends(), ends_by_definition(shape.microbatches, shape.replicas, first_rank, sums, links, lists));
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
