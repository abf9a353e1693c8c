#include "executor/launch/hosts.h"

#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "executor/launch/rank_log.h"
#include "executor/meeting/secret.h"
#include "tests/support/run_command.h"

namespace stagecraft::launch {
namespace {

/// The hosts that read_hosts returns for a file hosts.txt with this text, or what it throws, without the folder.
std::vector<Host> hosts_of(const std::string& text) {
  const testing::CommandFolder folder;
  folder.write("hosts.txt", text);
  return read_hosts((folder.path() / "hosts.txt").string());
}

std::string error_of(const std::string& text) {
  try {
    (void)hosts_of(text);
  } catch (const FormatError& error) {
    const std::string all = error.what();
    return all.substr(all.find("hosts.txt"));
  }
  return "no error";
}

TEST(ReadHosts, TakesNamesSlotsAndComments) {
  EXPECT_EQ(hosts_of("# two machines\nred slots=4 # the big one\n\n  me@blue.example  \n10.0.0.7\tslots=2"),
            (std::vector<Host>{{"red", 4}, {"me@blue.example", 1}, {"10.0.0.7", 2}}));
}

TEST(ReadHosts, NamesTheLineThatIsWrong) {
  EXPECT_EQ(error_of("red\nblue\nred slots=2"),
            "hosts.txt: line 3: host \"red\" is already on line 1; set slots=N there to run more ranks on it");
  EXPECT_EQ(error_of("red\nme@red"),
            "hosts.txt: line 2: host \"me@red\" is already on line 1; set slots=N there to run more ranks on it");
  for (const std::string slots : {"0", "-1", "two", "", "3x", "1048577"}) {
    EXPECT_EQ(error_of("\nred slots=" + slots),
              "hosts.txt: line 2: slots is \"" + slots + "\", must be an integer from 1 to 1048576");
  }
  EXPECT_EQ(error_of("red max=3"), "hosts.txt: line 1: unknown word \"max=3\", expected NAME [slots=N]");
  EXPECT_EQ(error_of("-oProxyCommand=x"),
            "hosts.txt: line 1: \"-oProxyCommand=x\" is not a host name, expected NAME [slots=N]");
  EXPECT_EQ(error_of("# nobody\n"), "hosts.txt: has no hosts, expected one NAME [slots=N] per line");
}

TEST(PlaceRanks, FillsHostAfterHost) {
  EXPECT_EQ(place_ranks({{"red", 2}, {"blue", 3}}, 4),
            (std::vector<RankPlace>{{"red", 0}, {"red", 1}, {"blue", 0}, {"blue", 1}}));
}

TEST(PlaceRanks, SaysBothNumbersWhenSlotsAreTooFew) {
  const auto error = [](const std::vector<Host>& hosts) -> std::string {
    try {
      (void)place_ranks(hosts, 5);
    } catch (const std::invalid_argument& wrong) { return wrong.what(); }
    return "no error";
  };
  const std::string advice = "; set slots=N for hosts that run more than one";
  EXPECT_EQ(error({{"red", 2}, {"blue", 1}}), "the plan needs 5 ranks, the 2 hosts have 3 slots" + advice);
  EXPECT_EQ(error({{"red", 1}}), "the plan needs 5 ranks, the 1 host has 1 slot" + advice);
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
