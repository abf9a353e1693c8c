#include "executor/launch/tether.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "executor/launch/exit_status.h"

// Each test ends a separate process whose standard input is a pipe.

namespace stagecraft::launch {
namespace {

/// Replaces standard input with a pipe and returns its write end.
int replace_input() {
  int ends[2];
  if (::pipe(ends) != 0) std::abort();
  ::dup2(ends[0], STDIN_FILENO);
  ::close(ends[0]);
  return ends[1];
}

void write(int to, const std::string& text) {
  if (::write(to, text.data(), text.size()) != static_cast<ssize_t>(text.size())) std::abort();
}

[[noreturn]] void wait_for_the_end() {
  while (true) ::pause();
}

class TetherDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(TetherDeathTest, EndsTheProcessWhoseInputEnds) {
  EXPECT_EXIT(
      {
        const int input = replace_input();
        const Tether tether("rank 2");
        ::close(input);
        wait_for_the_end();
      },
      ::testing::ExitedWithCode(kPeerFailed), "stagecraft: rank 2: the process that started this run");
}

TEST_F(TetherDeathTest, LineTermIsThatSignal) {
  EXPECT_EXIT(
      {
        const int input = replace_input();
        const Tether tether("rank 2");
        write(input, "TERM\n");
        wait_for_the_end();
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

TEST_F(TetherDeathTest, OtherLinesAreIgnored) {
  EXPECT_EXIT(
      {
        const int input = replace_input();
        const Tether tether("rank 2");
        write(input, "KILL\n\nTERMINATE\nINT\n");
        wait_for_the_end();
      },
      ::testing::KilledBySignal(SIGINT), "");
}

TEST_F(TetherDeathTest, HandledSignalGoesToTheProcessNotToTheTethersThread) {
  EXPECT_EXIT(
      {
        static volatile std::sig_atomic_t seen = 0;
        std::signal(SIGTERM, [](int) { seen = 1; });
        sigset_t term;
        sigset_t before;
        sigemptyset(&term);
        sigaddset(&term, SIGTERM);
        pthread_sigmask(SIG_BLOCK, &term, &before);
        const int input = replace_input();
        const Tether tether("rank 2");
        write(input, "TERM\n");
        while (seen == 0) sigsuspend(&before);  // the signal is blocked elsewhere, so it cannot be missed
        ::_exit(7);
      },
      ::testing::ExitedWithCode(7), "");
}

TEST_F(TetherDeathTest, LetsTheInputEndOnceItIsGone) {
  EXPECT_EXIT(
      {
        const int input = replace_input();
        { const Tether tether("rank 2"); }
        ::close(input);
        ::_exit(0);
      },
      ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace stagecraft::launch
