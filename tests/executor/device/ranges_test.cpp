#include "executor/device/ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "costmodel/index.h"
#include "tests/support/run_command.h"

// The ranges that an NVTX tool receives, without a GPU: tests/support/programs/nvtx_listener.cpp is loaded into a child
// process.

namespace stagecraft::device {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// The ranges of "stagecraft" that the listener wrote in a child that ran `range_program what`: each range once, as
/// "outermost > ... > name" with its number in brackets, by thread.
std::map<int, std::vector<std::string>> heard(const std::string& what) {
  const testing::CommandFolder folder;
  const testing::Outcome o = folder.run(
      "NVTX_INJECTION64_PATH='" STAGECRAFT_NVTX_LISTENER "' STAGECRAFT_TEST_RANGES=ranges.txt range_program " + what);
  EXPECT_EQ(o.status, 0) << o.err;
  std::map<int, std::vector<std::string>> out;
  std::map<int, std::vector<std::string>> open;
  std::istringstream lines(folder.read("ranges.txt"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    int thread = 0;
    std::string verb, domain, number, name;
    words >> thread >> verb >> domain;
    if (domain != "stagecraft") continue;
    if (verb == "pop") {
      EXPECT_FALSE(open[thread].empty()) << line;
      if (!open[thread].empty()) open[thread].pop_back();
      continue;
    }
    words >> number >> std::ws;
    std::getline(words, name);
    open[thread].push_back(name + " [" + number + "]");
    std::string path;
    for (const std::string& range : open[thread]) path += (path.empty() ? "" : " > ") + range;
    out[thread].push_back(path);
  }
  for (const auto& [thread, left] : open) EXPECT_TRUE(left.empty()) << "thread " << thread;
  return out;
}

TEST(Ranges, OfARunAreLayersInActionsInSteps) {
  // Two microbatches of two layers and a loss, all forwards first, like GPipe on one rank.
  const auto threads = heard("run");
  std::vector<std::string> run;
  for (const auto& [thread, ranges] : threads) {
    for (const std::string& range : ranges) {
      if (range.starts_with("step")) run.push_back(range);
    }
  }
  ASSERT_GE(run.size(), 13U);
  std::vector<std::string> actions;
  std::vector<std::string> layers;
  for (const std::string& range : run) {
    const auto depth = to_int(std::count(range.begin(), range.end(), '>'));
    if (depth == 1 && range.starts_with("step [1]")) actions.push_back(range);
    if (range.starts_with("step [1] > forward 1 [1] > ")) layers.push_back(range.substr(27));
  }
  EXPECT_THAT(actions, ElementsAre("step [1] > forward 0 [1]", "step [1] > forward 1 [1]", "step [1] > backward 0 [1]",
                                   "step [1] > backward 1 [1]", "step [1] > update [1]"));
  EXPECT_THAT(layers, ::testing::Each(::testing::EndsWith(" forward [1]")));
  EXPECT_GE(layers.size(), 3U);
  EXPECT_THAT(layers, Contains(HasSubstr("fc1 forward")));
}

TEST(Ranges, OfAProfileAreLayersInIterations) {
  std::vector<std::string> all;
  for (const auto& [thread, ranges] : heard("profile")) all.insert(all.end(), ranges.begin(), ranges.end());
  EXPECT_THAT(all, Contains("iteration [1]"));
  EXPECT_THAT(all, Contains("iteration [1] > fc1 forward [0]"));
  EXPECT_THAT(all, Contains("watched iteration [0] > fc1 forward [0]"));
  EXPECT_THAT(all, Contains("watched iteration [0] > fc1 backward [0]"));
}

}  // namespace
}  // namespace stagecraft::device
