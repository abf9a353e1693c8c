#include "executor/launch/rendezvous.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/launch/exit_status.h"
#include "executor/launch/spawn.h"
#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_store.h"
#include "tests/support/run_command.h"

// Runs of real processes: rank_program under spawn. Its deadline for a silent rank is 2 s.

namespace stagecraft::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

struct Outcome {
  int status = 0;
  std::string text;
  double seconds = 0;
};

Outcome run(int ranks, std::vector<std::string> arguments, milliseconds grace = milliseconds(4000)) {
  arguments.insert(arguments.begin(), std::string(STAGECRAFT_BIN_DIR) + "/rank_program");
  ::testing::internal::CaptureStderr();  // of the children too
  const auto start = std::chrono::steady_clock::now();
  Outcome outcome;
  outcome.status = spawn(ranks, arguments, grace);
  outcome.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  outcome.text = ::testing::internal::GetCapturedStderr();
  return outcome;
}

/// How often `part` occurs in `text`.
int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string free_port() { return std::to_string(meeting::StoreServer().port()); }

TEST(Spawn, RanksExchangeAndEndWell) {
  for (const int ranks : {1, 2, 3}) {
    const Outcome outcome = run(ranks, {"exchange"});
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    EXPECT_EQ(outcome.text, "");
  }
}

TEST(Spawn, ReturnsTheStatusOfTheRankThatFailed) {
  const Outcome outcome = run(3, {"status"});
  EXPECT_EQ(outcome.status, 7);
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: rank 2 ended with status 7\n"));
}

TEST(Spawn, ListensOnLoopbackOnly) {
  const Outcome outcome = run(2, {"listen"});
  EXPECT_EQ(outcome.status, 0) << outcome.text;
  const Outcome served_by_rank_0 = run(2, {"listen_rank", free_port()});
  EXPECT_EQ(served_by_rank_0.status, 0) << served_by_rank_0.text;
}

TEST(Spawn, PassesTerminationOn) {
  const Outcome outcome = run(2, {"terminate"});
  EXPECT_EQ(outcome.status, 128 + 15);
  EXPECT_THAT(outcome.text, HasSubstr("was killed by signal 15"));
}

/// What spawn gives, and prints, for ranks that are shell scripts in a folder of their own.
Outcome spawn_scripts(int ranks, const std::string& first, int restarts = 0, const std::string& again = "") {
  const testing::CommandFolder folder;
  const auto script = [&](const std::string& text) {
    return std::vector<std::string>{"/bin/sh", "-c", "cd '" + folder.path().string() + "'; " + text};
  };
  ::testing::internal::CaptureStderr();
  Outcome outcome;
  outcome.status = spawn(ranks, script(first), milliseconds(300), {.restarts = restarts, .again = script(again)});
  outcome.text = ::testing::internal::GetCapturedStderr();
  return outcome;
}

TEST(Spawn, GivesTheStatusOfTheCauseThoughOneThatFollowedItEndedBefore) {
  const Outcome outcome =
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
  const Outcome outcome = spawn_scripts(2, "if [ $RANK = 1 ]; then kill -STOP $$; fi");
  EXPECT_EQ(outcome.status, 128 + 9);
  EXPECT_EQ(outcome.text, "stagecraft: rank 1 did not end within 0.3 s and is killed\n");
}

TEST(Spawn, StartsAllRanksAgainAtMostSoOften) {
  EXPECT_EQ(spawn_scripts(2, "exit $RANK", 1, "exit 0").status, 0);
  const Outcome outcome = spawn_scripts(2, "exit $((4 * RANK))", 2, "exit $((5 * RANK))");
  EXPECT_EQ(outcome.status, 5);
  EXPECT_EQ(outcome.text,
            "stagecraft: rank 1 ended with status 4\n"
            "stagecraft: restarting all ranks, attempt 1 of 2\n"
            "stagecraft: rank 1 ended with status 5\n"
            "stagecraft: restarting all ranks, attempt 2 of 2\n"
            "stagecraft: rank 1 ended with status 5\n");
}

TEST(Spawn, DoesNotTakeARankThatWasAskedToStopForAFailure) {
  const Outcome outcome = spawn_scripts(2, "exit 75", 3, "exit 0");
  EXPECT_EQ(outcome.status, kStopped);
  EXPECT_EQ(outcome.text, "");
}

TEST(Spawn, RefusesWhatItCannotStart) {
  EXPECT_THROW((void)spawn(0, {"/bin/true"}, milliseconds(1)), std::invalid_argument);
  EXPECT_THROW((void)spawn(1, {"/no/such/program"}, milliseconds(1)), std::invalid_argument);
  EXPECT_THROW((void)spawn(1, {}, milliseconds(1)), std::invalid_argument);
}

TEST(Rendezvous, ARankThatEndsBecauseOfAnotherSaysSoByItsStatus) {
  using Cause = meeting::PeerError::Cause;
  EXPECT_EQ(exit_status(meeting::PeerError("a shape", Cause::Found)), 1);
  EXPECT_EQ(exit_status(meeting::PeerError("lost rank 1", Cause::Peer)), 3);
  EXPECT_EQ(exit_status(meeting::PeerError("late", Cause::Deadline).within("rank 0: ", ", at a barrier")), 4);
}

TEST(Rendezvous, AKilledRankEndsTheOthersAndIsNamed) {
  const Outcome outcome = run(3, {"kill"});
  EXPECT_EQ(outcome.status, 128 + 9) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("lost rank 1 while waiting for a tensor under tag 3"));
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: rank 1 was killed by signal 9 (Killed)\n"));
  EXPECT_EQ(count(outcome.text, "stagecraft:   rank 1: forward of microbatch 3 of stage 1"), 1) << outcome.text;
  EXPECT_THAT(outcome.text, Not(HasSubstr("did not end within")));
}

TEST(Rendezvous, AStoppedRankEndsTheOthersNamingItsLastAction) {
  const Outcome outcome = run(3, {"stop"}, milliseconds(500));
  EXPECT_EQ(outcome.status, kHung) << outcome.text;
  EXPECT_THAT(
      outcome.text,
      ContainsRegex(
          "stagecraft: rank 1 has been silent for 2\\.[0-9] s\n"
          "stagecraft:   rank 0: waiting for rank 1 under tag 3 for [23]\\.[0-9] s\n"
          "stagecraft:   rank 1: forward of microbatch 3 of stage 1 for 0\\.[0-9] s \\(last heard 2\\.[0-9] s ago\\)\n"
          "stagecraft:   rank 2: waiting for rank 1 under tag 3 for [23]\\.[0-9] s\n"));
  EXPECT_EQ(count(outcome.text, "stagecraft:   rank 0:"), 1) << outcome.text;
  EXPECT_EQ(count(outcome.text, "stagecraft: rank 1 has been silent for "), 2) << "a line per survivor";
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: rank 1 did not end within 0.5 s and is killed\n"));
}

TEST(Rendezvous, AFailingRankTellsTheOthersWhy) {
  const Outcome outcome = run(3, {"throw"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: rank 1 failed: the plan has 3 stages, the model 2\n"));
  EXPECT_THAT(outcome.text, Not(HasSubstr("did not end within")));
}

TEST(Rendezvous, PrintsOfAHostileRankOneLineWithoutControlCharacters) {
  const Outcome outcome = run(3, {"hostile"});
  EXPECT_EQ(outcome.status, kPeerFailed) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft:  [2Jall is well stagecraft: rank 0 is to blame......"));
  EXPECT_EQ(outcome.text.find_first_of("\x1b\x07"), std::string::npos);
  EXPECT_LT(outcome.text.size(), 20000U) << "3 ranks, at most 4000 characters each, and spawn's lines";
}

TEST(Rendezvous, NamesWhoDidNotBringAValue) {
  const Outcome outcome = run(3, {"absent"});
  EXPECT_EQ(outcome.status, kHung);
  EXPECT_THAT(outcome.text, HasSubstr("waited 2.0 s for rank 1 to send \"plan\""));
}

TEST(Rendezvous, TheRankThatServesTheMeetingPointStaysForTheOthers) {
  for (const char* name : {"exchange", "last"}) {
    const Outcome outcome = run(3, {name, free_port()});
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    EXPECT_EQ(outcome.text, "");
  }
}

TEST(Rendezvous, TheRankThatServesTheMeetingPointTellsWhyBeforeItGoes) {
  const Outcome outcome = run(3, {"throw", free_port()});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: rank 1 failed: the plan has 3 stages, the model 2\n"));
}

TEST(Rendezvous, ALostMeetingPointEndsTheRun) {
  const std::string port = free_port();
  const Outcome outcome = run(3, {"host_killed", port});
  EXPECT_EQ(outcome.status, 128 + 9) << outcome.text;
  EXPECT_THAT(outcome.text,
              HasSubstr("stagecraft: the meeting point at 127.0.0.1:" + port + ", kept by rank 0, has disappeared\n"));
}

TEST(Rendezvous, AStoppedMeetingPointEndsTheRun) {
  const std::string port = free_port();
  const Outcome outcome = run(2, {"host_stopped", port}, milliseconds(500));
  EXPECT_EQ(outcome.status, kHung) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: the meeting point at 127.0.0.1:" + port +
                                      ", kept by rank 0, has been silent for 2."));
  EXPECT_THAT(outcome.text, HasSubstr("\nstagecraft:   rank 1: forward of microbatch 3 of stage 1 for "));
}

TEST(Rendezvous, SaysThatTheMeetingPointWasNotReached) {
  meeting::LaunchInfo launch;
  launch.rank = 1;
  launch.ranks = 2;
  launch.port = static_cast<std::uint16_t>(std::stoi(free_port()));
  try {
    (void)join(launch, milliseconds(1000));
    FAIL() << "nobody serves that port";
  } catch (const meeting::PeerError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 1 did not reach the meeting point at 127.0.0.1:" +
                                        std::to_string(launch.port) + " within 1.0 s"));
  }
}

TEST(Rendezvous, NamesTheRankThatHasAnotherSecretToBothSides) {
  const meeting::StoreServer server({.secret = "ours"});
  const auto error_of_joining = [&](int rank, const std::string& secret) -> std::string {
    meeting::LaunchInfo launch;
    launch.rank = rank;
    launch.ranks = 2;
    launch.port = server.port();
    launch.served = true;
    launch.secret = secret;
    try {
      (void)join(launch, milliseconds(300));
    } catch (const meeting::PeerError& error) { return error.what(); }
    return "no error";
  };
  const std::string place = "the meeting point at 127.0.0.1:" + std::to_string(server.port());
  EXPECT_EQ(error_of_joining(1, "theirs"),
            "rank 1 has a different secret than " + place + "; start all ranks with the same STAGECRAFT_SECRET");
  EXPECT_EQ(error_of_joining(0, "ours"),
            "rank 0 waited 0.3 s for rank 1 to join the run; rank 1 has a different secret than the meeting point");
}

TEST(Rendezvous, TakesNoLongValueInAnExchange) {
  const meeting::StoreServer server;
  meeting::LaunchInfo launch;
  launch.port = server.port();
  launch.served = true;
  const auto meeting = join(launch, milliseconds(20000));
  EXPECT_EQ(meeting->exchange("plan", std::string(1 << 20, 'x')).front().size(), 1U << 20);
  try {
    (void)meeting->exchange("plan", std::string((1 << 20) + 1, 'x'));
    FAIL() << "the value is too long";
  } catch (const meeting::PeerError& error) {
    EXPECT_STREQ(error.what(), "rank 0 has 1048577 bytes as \"plan\", must be at most 1048576");
  }
  meeting->leave();
}

TEST(Rendezvous, NamesTheRanksThatDidNotJoin) {
  const meeting::StoreServer server;
  meeting::LaunchInfo launch;
  launch.ranks = 3;
  launch.port = server.port();
  launch.served = true;
  try {
    (void)join(launch, milliseconds(300));
    FAIL() << "ranks 1 and 2 do not exist";
  } catch (const meeting::PeerError& error) {
    EXPECT_STREQ(error.what(), "rank 0 waited 0.3 s for ranks 1, 2 to join the run");
  }
}

}  // namespace
}  // namespace stagecraft::launch
