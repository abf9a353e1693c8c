#include "executor/launch/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace stagecraft::launch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

void wait_until_asked(const StopSignals& signals) {
  while (!signals.asked()) std::this_thread::yield();
}

/// Unblocks the signals at the end of a test: once asked, StopSignals leaves them blocked.
struct Unblocked {
  ~Unblocked() {
    sigset_t set;
    sigemptyset(&set);
    for (const int number : {SIGINT, SIGTERM}) sigaddset(&set, number);
    pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  }
};

TEST(StopSignals, AskOnceAndThenLetSignalsEndTheProcess) {
  for (const int number : {SIGINT, SIGTERM}) {
    const Unblocked after;
    const StopSignals signals;
    EXPECT_FALSE(signals.asked());
    EXPECT_EQ(signals.number(), 0);
    ASSERT_EQ(kill(getpid(), number), 0);
    wait_until_asked(signals);
    EXPECT_EQ(signals.number(), number);
  }
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        std::atomic<int> calls = 0;  // the first is for the first signal
        const StopSignals signals([&] { return StopSignals::Clock::time_point(calls++ * seconds(2)); });
        kill(getpid(), SIGTERM);
        wait_until_asked(signals);
        kill(getpid(), SIGINT);
        for (;;) pause();
      },
      ::testing::ExitedWithCode(128 + SIGINT), "");
  EXPECT_EXIT(
      {
        { const StopSignals over; }
        kill(getpid(), SIGTERM);
        for (;;) pause();
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST(StopSignals, TakeSignalsWithinTwoSecondsAsOneRequest) {
  const Unblocked after;
  std::atomic<int> calls = 0;
  const StopSignals signals([&] { return StopSignals::Clock::time_point(calls++ * milliseconds(999)); });
  for (const int number : {SIGTERM, SIGTERM, SIGINT}) {  // at 0, 999 and 1998 ms
    const int before = calls;
    ASSERT_EQ(kill(getpid(), number), 0);
    while (calls == before) std::this_thread::yield();
  }
  EXPECT_EQ(signals.number(), SIGTERM);
}

TEST(StopSignals, KeepARepeatFromEndingAProcessThatStops) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        {
          const StopSignals signals;
          kill(getpid(), SIGTERM);
          wait_until_asked(signals);
        }
        kill(getpid(), SIGTERM);
        ::_exit(75);
      },
      ::testing::ExitedWithCode(75), "");
}

}  // namespace
}  // namespace stagecraft::launch
