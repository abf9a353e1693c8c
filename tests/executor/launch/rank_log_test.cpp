#include "executor/launch/rank_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <string>

#include "tests/support/run_command.h"

namespace stagecraft::launch {
namespace {

using ::testing::HasSubstr;

/// The result of a process with a log. Its standard output and standard error are a file.
struct Ended {
  int status = 0;
  std::string terminal;
  std::string log;
};

Ended run_as_rank_0(const std::function<void(const RankLog&)>& work) {
  const testing::CommandFolder folder;
  const std::string terminal = (folder.path() / "terminal").string();
  const std::string logs = (folder.path() / "logs").string();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    if (!std::freopen(terminal.c_str(), "w", stdout) || ::dup2(STDOUT_FILENO, STDERR_FILENO) < 0) ::_exit(99);
    {
      const RankLog log(logs, 0, 1);
      work(log);
    }
    std::fflush(nullptr);
    ::_exit(0);
  }
  Ended out;
  ::waitpid(child, &out.status, 0);
  out.terminal = folder.read("terminal");
  out.log = folder.read("logs/rank-0.log");
  return out;
}

std::string lines(int count) {
  std::string out;
  for (int i = 0; i < count; ++i) out += "line " + std::to_string(i) + "\n";
  return out;
}

TEST(RankLog, WritesToTheLogAndToTheTerminal) {
  const Ended ended = run_as_rank_0([](const RankLog&) { std::printf("%s", lines(1000).c_str()); });
  EXPECT_EQ(ended.status, 0);
  EXPECT_EQ(ended.log, lines(1000));
  EXPECT_EQ(ended.terminal, lines(1000));
}

TEST(RankLog, LosesNothingWhenTheCopyingProcessIsKilled) {
  constexpr int kLines = 20000;  // more than fits into a pipe
  const Ended ended = run_as_rank_0([](const RankLog& log) {
    const pid_t first = log.copier();
    ::kill(first, SIGKILL);
    for (int i = 0; i < kLines; ++i) std::printf("line %d\n", i);
  });
  EXPECT_TRUE(WIFEXITED(ended.status)) << "killed by signal " << WTERMSIG(ended.status);
  EXPECT_EQ(WEXITSTATUS(ended.status), 0);
  const std::string told =
      "stagecraft: the process that copied rank 0's log was killed by signal 9; rank 0 now copies it itself\n";
  for (const std::string* text : {&ended.log, &ended.terminal}) {
    EXPECT_THAT(*text, HasSubstr(told));
    std::string rest = *text;
    rest.erase(rest.find(told), told.size());
    EXPECT_EQ(rest, lines(kLines));
  }
}

}  // namespace
}  // namespace stagecraft::launch
