#include "costmodel/simulation/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/index.h"

namespace stagecraft::simulation {
namespace {

Transfer transfer(double latency, double transmission, Handling sender, Handling receiver) {
  return {.latency = Seconds(latency), .transmission = Seconds(transmission), .sender = sender, .receiver = receiver};
}
Handling handling(double fixed, double streaming) { return {Seconds(fixed), Seconds(streaming)}; }

TEST(MessageCost, LeavesTheLatencyBesideTheFixedHandling) {
  const Transfer message = transfer(0.5, 1, handling(0.125, 0.5), handling(0.25, 0.5));
  EXPECT_DOUBLE_EQ(message_cost(message, false).latency.value, 0.125);
  EXPECT_DOUBLE_EQ(message_cost(message, false).transmission.value, 1);
  // The sender's streaming comes before the message moves: that much less is left.
  EXPECT_DOUBLE_EQ(message_cost(message, true).latency.value, 0.125);
  EXPECT_DOUBLE_EQ(message_cost(message, true).transmission.value, 1.5 - 0.125 - (0.125 + 0.5));
}

TEST(MessageCost, HandlingBeyondTheLatencyIsPartOfTheTransmission) {
  const Transfer message = transfer(0.5, 1, handling(0.5, 0), handling(0.25, 0));
  EXPECT_DOUBLE_EQ(message_cost(message, false).latency.value, 0);
  EXPECT_DOUBLE_EQ(message_cost(message, false).transmission.value, 0.75);
  // More handling than the whole message takes.
  const Transfer much = transfer(0.1, 0.2, handling(0.3, 0.1), handling(0.2, 0.4));
  EXPECT_DOUBLE_EQ(message_cost(much, false).transmission.value, 0);
}

/// Ranks of one host with that many processors, each with a thread that computes and one for messages.
HostInput ranks_of_one_host(std::size_t ranks, int processors) {
  HostInput out;
  out.of_rank.assign(ranks, 0);
  out.processors = processors;
  return out;
}

/// A host and its flows.
struct SharedHosts {
  explicit SharedHosts(HostInput ranks)
      : input(std::move(ranks)), hosts(input, has_one_thread(input, TransferMode::Rendezvous), flows) {}
  int start(int rank, Task::Kind kind, double seconds) {
    const int flow = flows.start({.kind = kind, .owner = rank}, Seconds(seconds));
    hosts.take(rank, flow);
    return flow;
  }
  int compute(int rank, double seconds = 1) { return start(rank, Task::Kind::Compute, seconds); }
  int handle(int rank, double seconds = 1) { return start(rank, Task::Kind::Handling, seconds); }
  /// The rate of a flow after all that happens at this moment.
  double rate(int flow) {
    hosts.share();
    return flows[flow].rate;
  }

  HostInput input;
  Flows flows;
  HostSharing hosts;
};

TEST(HostSharing, ComputationsShareAProcessorEqually) {
  SharedHosts run(ranks_of_one_host(2, 1));
  const int first = run.compute(0, 1);
  EXPECT_EQ(run.rate(first), 1);
  const int second = run.compute(1, 4);
  EXPECT_EQ(run.rate(first), 0.5);
  EXPECT_EQ(run.rate(second), 0.5);
  // The first ends at 2 s. The second has 3 s left for itself.
  EXPECT_EQ(run.flows.next(), first);
  run.hosts.give(0, first);
  EXPECT_EQ(run.rate(second), 1);
  EXPECT_EQ(run.flows.next(), second);
  EXPECT_EQ(run.flows.now(), Seconds(5));
}

TEST(HostSharing, MessagesHaveAThreadOfTheirOwn) {
  // Two processors: one for each computation; the message of rank 0 joins the shorter queue, that of the first.
  SharedHosts run(ranks_of_one_host(2, 2));
  const int first = run.compute(0);
  const int second = run.compute(1);
  const int message = run.handle(0);
  EXPECT_EQ(run.rate(first), 0.5);
  EXPECT_EQ(run.rate(message), 0.5);
  EXPECT_EQ(run.rate(second), 1);
}

TEST(HostSharing, WithOneThreadForAllARankNeedsOneProcessor) {
  HostInput input = ranks_of_one_host(2, 2);
  input.message_thread = MessageThread::Own;
  EXPECT_TRUE(has_one_thread(input, TransferMode::Rendezvous));
  SharedHosts run(input);
  const int first = run.compute(0);
  const int message = run.handle(1);
  EXPECT_EQ(run.rate(first), 1);
  EXPECT_EQ(run.rate(message), 1);
  EXPECT_FALSE(has_one_thread(input, TransferMode::Latency));
}

TEST(HostSharing, AComputationIsAsFastAsTheSlowestOfItsThreads) {
  // Three processors. The two threads of rank 0 take the first two, those of rank 1 the third and, as nothing is idle,
  // the first: both have one thread with half a processor.
  HostInput input = ranks_of_one_host(2, 3);
  input.compute_processors = 2;
  SharedHosts run(input);
  const int first = run.compute(0);
  EXPECT_EQ(run.rate(first), 1);
  const int second = run.compute(1);
  EXPECT_EQ(run.rate(first), 0.5);
  EXPECT_EQ(run.rate(second), 0.5);
}

TEST(HostSharing, MemorySlowsComputationsDownButNotMessages) {
  HostInput input = ranks_of_one_host(3, 0);
  input.slowdown = {1, 2};
  SharedHosts run(input);
  const int first = run.compute(0);
  EXPECT_EQ(run.rate(first), 1);
  const int message = run.handle(0);
  const int second = run.compute(1);
  EXPECT_EQ(run.rate(first), 0.5);
  EXPECT_EQ(run.rate(second), 0.5);
  EXPECT_EQ(run.rate(message), 1);
  // Not measured: in proportion, 3 / 2 of the last.
  const int third = run.compute(2);
  EXPECT_EQ(run.rate(first), 1.0 / 3);
  EXPECT_EQ(run.rate(third), 1.0 / 3);
}

TEST(HostSharing, ASlowdownOnFullProcessorsContainsTheSharing) {
  // Two computations on one processor were measured 2.5 times slower: 2 for the processor, 1.25 for the memory.
  HostInput input = ranks_of_one_host(2, 1);
  input.slowdown = {1, 2.5};
  SharedHosts run(input);
  const int first = run.compute(0);
  run.compute(1);
  EXPECT_EQ(run.rate(first), 0.5 * (1 / 1.25));
}

TEST(HostSharing, AnIdleProcessorTakesAWaitingThreadWhenItsTimerEnds) {
  HostInput input = ranks_of_one_host(3, 2);
  input.balance_after = Seconds(0.25);
  SharedHosts run(input);
  const int first = run.compute(0, 4);  // shares the first processor with the third
  const int second = run.compute(1, 1);
  const int third = run.compute(2, 4);
  EXPECT_EQ(run.rate(first), 0.5);
  EXPECT_EQ(run.flows.next(), second);
  run.hosts.give(1, second);
  EXPECT_EQ(run.rate(first), 0.5);
  const int timer = run.flows.next();
  EXPECT_EQ(run.flows[timer].task.kind, Task::Kind::Balance);
  EXPECT_EQ(run.flows.now(), Seconds(1.25));
  run.hosts.balance(run.flows[timer].task.owner);
  EXPECT_EQ(run.rate(first), 1);
  EXPECT_EQ(run.rate(third), 1);
}

TEST(HostSharing, TheTimerStopsIfNoThreadWaitsAnyMore) {
  HostInput input = ranks_of_one_host(3, 2);
  input.balance_after = Seconds(0.25);
  SharedHosts run(input);
  const int first = run.compute(0, 0.55);
  const int second = run.compute(1, 1);
  run.compute(2, 4);
  run.hosts.share();
  EXPECT_EQ(run.flows.next(), second);
  run.hosts.give(1, second);
  run.hosts.share();
  EXPECT_EQ(run.flows.next(), first);  // at 1.1 s, before the timer
  run.hosts.give(0, first);
  run.hosts.share();
  // The third has 4 - 0.55 s left.
  run.flows.next();
  EXPECT_DOUBLE_EQ(run.flows.now().value, 1.1 + 3.45);
  EXPECT_EQ(run.flows.next(), -1);
}

TEST(HostSharing, AnInterruptedTimerKeepsWhatIsLeft) {
  HostInput input = ranks_of_one_host(3, 2);
  input.balance_after = Seconds(0.25);
  SharedHosts run(input);
  const auto next = [&](int expected, int rank) {
    ASSERT_EQ(run.flows.next(), expected);
    run.hosts.give(rank, expected);
    run.hosts.share();
  };
  const auto expect_move_at = [&](double seconds) {
    const int timer = run.flows.next();
    ASSERT_EQ(run.flows[timer].task.kind, Task::Kind::Balance);
    EXPECT_EQ(run.flows.now(), Seconds(seconds));
    run.hosts.balance(run.flows[timer].task.owner);
    run.hosts.share();
  };
  const int first = run.compute(0, 4);  // shares the first processor with the third
  const int second = run.compute(1, 1);
  const int third = run.compute(2, 4);
  run.hosts.share();
  next(second, 1);
  // The second processor is idle from 1 to 1.125 s, and again from 2.125 s: the third thread moves at 2.25 s.
  run.flows.start({.kind = Task::Kind::Latency}, Seconds(0.125));
  run.flows.next();
  const int again = run.compute(1, 1);
  run.hosts.share();
  std::vector<std::int64_t> counts;
  std::vector<Seconds> times;
  run.hosts.append_state(counts, times);
  EXPECT_EQ(times, std::vector<Seconds>{Seconds(0.125)});
  next(again, 1);
  expect_move_at(2.25);
  EXPECT_EQ(run.rate(first), 1);
  EXPECT_EQ(run.rate(third), 1);
  // The first has 4 - 0.5 - 0.625 s left and ends at 5.125 s. The next move takes the whole time again.
  run.compute(1, 4);
  EXPECT_EQ(run.rate(third), 0.5);
  next(first, 0);
  expect_move_at(5.375);
  EXPECT_EQ(run.rate(third), 1);
}

TEST(HostSharing, LeavesFlowsAloneWhereEachThreadHasAProcessor) {
  SharedHosts run(ranks_of_one_host(2, 4));
  const int first = run.compute(0);
  const std::uint64_t event = run.flows[first].event;
  run.handle(0);
  run.compute(1);
  EXPECT_EQ(run.rate(first), 1);
  EXPECT_EQ(run.flows[first].event, event);
  std::vector<std::int64_t> counts;
  std::vector<Seconds> times;
  run.hosts.append_state(counts, times);
  EXPECT_TRUE(counts.empty());
  EXPECT_TRUE(times.empty());
}

using ::testing::ElementsAre;
using ::testing::Pair;

/// Of a processor's time, for an awake thread.
double share(const RunQueues& queues, int thread) { return 1 / static_cast<double>(queues.length(thread)); }

void wake(RunQueues& queues, int thread) {
  queues.wake(thread);
  queues.settle();
}

void sleep(RunQueues& queues, int thread) {
  queues.leave(thread);
  queues.settle();
}

TEST(RunQueues, ThreadsTakeIdleProcessorsFirst) {
  RunQueues queues(2, 3);
  wake(queues, 0);
  wake(queues, 1);
  EXPECT_EQ(share(queues, 0), 1);
  EXPECT_EQ(share(queues, 1), 1);
  wake(queues, 2);  // joins the first of two equally long queues
  EXPECT_EQ(share(queues, 0), 0.5);
  EXPECT_EQ(share(queues, 1), 1);
  EXPECT_EQ(share(queues, 2), 0.5);
}

TEST(RunQueues, AProcessorStaysIdleUntilItTakesAThread) {
  RunQueues queues(2, 3);
  for (const int thread : {0, 1, 2}) wake(queues, thread);
  EXPECT_FALSE(queues.is_uneven());
  sleep(queues, 1);
  EXPECT_TRUE(queues.is_uneven());
  EXPECT_EQ(share(queues, 0), 0.5);
  queues.balance();
  EXPECT_FALSE(queues.is_uneven());
  EXPECT_EQ(share(queues, 0), 1);
  EXPECT_EQ(share(queues, 2), 1);
}

TEST(RunQueues, AThreadWakesWhereItRan) {
  RunQueues queues(2, 3);
  for (const int thread : {0, 1, 2}) wake(queues, thread);  // 0 and 2 on the first, 1 on the second
  sleep(queues, 2);
  sleep(queues, 1);
  wake(queues, 2);  // to the first, though the second is idle
  EXPECT_EQ(share(queues, 0), 0.5);
  EXPECT_TRUE(queues.is_uneven());
  queues.balance();
  EXPECT_EQ(share(queues, 2), 1);
  sleep(queues, 2);
  wake(queues, 2);  // to the second, to which it was moved
  EXPECT_EQ(share(queues, 0), 1);
  EXPECT_EQ(share(queues, 2), 1);
}

TEST(RunQueues, AThreadWithMoreWorkKeepsItsPlace) {
  RunQueues queues(2, 2);
  wake(queues, 0);
  wake(queues, 1);
  queues.leave(0);
  queues.wake(0);
  queues.settle();
  std::vector<std::int64_t> state;
  queues.append_state(state);
  EXPECT_EQ(state, (std::vector<std::int64_t>{1, 0, 1, 1, 0, 1}));
}

TEST(RunQueues, AThreadLeavesBeforeTheOneThatItWakesComes) {
  RunQueues queues(2, 3);
  wake(queues, 0);
  wake(queues, 1);
  queues.wake(2);  // has not run
  queues.leave(1);
  queues.settle();
  EXPECT_EQ(share(queues, 2), 1);
  EXPECT_EQ(share(queues, 0), 1);
}

TEST(RunQueues, TheLongestQueueGivesTheThreadThatCameLast) {
  RunQueues queues(3, 6);
  for (int thread = 0; thread < 6; ++thread) wake(queues, thread);  // 0 3, 1 4, 2 5
  sleep(queues, 1);
  sleep(queues, 3);
  wake(queues, 3);  // 0 3, 4, 2 5
  sleep(queues, 4);
  queues.balance();  // the first of the longest: 3 moves
  EXPECT_EQ(share(queues, 0), 1);
  EXPECT_EQ(share(queues, 3), 1);
  EXPECT_EQ(share(queues, 5), 0.5);
}

TEST(RunQueues, RefusesAHostWithoutProcessors) { EXPECT_THROW(RunQueues(0, 1), std::invalid_argument); }

// By a count over all threads: shares of a processor add up to 1, and `is_uneven` says what it should.
TEST(RunQueues, DividesEachProcessorThatHasWork) {
  const unsigned seed = 7;
  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    const int processors = static_cast<int>(1 + random() % 4);
    const int threads = static_cast<int>(1 + random() % 8);
    RunQueues queues(processors, threads);
    std::vector<bool> awake(to_index(threads));
    for (int turn = 0; turn < 50; ++turn) {
      const int thread = static_cast<int>(random() % static_cast<unsigned>(threads));
      if (random() % 8 == 0) {
        queues.balance();
      } else if (awake[to_index(thread)]) {
        sleep(queues, thread);
        awake[to_index(thread)] = false;
      } else {
        wake(queues, thread);
        awake[to_index(thread)] = true;
      }
      std::vector<std::int64_t> state;
      queues.append_state(state);
      std::size_t at = 0;
      int busy = 0;
      bool crowded = false;
      double shares = 0;
      for (int p = 0; p < processors; ++p) {
        const auto length = static_cast<std::size_t>(state[at++]);
        busy += length > 0 ? 1 : 0;
        crowded = crowded || length > 1;
        for (std::size_t j = 0; j < length; ++j) {
          const int runner = static_cast<int>(state[at++]);
          EXPECT_TRUE(awake[to_index(runner)]);
          EXPECT_EQ(share(queues, runner), 1 / static_cast<double>(length));
          shares += share(queues, runner);
        }
      }
      EXPECT_NEAR(shares, busy, 1e-12) << "seed " << seed << " case " << i;
      EXPECT_EQ(queues.is_uneven(), crowded && busy < processors) << "seed " << seed << " case " << i;
    }
  }
}

std::vector<std::pair<int, HandlingPart>> waiting_of(const WaitingParts& parts, int rank) {
  std::vector<std::pair<int, HandlingPart>> out;
  parts.visit(rank, [&](const WaitingParts::Entry& entry) { out.emplace_back(entry.lane, entry.part); });
  return out;
}

TEST(WaitingParts, AreTakenInTheOrderInWhichTheyCame) {
  WaitingParts parts(2, 3);
  EXPECT_TRUE(parts.is_empty(0));
  parts.push(0, {2, HandlingPart::SendStreaming});
  parts.push(1, {1, HandlingPart::ReceiveFixed});
  parts.push(0, {0, HandlingPart::ReceiveStreaming});
  parts.push(0, {2, HandlingPart::ReceiveStreaming});
  EXPECT_THAT(waiting_of(parts, 0),
              ElementsAre(Pair(2, HandlingPart::SendStreaming), Pair(0, HandlingPart::ReceiveStreaming),
                          Pair(2, HandlingPart::ReceiveStreaming)));
  EXPECT_EQ(parts.pop(0).lane, 2);
  EXPECT_EQ(parts.pop(0).lane, 0);
  parts.push(0, {2, HandlingPart::SendStreaming});
  EXPECT_EQ(parts.pop(0).part, HandlingPart::ReceiveStreaming);
  EXPECT_EQ(parts.pop(0).part, HandlingPart::SendStreaming);
  EXPECT_TRUE(parts.is_empty(0));
  EXPECT_EQ(parts.pop(1).lane, 1);
}

}  // namespace

}  // namespace stagecraft::simulation
