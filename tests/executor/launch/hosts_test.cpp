#include "executor/launch/hosts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "executor/launch/rank_log.h"
#include "executor/meeting/secret.h"
#include "tests/support/run_command.h"

namespace stagecraft::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ReadHosts, ReadsAFileAndNamesItsLine) {
  const testing::CommandFolder folder;
  const std::string path = (folder.path() / "hosts.txt").string();
  folder.write("hosts.txt", "# two machines\nred slots=4 # the big one\n\n  me@blue.example  \n10.0.0.7:2");
  EXPECT_EQ(read_hosts(path),
            (std::vector<interchange::HostSlots>{{"red", 4}, {"me@blue.example", 1}, {"10.0.0.7", 2}}));
  folder.write("hosts.txt", "red\nred");
  EXPECT_THAT([&] { (void)read_hosts(path); },
              ThrowsMessage<FormatError>(path + ": line 2: host \"red\" is already on line 1; set slots=N there"));
}

TEST(PlaceRanks, FillsHostAfterHost) {
  EXPECT_EQ(place_ranks({{"red", 2}, {"blue", 3}}, 4),
            (std::vector<RankPlace>{{"red", 0}, {"red", 1}, {"blue", 0}, {"blue", 1}}));
}

TEST(PlaceRanks, SaysBothNumbersWhenSlotsAreTooFew) {
  const auto error = [](const std::vector<interchange::HostSlots>& hosts) -> std::string {
    try {
      (void)place_ranks(hosts, 5);
    } catch (const std::invalid_argument& wrong) { return wrong.what(); }
    return "no error";
  };
  const std::string advice = "; set slots=N for hosts that run more than one";
  EXPECT_EQ(error({{"red", 2}, {"blue", 1}}), "the plan needs 5 ranks, the 2 hosts have 3 slots" + advice);
  EXPECT_EQ(error({{"red", 1}}), "the plan needs 5 ranks, the 1 host has 1 slot" + advice);
}

TEST(MeetingHost, IsTheFirstHostUnlessMasterAddrIsSet) {
  EXPECT_EQ(meeting_host({{"me@red", 0}, {"blue", 0}}, {}), "red");
  EXPECT_EQ(meeting_host({{"me@red", 0}, {"blue", 0}}, {{"MASTER_ADDR", "10.0.0.7"}}), "10.0.0.7");
  EXPECT_EQ(meeting_host({{"localhost", 0}, {"localhost", 1}}, {}), "127.0.0.1");
  EXPECT_THAT([] { (void)meeting_host({{"localhost", 0}, {"blue", 0}}, {}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("rank 0 is on localhost")));
}

TEST(ResolveHosts, NamesHostsWithoutARankAndWithoutAnAddress) {
  // Names under .invalid never have an address (RFC 6761).
  const ResolvedHosts found = resolve_hosts({{"127.0.0.1", 2}, {"me@red.invalid", 1}, {"127.0.0.2", 4}}, 3, {});
  EXPECT_THAT(found.of_rank, ElementsAre("127.0.0.1", "127.0.0.1", "me@red.invalid (no address)"));
  EXPECT_THAT(found.idle, ElementsAre("127.0.0.2"));
  EXPECT_EQ(found.meeting, "127.0.0.1");
  EXPECT_THAT(found.unknown, ElementsAre("red.invalid"));
}

TEST(RemoteCommand, ReachesTheProgramWordByWord) {
  const testing::CommandFolder folder;
  std::filesystem::create_directory(folder.path() / "it's here");
  const std::string command = remote_command(
      {"/bin/sh", "-c", "pwd; printf '%s|' \"$A\" \"$STAGECRAFT_SECRET\" \"$@\"; exit 7", "sh", "a b", "'\"$HOME`x`\\",
       "", "*"},
      {{"A", "1 '2'"}, {meeting::kSecretVariable, "not this one"}}, (folder.path() / "it's here").string());
  EXPECT_EQ(command.find("not this one"), std::string::npos);
  folder.write("far.sh", command + "\n");
  const testing::Outcome o = folder.run("printf 'from input\\nmore\\n' | sh far.sh");
  EXPECT_EQ(o.status, 7) << o.err;
  EXPECT_EQ(o.out, (folder.path() / "it's here").string() + "\n1 '2'|from input|a b|'\"$HOME`x`\\||*|");
}

TEST(RemoteCommand, ReportsASignalLikeAShell) {
  const testing::CommandFolder folder;
  folder.write("far.sh", "exec " + remote_command({"/bin/sh", "-c", "kill -KILL $$"}, {}, "/") + "\n");
  EXPECT_EQ(folder.run("exec sh far.sh").status, 128 + 9);
}

TEST(HandedOver, TakesWhatConcernsTheRunAndNothingElse) {
  const std::map<std::string, std::string> kept = {{"GLOO_SOCKET_IFNAME", "eth0"},
                                                   {"LD_LIBRARY_PATH", "/lib"},
                                                   {"OMP_NUM_THREADS", "1"},
                                                   {"STAGECRAFT_SECRET", "s"}};
  std::map<std::string, std::string> all = kept;
  all.insert({{"HOME", "/home/me"}, {"PATH", "/bin"}, {"SLURM_PROCID", "0"}, {"STAGECRAFT_LISTEN", "10.0.0.1"}});
  EXPECT_EQ(handed_over(all), kept);
}

TEST(RankLogPath, SortsByRank) {
  EXPECT_EQ(rank_log_path("logs", 7, 64), "logs/rank-07.log");
  EXPECT_EQ(rank_log_path("logs", 9, 10), "logs/rank-9.log");
  EXPECT_EQ(rank_log_path("logs", 9, 11), "logs/rank-09.log");
  EXPECT_EQ(rank_log_path("logs", 0, 1), "logs/rank-0.log");
}

}  // namespace
}  // namespace stagecraft::launch
