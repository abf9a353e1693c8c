#include "executor/launch/spawn.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

#include "executor/launch/rendezvous.h"
#include "tests/executor/launch/spawned_ranks.h"
#include "tests/support/run_command.h"

namespace stagecraft::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

TEST(Spawn, RanksExchangeAndEndWell) {
  for (const int ranks : {1, 2, 3}) {
    const EndedRun outcome = run_ranks(ranks, {"exchange"});
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    EXPECT_EQ(outcome.text, "");
  }
}

TEST(Spawn, ReturnsTheStatusOfTheRankThatFailed) {
  const EndedRun outcome = run_ranks(3, {"status"});
  EXPECT_EQ(outcome.status, 7);
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: rank 2 ended with status 7\n"));
}

TEST(Spawn, ListensOnLoopbackOnly) {
  const EndedRun outcome = run_ranks(2, {"listen"});
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  const EndedRun served_by_rank_0 = run_ranks(2, {"listen_rank", free_port()});
  EXPECT_EQ(served_by_rank_0.status, 0) << served_by_rank_0.text;
}

TEST(Spawn, PassesTerminationOn) {
  const EndedRun outcome = run_ranks(2, {"terminate"});
  EXPECT_EQ(outcome.status, 128 + 15);
  EXPECT_THAT(outcome.text, HasSubstr("was killed by signal 15"));
}

/// What spawn returns and prints for ranks that are shell scripts in a temporary folder.
EndedRun spawn_scripts(int ranks, const std::string& first, int restarts = 0, const std::string& again = "") {
  const testing::CommandFolder folder;
  const auto script = [&](const std::string& text) {
    return std::vector<std::string>{"/bin/sh", "-c", "cd '" + folder.path().string() + "'; " + text};
  };
  ::testing::internal::CaptureStderr();
  EndedRun outcome;
  const auto restart = [&](const FailedRank&) { return RankCommand{ranks, script(again), {}}; };
  outcome.status = spawn({ranks, script(first), {}}, milliseconds(300), {.restarts = restarts, .again = restart});
  outcome.text = ::testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(Spawn, GivesTheStatusOfTheCauseThoughOneThatFollowedItEndedBefore) {
  const EndedRun outcome =
      spawn_scripts(2, "if [ $RANK = 0 ]; then touch ended; exit 3; fi; until [ -e ended ]; do :; done; exit 1");
  EXPECT_EQ(outcome.status, 1) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: rank 1 ended with status 1\n"));
}

TEST(Spawn, PrefersARanksOwnFailureToAHangAndAHangToWhatFollowed) {
  const auto after = [](int first, int second) {
    return spawn_scripts(2, fmt::format("if [ $RANK = 0 ]; then touch ended; exit {}; fi; "
                                        "until [ -e ended ]; do :; done; exit {}",
                                        first, second))
        .status;
  };
  EXPECT_EQ(after(3, 4), 4);
  EXPECT_EQ(after(4, 3), 4);
  EXPECT_EQ(after(4, 1), 1);
  EXPECT_EQ(after(1, 4), 1);
}

TEST(Spawn, KillsARankThatIsHaltedWhenAllOthersHaveEndedWell) {
  const EndedRun outcome = spawn_scripts(2, "if [ $RANK = 1 ]; then kill -STOP $$; fi");
  EXPECT_EQ(outcome.status, 128 + 9);
  EXPECT_EQ(outcome.text, "stagecraft: rank 1 did not end within 0.3 s and is killed\n");
}

TEST(Spawn, RestartsAllRanksAtMostNTimes) {
  EXPECT_EQ(spawn_scripts(2, "exit $RANK", 1, "exit 0").status, 0);
  const EndedRun outcome = spawn_scripts(2, "exit $((4 * RANK))", 2, "exit $((5 * RANK))");
  EXPECT_EQ(outcome.status, 5);
  EXPECT_EQ(outcome.text,
            "stagecraft: rank 1 ended with status 4\n"
            "stagecraft: restarting all ranks, attempt 1 of 2\n"
            "stagecraft: rank 1 ended with status 5\n"
            "stagecraft: restarting all ranks, attempt 2 of 2\n"
            "stagecraft: rank 1 ended with status 5\n");
}

TEST(Spawn, AsksWhatToRestartAndSaysWhichRankFailedAndWhetherItIsGone) {
  const auto script = [](const std::string& text) { return std::vector<std::string>{"/bin/sh", "-c", text}; };
  std::vector<std::pair<int, bool>> failures;
  const auto restart = [&](const FailedRank& failed) {
    failures.emplace_back(failed.rank, failed.gone);
    if (failures.size() == 1) return RankCommand{3, script("[ $RANK = 1 ] && kill -KILL $$ || exit 0"), {}};
    return RankCommand{2, script("[ $WORLD_SIZE = 2 ]"), {}};
  };
  ::testing::internal::CaptureStderr();
  const int status = spawn({3, script("[ $RANK != 2 ]"), {}}, milliseconds(300), {.restarts = 2, .again = restart});
  const std::string text = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(status, 0) << text;
  EXPECT_THAT(failures, ::testing::ElementsAre(std::pair(2, false), std::pair(1, true))) << text;
}

TEST(Spawn, DoesNotTakeARankThatWasAskedToStopForAFailure) {
  const EndedRun outcome = spawn_scripts(2, "exit 75", 3, "exit 0");
  EXPECT_EQ(outcome.status, kStopped);
  EXPECT_EQ(outcome.text, "");
}

TEST(Spawn, RefusesWhatItCannotStart) {
  EXPECT_THROW((void)spawn({0, {"/bin/true"}, {}}, milliseconds(1)), std::invalid_argument);
  EXPECT_THROW((void)spawn({1, {"/no/such/program"}, {}}, milliseconds(1)), std::invalid_argument);
  EXPECT_THROW((void)spawn({1, {}, {}}, milliseconds(1)), std::invalid_argument);
}

}  // namespace

// Each test ends a separate process whose standard input is a pipe.

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
