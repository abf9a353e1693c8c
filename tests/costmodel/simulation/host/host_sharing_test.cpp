#include "costmodel/simulation/host/host_sharing.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "costmodel/simulation/host/hosts.h"

namespace stagecraft::simulation {
namespace {

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

}  // namespace
}  // namespace stagecraft::simulation
