#include "executor/launch/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "executor/meeting/launch_info.h"
#include "executor/meeting/meeting_store.h"
#include "tests/executor/launch/spawned_ranks.h"
#include "tests/support/channels/launch_at.h"

namespace stagecraft::launch {
namespace {

using std::chrono::milliseconds;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(Rendezvous, AKilledRankEndsTheOthersAndIsNamed) {
  const EndedRun outcome = run_ranks(3, {"kill"});
  EXPECT_EQ(outcome.status, 128 + 9) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("lost rank 1 while waiting for a tensor under tag 3"));
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: rank 1 was killed by signal 9 (Killed)\n"));
  EXPECT_EQ(count(outcome.text, "stagecraft:   rank 1: forward of microbatch 3 of stage 1"), 1) << outcome.text;
  EXPECT_THAT(outcome.text, Not(HasSubstr("did not end within")));
}

TEST(Rendezvous, AKilledRankEndsTheOthersWhereverTheyAre) {
  for (const std::string& port : {std::string(), free_port()}) {  // served by the starting process, and by rank 0
    std::vector<std::string> arguments{"kill_unwaited"};
    if (!port.empty()) arguments.push_back(port);
    const EndedRun outcome = run_ranks(3, arguments);
    EXPECT_EQ(outcome.status, 128 + 9) << outcome.text;
    const std::string line = "stagecraft: rank 1 has disappeared: its connection to the rendezvous server closed\n";
    EXPECT_EQ(count(outcome.text, line), 2) << "a line per survivor: " << outcome.text;
    EXPECT_EQ(count(outcome.text, "stagecraft:   rank 0: "), 1) << "one report: " << outcome.text;
    EXPECT_THAT(outcome.text, Not(HasSubstr("did not end within")));
  }
}

TEST(Rendezvous, AStoppedRankEndsTheOthersNamingItsLastAction) {
  const EndedRun outcome = run_ranks(3, {"stop"}, milliseconds(500));
  EXPECT_EQ(outcome.status, kHung) << outcome.text;
  EXPECT_THAT(outcome.text,
              ContainsRegex("stagecraft: rank 1 has been silent for [0-9]+\\.[0-9] s\n"
                            "stagecraft:   rank 0: waiting for rank 1 under tag 3 for [0-9]+\\.[0-9] s\n"
                            "stagecraft:   rank 1: forward of microbatch 3 of stage 1 for [0-9]+\\.[0-9] s \\(last "
                            "heard [0-9]+\\.[0-9] s ago\\)\n"
                            "stagecraft:   rank 2: waiting for rank 1 under tag 3 for [0-9]+\\.[0-9] s\n"));
  EXPECT_EQ(count(outcome.text, "stagecraft:   rank 0:"), 1) << outcome.text;
  EXPECT_EQ(count(outcome.text, "stagecraft: rank 1 has been silent for "), 2) << "a line per survivor";
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: rank 1 did not end within 0.5 s and is killed\n"));
}

TEST(Rendezvous, AFailingRankTellsTheOthersWhy) {
  const EndedRun outcome = run_ranks(3, {"throw"});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: rank 1 failed: the plan has 3 stages, the model 2\n"));
  EXPECT_THAT(outcome.text, Not(HasSubstr("did not end within")));
}

TEST(Rendezvous, PrintsOfAHostileRankOneLineWithoutControlCharacters) {
  const EndedRun outcome = run_ranks(3, {"hostile"});
  EXPECT_EQ(outcome.status, kPeerFailed) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft:  [2Jall is well stagecraft: rank 0 is to blame......"));
  EXPECT_EQ(outcome.text.find_first_of("\x1b\x07"), std::string::npos);
  EXPECT_LT(outcome.text.size(), 20000U) << "3 ranks, at most 4000 characters each, and spawn's lines";
}

TEST(Rendezvous, NamesWhoDidNotBringAValue) {
  const EndedRun outcome = run_ranks(3, {"absent"});
  EXPECT_EQ(outcome.status, kHung);
  EXPECT_THAT(outcome.text, HasSubstr("waited 2.0 s for rank 1 to send \"plan\""));
}

TEST(Rendezvous, TheRankThatServesTheMeetingPointStaysForTheOthers) {
  for (const char* name : {"exchange", "last"}) {
    const EndedRun outcome = run_ranks(3, {name, free_port()});
    EXPECT_EQ(outcome.status, 0) << outcome.text;
    EXPECT_EQ(outcome.text, "");
  }
}

TEST(Rendezvous, TheRankThatServesTheMeetingPointTellsWhyBeforeItGoes) {
  const EndedRun outcome = run_ranks(3, {"throw", free_port()});
  EXPECT_EQ(outcome.status, 1);
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: rank 1 failed: the plan has 3 stages, the model 2\n"));
}

TEST(Rendezvous, ALostMeetingPointEndsTheRun) {
  const std::string port = free_port();
  const EndedRun outcome = run_ranks(3, {"host_killed", port});
  EXPECT_EQ(outcome.status, 128 + 9) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: the rendezvous server at 127.0.0.1:" + port +
                                      ", served by rank 0, has disappeared\n"));
}

TEST(Rendezvous, AStoppedMeetingPointEndsTheRun) {
  const std::string port = free_port();
  const EndedRun outcome = run_ranks(2, {"host_stopped", port}, milliseconds(500));
  EXPECT_EQ(outcome.status, kHung) << outcome.text;
  EXPECT_THAT(outcome.text, HasSubstr("stagecraft: the rendezvous server at 127.0.0.1:" + port +
                                      ", served by rank 0, has been silent for "));
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
    EXPECT_THAT(error.what(), HasSubstr("rank 1 did not reach the rendezvous server at 127.0.0.1:" +
                                        std::to_string(launch.port) + " within 1.0 s"));
  }
}

TEST(Rendezvous, NamesTheRankThatHasAnotherSecretToBothSides) {
  const meeting::StoreServer server({.secret = "ours"});
  const auto error_of_joining = [&](int rank, const std::string& secret) -> std::string {
    try {
      (void)join(testing::launch_at(server, rank, 2, secret), milliseconds(300));
    } catch (const meeting::PeerError& error) { return error.what(); }
    return "no error";
  };
  const std::string place = "the rendezvous server at 127.0.0.1:" + std::to_string(server.port());
  EXPECT_EQ(error_of_joining(1, "theirs"),
            "rank 1 has a different secret from " + place + "; start all ranks with the same STAGECRAFT_SECRET");
  EXPECT_EQ(error_of_joining(0, "ours"),
            "rank 0 waited 0.3 s for rank 1 to join the run; rank 1 has a different secret from the rendezvous server");
}

TEST(Rendezvous, TakesNoLongValueInAnExchange) {
  const meeting::StoreServer server;
  const auto meeting = join(testing::launch_at(server, 0, 1), milliseconds(20000));
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
  try {
    (void)join(testing::launch_at(server, 0, 3), milliseconds(300));
    FAIL() << "ranks 1 and 2 do not exist";
  } catch (const meeting::PeerError& error) {
    EXPECT_STREQ(error.what(), "rank 0 waited 0.3 s for ranks 1, 2 to join the run");
  }
}

}  // namespace
}  // namespace stagecraft::launch
