#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/simulation/simulate.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using stagecraft::testing::chain_graph;
using stagecraft::testing::one_layer_a_stage;
using stagecraft::testing::row_plan;

double end_of(const SimulationInput& input) { return std::get<Timeline>(simulate(input)).steps.back().end.value; }

/// Ranks of one host, each with one Update of that many seconds.
SimulationInput updates(const std::vector<double>& seconds, int processors) {
  const std::size_t n = seconds.size();
  SimulationInput out{.plan = BoundPlan(row_plan("gpipe", std::vector<int>(n, 1), 1)), .lists = {}, .stages = {}};
  for (std::size_t rank = 0; rank < n; ++rank) {
    out.lists.push_back({{ActionKind::Update, to_int(rank), -1, -1}});
    out.stages.push_back({{}, {}, {}, {}, Seconds(seconds[rank])});
  }
  out.hosts.of_rank.assign(n, 0);
  out.hosts.processors = processors;
  return out;
}

TEST(SharedHost, TwoRanksOnOneProcessorTakeTwiceAsLong) {
  EXPECT_DOUBLE_EQ(end_of(updates({4, 4}, 1)), 8);
  // 1 s and 4 s: the short one ends at 2 s, when the long one has 3 s left for itself.
  EXPECT_DOUBLE_EQ(end_of(updates({1, 4}, 1)), 5);
  EXPECT_DOUBLE_EQ(end_of(updates({4, 4}, 2)), 4);
  EXPECT_DOUBLE_EQ(end_of(updates({4, 4}, 0)), 4);
  SimulationInput apart = updates({4, 4}, 1);
  apart.hosts.of_rank = {0, 1};
  EXPECT_DOUBLE_EQ(end_of(apart), 4);
}

// Ranks 0 and 2 share the first processor. When the other one is idle, it takes one of them after kBalanceAfter.
TEST(SharedHost, OfThreeRanksOnTwoProcessorsTwoShareOne) {
  const double after = kBalanceAfter.value;
  // Rank 1 ends at 4 s, when each of the others has 2 s left; until 4.004 s they share, then they run beside each
  // other.
  EXPECT_DOUBLE_EQ(end_of(updates({4, 4, 4}, 2)), 4 + after + (2 - after / 2));
  // Rank 0 ends at 4 s, and so does rank 1; rank 2 has 2 s left.
  EXPECT_DOUBLE_EQ(end_of(updates({2, 4, 4}, 2)), 4 + 2);
  // Rank 1 ends at 1 s. From 1.004 s the others have a processor each.
  EXPECT_DOUBLE_EQ(end_of(updates({4, 1, 4}, 2)), 1 + after + (4 - (1 + after) / 2));
}

TEST(SharedHost, AProcessorThatTakesThreadsAtOnceIsNeverIdleBesideThem) {
  SimulationInput input = updates({4, 4, 4}, 2);
  input.hosts.balance_after = Seconds(0);
  EXPECT_DOUBLE_EQ(end_of(input), 6);
}

TEST(SharedHost, AnIdleProcessorTakesNoThreadThatEndsBefore) {
  // Rank 1 ends at 1 s; the others share until they end, 2 ms later.
  EXPECT_DOUBLE_EQ(end_of(updates({0.501, 1, 0.501}, 2)), 1.002);
}

TEST(SharedHost, ARankNeedsAProcessorForEachThread) {
  SimulationInput input = updates({4, 4}, 2);
  input.hosts.compute_processors = 2;
  EXPECT_DOUBLE_EQ(end_of(input), 8);
  // Alone it was measured on the processors there are, with three threads too.
  input = updates({4}, 2);
  input.hosts.compute_processors = 3;
  EXPECT_DOUBLE_EQ(end_of(input), 4);
}

TEST(SharedHost, ASlowdownOfMoreRanksThanProcessorsContainsTheSharing) {
  const auto slowed = [](std::size_t ranks, std::vector<double> slowdown) {
    SimulationInput input = updates(std::vector<double>(ranks, 4), 2);
    input.hosts.slowdown = std::move(slowdown);
    input.hosts.balance_after = Seconds(0);
    return end_of(input);
  };
  EXPECT_DOUBLE_EQ(slowed(2, {1, 1.2, 1.8}), 4 * 1.2);
  EXPECT_DOUBLE_EQ(slowed(3, {1, 1.2, 1.8}), 4 * 1.8);
  // Not measured: 1.8 / (3/2) = 1.2 for the memory, and half a processor each.
  EXPECT_DOUBLE_EQ(slowed(4, {1, 1.2, 1.8}), 4 * 1.2 * 2);
  // Measured faster than two processors can compute three ranks: processor time is conserved.
  EXPECT_DOUBLE_EQ(slowed(3, {1, 1, 1.2}), 4 * 1.5);
  // Nor do more ranks contend less for memory than the two that compute at a time.
  EXPECT_DOUBLE_EQ(slowed(3, {1, 1.2, 1.5}), 4 * 1.2 * 1.5);
  EXPECT_DOUBLE_EQ(slowed(4, {1, 1.2, 1.5}), 4 * 1.2 * 2);
  // Measured for fewer ranks than processors: a free processor does not slow down.
  SimulationInput input = updates({4, 4, 4}, 8);
  input.hosts.slowdown = {1, 1.1};
  EXPECT_DOUBLE_EQ(end_of(input), 4 * 1.1);
}

/// Stage 0 computes microbatch 0 for 2 s, sends it and computes microbatch 1; stage 1 computes what it receives for
/// 1 s. The message takes 1 s, `sender` and `receiver` of it on processors, while it moves.
SimulationInput pair_of_stages(MessageThread thread, int processors, double sender, double receiver) {
  SimulationInput out{.plan = BoundPlan(row_plan("gpipe", {1, 1}, 2)),
                      .lists = {{{ActionKind::Forward, 0, 0, -1},
                                 {ActionKind::SendActivation, 0, 0, 1},
                                 {ActionKind::Forward, 0, 1, -1}},
                                {{ActionKind::ReceiveActivation, 1, 0, 0}, {ActionKind::Forward, 1, 0, -1}}},
                      .stages = {{Seconds(2), {}, {}, {}, {}}, {Seconds(1), {}, {}, {}, Seconds(3)}}};
  out.transfer = [=](int, bool, int, int) {
    return Transfer{.latency = {},
                    .transmission = Seconds(1),
                    .sender = {{}, Seconds(sender)},
                    .receiver = {{}, Seconds(receiver)}};
  };
  out.hosts.of_rank = {0, 0};
  out.hosts.processors = processors;
  out.hosts.message_thread = thread;
  return out;
}

TEST(SharedHost, HandlingAMessageTakesProcessorsFromComputations) {
  // Three processors: the message moves from 2 to 3 beside microbatch 1.
  EXPECT_DOUBLE_EQ(end_of(pair_of_stages(MessageThread::Separate, 3, 1, 1)), 4);
  // Two: microbatch 1 shares one with the receiver, the sender has the other until 3. That takes the receiver, which
  // has half a second left, kBalanceAfter later; when it ends, stage 1 computes there, and both computations have 1 s
  // left.
  EXPECT_DOUBLE_EQ(end_of(pair_of_stages(MessageThread::Separate, 2, 1, 1)), 4.5 + kBalanceAfter.value / 2);
  // One: 2 + 2 + 1 s of computation and 2 s of handling.
  EXPECT_DOUBLE_EQ(end_of(pair_of_stages(MessageThread::Separate, 1, 1, 1)), 7);
}

TEST(SharedHost, ARanksOwnThreadDoesNotComputeWhileItHandlesAMessage) {
  // Sends from 2 to 3, computes microbatch 1 until 5; the other end receives from 3 to 4.
  EXPECT_DOUBLE_EQ(end_of(pair_of_stages(MessageThread::Own, 2, 1, 1)), 5);
  // If only the receiver has work, the sender computes at once: 2 + 2, and 2 + 1 + 1 at the other end.
  EXPECT_DOUBLE_EQ(end_of(pair_of_stages(MessageThread::Own, 2, 0, 1)), 4);
}

TEST(SharedHost, ARanksOwnThreadReceivesWhenItWaits) {
  // Stage 1 updates for 3 s first. A separate thread has received the message by then.
  const auto busy = [](MessageThread thread) {
    SimulationInput input = pair_of_stages(thread, 4, 0, 1);
    input.lists[0].pop_back();
    input.lists[1].insert(input.lists[1].begin() + 1, {ActionKind::Update, 1, -1, -1});
    return end_of(input);
  };
  EXPECT_DOUBLE_EQ(busy(MessageThread::Separate), 3 + 1);
  EXPECT_DOUBLE_EQ(busy(MessageThread::Own), 3 + 1 + 1);
}

/// Two replicas of stage 0 each send a microbatch at 1 s to the rank of stage 1, which has updated for 5 s.
SimulationInput two_senders(MessageThread thread) {
  SimulationInput out{.plan = BoundPlan(row_plan("gpipe", {2, 1}, 2)),
                      .lists = {{{ActionKind::Forward, 0, 0, -1}, {ActionKind::SendActivation, 0, 0, 1}},
                                {{ActionKind::Forward, 0, 1, -1}, {ActionKind::SendActivation, 0, 1, 1}},
                                {{ActionKind::ReceiveActivation, 1, 0, 0},
                                 {ActionKind::ReceiveActivation, 1, 1, 0},
                                 {ActionKind::Update, 1, -1, -1},
                                 {ActionKind::Forward, 1, 0, -1},
                                 {ActionKind::Forward, 1, 1, -1}}},
                      .stages = {{Seconds(1), {}, {}, {}, {}}, {Seconds(1), {}, {}, {}, Seconds(5)}}};
  out.transfer = [](int, bool, int, int) {
    return Transfer{.latency = {}, .transmission = Seconds(1), .receiver = {{}, Seconds(1)}};
  };
  out.hosts.of_rank = {0, 0, 0};
  out.hosts.processors = 8;
  out.hosts.message_thread = thread;
  return out;
}

double start_of(const Timeline& timeline, int rank, ActionKind kind, int microbatch) {
  for (const Span& span : timeline.spans) {
    if (span.rank == rank && span.action.kind == kind && span.action.microbatch == microbatch) return span.start.value;
  }
  return -1;
}

TEST(SharedHost, AWaitReceivesAllMessagesThatHaveArrived) {
  const auto timeline = std::get<Timeline>(simulate(two_senders(MessageThread::Own)));
  EXPECT_DOUBLE_EQ(start_of(timeline, 2, ActionKind::Forward, 0), 5 + 2);
  EXPECT_DOUBLE_EQ(timeline.steps.front().end.value, 5 + 2 + 2);
}

TEST(SharedHost, AThreadHandlesOneMessageAtATime) {
  SimulationInput input = two_senders(MessageThread::Separate);
  input.stages[1].update = Seconds(0);
  const auto timeline = std::get<Timeline>(simulate(input));
  // Both come at 1 s; received by 2 and by 3.
  EXPECT_DOUBLE_EQ(start_of(timeline, 2, ActionKind::Forward, 0), 2);
  EXPECT_DOUBLE_EQ(start_of(timeline, 2, ActionKind::Forward, 1), 3);
}

TEST(SharedHost, HandlingIsPartOfAnIdleMessage) {
  const auto time_of = [](MessageThread thread, const Transfer& transfer) {
    SimulationInput input = pair_of_stages(thread, 8, 0, 0);
    input.lists[0].pop_back();
    input.transfer = [=](int, bool, int, int) { return transfer; };
    return end_of(input) - 2 - 1;
  };
  const auto message = [](double latency, double transmission, Handling sender, Handling receiver) {
    return Transfer{
        .latency = Seconds(latency), .transmission = Seconds(transmission), .sender = sender, .receiver = receiver};
  };
  const auto handling = [](double fixed, double streaming) { return Handling{Seconds(fixed), Seconds(streaming)}; };
  for (const MessageThread thread : {MessageThread::Separate, MessageThread::Own})
    EXPECT_DOUBLE_EQ(time_of(thread, message(0.5, 1, handling(0.1, 0.2), handling(0.1, 0.3))), 1.5);
  // More handling than the latency leaves less transmission.
  for (const MessageThread thread : {MessageThread::Separate, MessageThread::Own})
    EXPECT_DOUBLE_EQ(time_of(thread, message(0.5, 1, handling(0.5, 0), handling(0.25, 0))), 1.5);
  // More than the message: 0.3, then the longer stream, 0.4, then 0.2; or all of one end, then of the other.
  const Transfer much = message(0.1, 0.2, handling(0.3, 0.1), handling(0.2, 0.4));
  EXPECT_DOUBLE_EQ(time_of(MessageThread::Separate, much), 0.3 + 0.4 + 0.2);
  EXPECT_DOUBLE_EQ(time_of(MessageThread::Own, much), 0.4 + 0.6);
}

/// A random pipeline on one or two hosts, with random costs.
SimulationInput random_input(std::mt19937& random) {
  std::uniform_real_distribution<double> time(0.1, 5);
  std::uniform_real_distribution<double> share(0, 0.6);
  const char* const schedules[] = {"gpipe", "1f1b", "zb-h1", "pipedream"};
  const std::string schedule = schedules[random() % 4];
  std::vector<int> replicas(2 + random() % 3, 1);
  const int microbatches = static_cast<int>(2 + random() % 6);
  if (schedule == "gpipe" || schedule == "1f1b") {
    for (int& count : replicas) count = static_cast<int>(1 + random() % 2);
  }
  BoundPlan plan(row_plan(schedule, replicas, microbatches));
  const int steps = plan.step_window().steps;
  auto lists = plan.action_lists(steps, static_cast<int>(random() % 3));
  SimulationInput out{.plan = std::move(plan), .lists = std::move(lists), .stages = {}, .steps = steps};
  for (std::size_t s = 0; s < replicas.size(); ++s)
    out.stages.push_back({Seconds(time(random)), Seconds(time(random)), Seconds(time(random)), Seconds(time(random)),
                          Seconds(time(random))});
  Transfer cost{.latency = Seconds(share(random)), .transmission = Seconds(share(random))};
  cost.sender = {Seconds(share(random) / 2), Seconds(share(random))};
  cost.receiver = {Seconds(share(random) / 2), Seconds(share(random))};
  out.transfer = [cost](int, bool, int, int) { return cost; };
  const int hosts = static_cast<int>(1 + random() % 2);
  for (std::size_t rank = 0; rank < out.lists.size(); ++rank) out.hosts.of_rank.push_back(to_int(rank) % hosts);
  out.hosts.processors = static_cast<int>(1 + random() % 3);
  out.hosts.compute_processors = static_cast<int>(1 + random() % 2);
  out.hosts.message_thread = random() % 2 == 0 ? MessageThread::Separate : MessageThread::Own;
  return out;
}

TEST(SharedHost, ConservesProcessorTime) {
  const unsigned seed = 16;
  std::mt19937 random(seed);
  for (int i = 0; i < 400; ++i) {
    SimulationInput input = random_input(random);
    const auto simulated = simulate(input);
    ASSERT_TRUE(std::holds_alternative<Timeline>(simulated))
        << "seed " << seed << " case " << i << ": " << std::get<Infeasible>(simulated).reason;
    const auto& timeline = std::get<Timeline>(simulated);
    const double threads = std::min(input.hosts.compute_processors, input.hosts.processors);
    std::vector<double> needed(2);
    for (const Span& span : timeline.spans) {
      const StageCost& stage = input.stages[to_index(span.action.stage)];
      double& host = needed[to_index(input.hosts.of_rank[to_index(span.rank)])];
      switch (span.action.kind) {
        case ActionKind::Forward:
          host += threads * stage.forward.value;
          break;
        case ActionKind::Backward:
          host += threads * stage.backward.value;
          break;
        case ActionKind::WeightGradient:
          host += threads * stage.weight_gradient.value;
          break;
        case ActionKind::Update:
          host += threads * stage.update.value;
          break;
        case ActionKind::SendActivation:
        case ActionKind::SendGradient: {
          const Transfer cost = input.transfer(0, false, 0, 0);
          const int peer = input.plan.runner(span.action.peer, span.action.microbatch);
          host += (cost.sender.fixed + cost.sender.streaming).value;
          needed[to_index(input.hosts.of_rank[to_index(peer)])] +=
              (cost.receiver.fixed + cost.receiver.streaming).value;
          break;
        }
        default:
          break;
      }
    }
    const double end = timeline.steps.back().end.value;
    for (const double host : needed)
      EXPECT_GE(end, host / input.hosts.processors * (1 - 1e-12)) << "seed " << seed << " case " << i;
    // No sharing, no handling: never slower.
    SimulationInput idle = input;
    idle.hosts.processors = 0;
    idle.transfer = [cost = input.transfer(0, false, 0, 0)](int, bool, int, int) {
      return Transfer{.latency = cost.latency, .transmission = cost.transmission};
    };
    EXPECT_LE(end_of(idle), end * (1 + 1e-12)) << "seed " << seed << " case " << i;
  }
}

TEST(SharedHost, ChangesNothingWhereThereAreEnoughProcessors) {
  const unsigned seed = 61;
  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    SimulationInput input = random_input(random);
    input.transfer = [cost = input.transfer(0, false, 0, 0)](int, bool, int, int) {
      return Transfer{.latency = cost.latency, .transmission = cost.transmission};
    };
    input.hosts.processors = 0;
    const auto expected = std::get<Timeline>(simulate(input));
    input.hosts.processors = 64;
    EXPECT_EQ(std::get<Timeline>(simulate(input)), expected) << "seed " << seed << " case " << i;
  }
}

// Rank 1 waits for the activation of rank 0, 1 s of computing, and then computes 1 s itself; waking costs it 0.25 s.
TEST(SharedHost, WakingForAMessageTakesAProcessorOfACrowdedHost) {
  const auto end = [](int processors, MessageThread thread) {
    SimulationInput input{.plan = BoundPlan(row_plan("forward", {1, 1}, 1)), .lists = {}, .stages = {}};
    input.lists = {{{ActionKind::Forward, 0, 0, -1}, {ActionKind::SendActivation, 0, 0, 1}},
                   {{ActionKind::ReceiveActivation, 1, 0, 0}, {ActionKind::Forward, 1, 0, -1}}};
    input.stages.assign(2, {Seconds(1), {}, {}, {}, {}});
    input.transfer = [](int, bool, int, int) { return Transfer{}; };
    input.hosts.of_rank = {0, 0};
    input.hosts.processors = processors;
    input.hosts.message_thread = thread;
    input.hosts.wake = Seconds(0.25);
    return end_of(input);
  };
  EXPECT_DOUBLE_EQ(end(1, MessageThread::Own), 2.25);
  EXPECT_DOUBLE_EQ(end(2, MessageThread::Own), 2);
  EXPECT_DOUBLE_EQ(end(3, MessageThread::Separate), 2.25) << "four threads, two of them for messages";
  EXPECT_DOUBLE_EQ(end(4, MessageThread::Separate), 2);
}

/// A host of devices that are processors. Messages take 1 s and 1 s per byte; of that a sender's thread needs 0.25 s
/// and 0.5 s per byte, a receiver's 0.5 s per byte.
Topology host_of(int ranks, int processors, MessageThread thread = MessageThread::Separate) {
  Topology out;
  out.name = "host";
  out.device.name = "CPU";
  out.device.kind = DeviceKind::Processor;
  out.device.host_processors = processors;
  Link link{BytesPerSecond(1), Seconds(1), {}, {}};
  link.processing = MessageProcessing{thread,
                                      {{{Bytes(1), Seconds(0.75)}, {Bytes(3), Seconds(1.75)}}},
                                      {{{Bytes(1), Seconds(0.5)}, {Bytes(3), Seconds(1.5)}}}};
  out.levels = {{"host", ranks, link}};
  return out;
}

/// Stages of 1 s forward and 2 s backward whose messages are 3 bytes.
Graph stages_of(int count) {
  const std::size_t n = to_index(count);
  return chain_graph(std::vector<double>(n, 1), std::vector<double>(n, 2), Bytes(3));
}

BoundPlan plan_for(const Graph& graph, const Topology& topology, const std::string& schedule, int microbatches) {
  return BoundPlan(
      one_layer_a_stage(graph, topology, std::vector<int>(graph.layers.size(), 1), schedule, microbatches));
}

TEST(PredictSharedHost, ChargesMessagesByTheMeasuredCurves) {
  const Graph graph = stages_of(3);
  const Topology topology = host_of(3, 2);
  const SimulationInput input = simulation_input(graph, topology, plan_for(graph, topology, "gpipe", 2));
  EXPECT_EQ(input.hosts.processors, 2);
  EXPECT_EQ(input.hosts.compute_processors, 1);
  EXPECT_EQ(input.hosts.of_rank, (std::vector<int>{0, 0, 0}));
  const Transfer message = input.transfer(0, false, 0, 1);
  EXPECT_EQ(input.hosts.wake, kWakeOnCrowdedHost);
  // The time of the curve's first point is fixed.
  EXPECT_DOUBLE_EQ(message.sender.fixed.value, 0.75);
  EXPECT_DOUBLE_EQ(message.sender.streaming.value, 1);
  EXPECT_DOUBLE_EQ(message.receiver.fixed.value, 0.5);
  EXPECT_DOUBLE_EQ(message.receiver.streaming.value, 1);
}

TEST(PredictSharedHost, ChargesNothingWhereNothingIsShared) {
  const Graph graph = stages_of(3);
  const auto sender_of = [&](const Topology& topology) {
    const SimulationInput input = simulation_input(graph, topology, plan_for(graph, topology, "gpipe", 2));
    return input.transfer(0, false, 0, 1).sender.fixed.value;
  };
  EXPECT_EQ(sender_of(host_of(3, 5)), 0.75);  // three ranks and their threads for messages need six
  EXPECT_EQ(sender_of(host_of(3, 6)), 0);
  EXPECT_EQ(sender_of(host_of(3, 0)), 0);  // unknown
  // A thread that computes cannot receive at the same time, however many processors there are.
  EXPECT_EQ(sender_of(host_of(3, 6, MessageThread::Own)), 0.75);
  Topology gpus = host_of(3, 2);
  gpus.device.kind = DeviceKind::Gpu;
  EXPECT_EQ(sender_of(gpus), 0);
}

TEST(PredictSharedHost, RanksOfSeveralHostsHaveAThreadForMessages) {
  const Graph graph = stages_of(3);
  Topology topology = host_of(2, 2, MessageThread::Own);
  topology.levels.push_back({"network", 2, topology.levels.front().link});
  EXPECT_EQ(simulation_input(graph, topology, plan_for(graph, topology, "gpipe", 2)).hosts.message_thread,
            MessageThread::Separate);
  const Graph small = stages_of(2);
  EXPECT_EQ(simulation_input(small, topology, plan_for(small, topology, "gpipe", 2)).hosts.message_thread,
            MessageThread::Own);
}

TEST(PredictSharedHost, SaysIfMessagesAreNotCharged) {
  const Graph graph = stages_of(3);
  const auto text_of = [&](const Topology& topology) {
    return std::get<Prediction>(predict(graph, topology, plan_for(graph, topology, "gpipe", 2))).message_processing;
  };
  Topology topology = host_of(3, 2);
  EXPECT_EQ(text_of(topology), "");
  topology.levels[0].link.processing.reset();
  EXPECT_EQ(text_of(topology),
            "3 ranks share 2 processors; messages are assumed to take no processor time, because the topology does not "
            "say how much");
  topology.device.host_processors = 3;
  EXPECT_EQ(text_of(topology), "");
}

TEST(PredictSharedHost, PartsAddUpAndLongStepsRepeatThemselves) {
  for (const MessageThread thread : {MessageThread::Separate, MessageThread::Own}) {
    for (const int processors : {1, 2}) {
      const Graph graph = stages_of(3);
      const Topology topology = host_of(3, processors, thread);
      PredictOptions options;
      const auto prediction = [&] {
        return std::get<Prediction>(predict(graph, topology, plan_for(graph, topology, "1f1b", 2000), options));
      };
      const Prediction whole = prediction();
      EXPECT_EQ(whole.reckoned_microbatches, 0);
      options.most_whole = 1000;
      const Prediction shortened = prediction();
      EXPECT_GT(shortened.reckoned_microbatches, 0);
      EXPECT_NEAR(shortened.iteration / whole.iteration, 1, 1e-9);
      for (const Prediction& answer : {whole, shortened}) {
        for (const StagePrediction& stage : answer.stages) {
          const Seconds sum = stage.compute + stage.update + stage.reduce + stage.exposed_transfer + stage.bubble;
          EXPECT_NEAR(sum / answer.iteration, 1, 1e-9);
        }
      }
    }
  }
}

}  // namespace
}  // namespace stagecraft
