#include "costmodel/simulation/critical_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <tuple>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/simulation/simulate.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using testing::flat_topology;
using testing::one_layer_a_stage;

/// The kinds and stages of a path, in the order of time.
std::vector<std::string> actions(const CriticalPath& path) {
  std::vector<std::string> out;
  for (const Span& span : path.segments) out.push_back(action_text(span.action));
  return out;
}

Timeline replayed(const SimulationInput& input) { return std::get<Timeline>(simulate(input)); }

// Two stages of F 1 s and B 2 s, a message of 0.5 s, 1f1b: the same numbers as the golden case 1f1b with two
// microbatches. rank 0: F0 0-1, F1 1-2, B0 5-7, B1 8-10. rank 1: F0 1.5-2.5, B0 2.5-4.5, F1 4.5-5.5, B1 5.5-7.5; the
// gradients travel 4.5-5 and 7.5-8.
TEST(CriticalPath, IsTheChainThatEndsTheStep) {
  const Graph graph = chain_graph({1, 1}, {2, 2}, Bytes(500));
  const Topology topology = flat_topology(2, 1000);
  const SimulationInput input =
      simulation_input(graph, topology, BoundPlan(one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 2)));
  const Timeline timeline = replayed(input);
  const CriticalPath path = critical_path(input, timeline, Seconds(0), 0);
  EXPECT_THAT(actions(path), ::testing::ElementsAre("0F0", "0SEND_F0", "1F0", "1B0", "1F1", "1B1", "1SEND_B1", "0B1"));
  EXPECT_EQ(path.segments.front().start, Seconds(0));
  EXPECT_EQ(path.segments.back().end, Seconds(10));
}

// Of rank 0's list F0 F1 B0 B1 UPDATE: F1 ends at 2, its message travels 2-2.5 and is needed at 4.5: 2 s of slack. B0
// ends at 7, B1 begins at 8: 1 s.
TEST(CriticalPath, LeavesOtherActionsTheirSlack) {
  const Graph graph = chain_graph({1, 1}, {2, 2}, Bytes(500));
  const Topology topology = flat_topology(2, 1000);
  const SimulationInput input =
      simulation_input(graph, topology, BoundPlan(one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 2)));
  const CriticalPath path = critical_path(input, replayed(input), Seconds(0), 0);
  EXPECT_THAT(path.slack[0], ::testing::ElementsAre(Seconds(0), Seconds(2), Seconds(1), Seconds(0), Seconds(0)));
}

/// A replay without the simulator: repeated passes over the lists until nothing moves. Each computation takes its
/// stage's time and `more` of its own; a message takes the input's latency; nothing is shared.
class PlainReplay {
 public:
  explicit PlainReplay(const SimulationInput& input) : in_(input) {}

  Seconds end(std::pair<int, int> changed = {-1, -1}, Seconds more = {}) {
    ends_.clear();
    arrivals_.clear();
    Seconds last;
    // Lists of n actions are in order after at most n passes.
    for (bool moved = true; moved;) {
      moved = false;
      last = Seconds(0);
      std::map<std::pair<int, int>, Seconds> arrived_members;
      std::map<std::tuple<int, bool, int, int>, Seconds> lane_free;
      posted_.clear();
      for (std::size_t rank = 0; rank < in_.lists.size(); ++rank) post(to_int(rank));
      for (std::size_t rank = 0; rank < in_.lists.size(); ++rank) {
        Seconds now;
        for (std::size_t i = 0; i < in_.lists[rank].size(); ++i) {
          const Action& action = in_.lists[rank][i];
          const bool extra = changed == std::pair(to_int(rank), to_int(i));
          moved = set(to_int(rank), to_int(i), action, now, extra ? more : Seconds(0)) || moved;
          last = std::max(last, now);
        }
      }
    }
    return last;
  }

 private:
  using Message = std::tuple<int, int, int, bool>;  // (from stage, to stage, microbatch, gradient)

  static bool gradient(ActionKind kind) {
    return kind == ActionKind::SendGradient || kind == ActionKind::ReceiveGradient;
  }
  static bool transfer(ActionKind kind) {
    return kind == ActionKind::SendActivation || kind == ActionKind::ReceiveActivation || gradient(kind);
  }
  static bool send(ActionKind kind) { return kind == ActionKind::SendActivation || kind == ActionKind::SendGradient; }

  /// When each receive is posted, by the ends known so far.
  void post(int rank) {
    Seconds now;
    for (std::size_t i = 0; i < in_.lists[to_index(rank)].size(); ++i) {
      const Action& action = in_.lists[to_index(rank)][i];
      if (!transfer(action.kind))
        now = ends_[{rank, to_int(i)}];
      else if (!send(action.kind))
        posted_[{action.peer, action.stage, action.microbatch, gradient(action.kind)}] = now;
    }
  }

  bool set(int rank, int i, const Action& action, Seconds& now, Seconds more) {
    if (transfer(action.kind)) {
      if (!send(action.kind)) return false;
      const Message message{action.stage, action.peer, action.microbatch, gradient(action.kind)};
      const int boundary = *in_.plan.boundary(action.stage, action.peer);
      const int to = in_.plan.runner(action.peer, action.microbatch);
      // The message before it on its lane is the sender's latest of the same edge.
      Seconds begin = std::max(now, posted_[message]);
      for (int j = i - 1; j >= 0; --j) {
        const Action& other = in_.lists[to_index(rank)][to_index(j)];
        if (other.kind != action.kind || other.stage != action.stage || other.peer != action.peer ||
            in_.plan.runner(other.peer, other.microbatch) != to)
          continue;
        begin = std::max(begin, arrivals_[{other.stage, other.peer, other.microbatch, gradient(other.kind)}]);
        break;
      }
      const Seconds end = begin + in_.transfer(boundary, gradient(action.kind), rank, to).latency;
      return std::exchange(arrivals_[message], end) != end;
    }
    Seconds begin = now;
    const StageCost& cost = in_.stages[to_index(action.stage)];
    Seconds time = cost.update;
    if (action.kind == ActionKind::Forward) time = cost.forward;
    if (action.kind == ActionKind::Backward) time = cost.backward;
    if (action.kind == ActionKind::WeightGradient) time = cost.weight_gradient;
    if (action.kind == ActionKind::Reduce) {  // one per step and rank: all replicas wait for each other
      time = cost.reduce;
      for (const int other : in_.plan.ranks_of(action.stage)) {
        Seconds arrival;
        for (std::size_t j = 0; in_.lists[to_index(other)][j].kind != ActionKind::Reduce; ++j) {
          if (!transfer(in_.lists[to_index(other)][j].kind)) arrival = ends_[{other, to_int(j)}];
        }
        begin = std::max(begin, arrival);
      }
    }
    const bool forward = action.kind == ActionKind::Forward;
    if (forward || action.kind == ActionKind::Backward) {
      for (const int b : forward ? in_.plan.incoming(action.stage) : in_.plan.outgoing(action.stage)) {
        const BoundaryEnds& ends = in_.plan.ends(b);
        if (!forward && !ends.gradient) continue;
        begin = std::max(
            begin, arrivals_[{forward ? ends.source : ends.destination, action.stage, action.microbatch, !forward}]);
      }
    }
    now = begin + time + more;
    return std::exchange(ends_[{rank, i}], now) != now;
  }

  const SimulationInput& in_;
  std::map<std::pair<int, int>, Seconds> ends_;
  std::map<Message, Seconds> arrivals_, posted_;
};

// Random chains, replicas, schedules and times, messages that occupy no port. The path has the step's length and no
// gap; lengthening any of its computations by eps lengthens the step by eps, as an independent replay finds; any other
// action may take its slack longer without effect, and a little more than its slack has one.
TEST(CriticalPath, LengthensTheStepAndSlackDoesNot) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](unsigned count) { return static_cast<int>(random() % count); };
    const auto time = [&] { return 0.1 + static_cast<double>(random() % 1000) / 500; };
    const int stages = 1 + below(4);
    std::vector<double> forward, backward;
    std::vector<int> replicas;
    int devices = 0;
    for (int s = 0; s < stages; ++s) {
      forward.push_back(time());
      backward.push_back(time());
      replicas.push_back(1 + below(2));
      devices += replicas.back();
    }
    const std::vector<std::string> schedules{"1f1b", "gpipe", "zb-h1"};
    const std::string schedule = schedules[to_index(below(3))];
    if (schedule == "zb-h1") replicas.assign(to_index(stages), 1);
    const Graph graph = chain_graph(forward, backward, Bytes(1000), Bytes(4000));
    const Topology topology = flat_topology(devices, 1e5);
    SimulationInput input = simulation_input(
        graph, topology, BoundPlan(one_layer_a_stage(graph, topology, replicas, schedule, 1 + below(6))));
    const double hop = time() / 4;
    input.transfer = [hop](int, bool, int, int) { return Transfer{Seconds(hop), {}, -1, -1}; };
    input.ports = 0;

    const Timeline timeline = replayed(input);
    const Seconds step = timeline.steps.back().end;
    PlainReplay plain(input);
    ASSERT_NEAR(plain.end().value, step.value, 1e-12 * step.value);
    const CriticalPath path = critical_path(input, timeline, Seconds(0), 0);
    ASSERT_FALSE(path.segments.empty());
    EXPECT_EQ(path.segments.front().start, Seconds(0));
    EXPECT_EQ(path.segments.back().end, step);
    for (std::size_t i = 1; i < path.segments.size(); ++i) EXPECT_EQ(path.segments[i].start, path.segments[i - 1].end);

    const double eps = 1e-3;
    for (std::size_t rank = 0; rank < input.lists.size(); ++rank) {
      std::size_t number = 0;
      for (std::size_t i = 0; i < input.lists[rank].size(); ++i) {
        const Action& action = input.lists[rank][i];
        const bool message = action.kind >= ActionKind::SendActivation && action.kind <= ActionKind::ReceiveGradient;
        if (message) continue;
        const Seconds slack = path.slack[rank].at(number++);
        if (action.kind == ActionKind::Reduce) continue;  // its members end together
        const auto longer = [&](Seconds more) { return (plain.end({to_int(rank), to_int(i)}, more) - step).value; };
        EXPECT_NEAR(longer(slack), 0, 1e-9) << action_text(action);
        EXPECT_NEAR(longer(slack + Seconds(eps)), eps, 1e-9) << action_text(action);
        for (const Span& segment : path.segments) {
          if (segment.rank == to_int(rank) && segment.action == action) {
            EXPECT_NEAR(longer(Seconds(eps)), eps, 1e-9) << action_text(action);
          }
        }
      }
    }
  }
}

TEST(CriticalPath, CoversTheWindowOfAnAsynchronousSchedule) {
  const Graph graph = chain_graph({1, 1}, {2, 2}, Bytes(500));
  const Topology topology = flat_topology(2, 1000);
  const BoundPlan plan(one_layer_a_stage(graph, topology, {1, 1}, "pipedream", 4));
  const SimulationInput input = simulation_input(graph, topology, plan);
  const Timeline timeline = replayed(input);
  const StepWindow window = plan.step_window();
  const Seconds begin = timeline.steps[to_index(window.first)].end;
  const CriticalPath path = critical_path(input, timeline, begin, window.last);
  EXPECT_EQ(path.segments.front().start, begin);
  EXPECT_EQ(path.segments.back().end, timeline.steps[to_index(window.last)].end);
  for (std::size_t i = 1; i < path.segments.size(); ++i) EXPECT_EQ(path.segments[i].start, path.segments[i - 1].end);
}

TEST(CriticalPath, RefusesWhatHasNone) {
  const Graph graph = chain_graph({1, 1}, {2, 2}, Bytes(500));
  const Topology topology = flat_topology(2, 1000);
  SimulationInput input =
      simulation_input(graph, topology, BoundPlan(one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 2)));
  Timeline timeline = replayed(input);
  EXPECT_THAT([&] { (void)critical_path(input, timeline, Seconds(0), 1); },
              ::testing::ThrowsMessage<std::invalid_argument>("the timeline has no such step"));
  timeline.spans.pop_back();
  EXPECT_THAT([&] { (void)critical_path(input, timeline, Seconds(0), 0); },
              ::testing::ThrowsMessage<std::invalid_argument>("the timeline is not a replay of all actions"));
  input.mode = TransferMode::Latency;
  EXPECT_THAT([&] { (void)critical_path(input, timeline, Seconds(0), 0); },
              ::testing::ThrowsMessage<std::invalid_argument>("messages that occupy no link have no critical path"));
}

}  // namespace
}  // namespace stagecraft
