#include "costmodel/simulation/host/run_queues.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/index.h"

namespace stagecraft::simulation {
namespace {

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
