#include "executor/launch/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace stagecraft::launch {
namespace {

void wait_until_asked(const StopSignals& signals) {
  while (!signals.asked()) std::this_thread::yield();
}

TEST(StopSignals, AskOnceAndThenLetSignalsEndTheProcess) {
  for (const int number : {SIGINT, SIGTERM}) {
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
        const StopSignals signals;
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

}  // namespace
}  // namespace stagecraft::launch
