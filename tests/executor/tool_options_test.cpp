#include "executor/tool_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "costmodel/format/files/files.h"
#include "executor/files/fingerprint.h"
#include "tests/support/run_command.h"

namespace stagecraft {
namespace {

using ::testing::ElementsAre;

/// A command line with options of each kind.
struct Command {
  Command() {
    app.add_option("--steps", steps)->capture_default_str();
    app.add_flag("--check", check);
    agreed.per_rank(app.add_option("-o,--output", output));
    agreed.names_files(app.add_option("--weights", weights));
    agreed.names_files(app.add_option("--data", data)->capture_default_str(), [](const std::string& value) {
      return value == "synthetic" ? std::vector<std::string>{} : std::vector{value.substr(value.find(':') + 1)};
    });
    app.set_help_flag("");
  }
  [[nodiscard]] std::vector<std::string> lines(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());
    app.parse(words);
    return agreed.lines(app);
  }

  CLI::App app;
  AgreedOptions agreed;
  int steps = 10;
  bool check = false;
  std::string output, weights, data = "synthetic";
};

TEST(AgreedOptions, AreAllThatAreNotPerRankWithTheirValuesOrDefaults) {
  EXPECT_THAT(Command().lines({"--output", "a.json", "--check"}),
              ElementsAre("--check true", "--data synthetic", "--steps 10", "--weights "));
}

TEST(AgreedOptions, ContainANewOptionUnlessItIsMarked) {
  Command command;
  std::string added;
  command.app.add_option("--added", added);
  EXPECT_THAT(command.lines({"--added", "x"}),
              ElementsAre("--added x", "--check ", "--data synthetic", "--steps 10", "--weights "));
}

TEST(AgreedOptions, CompareTheContentsOfFiles) {
  const testing::CommandFolder folder;
  const std::string weights = (folder.path() / "weights").string();
  const std::string data = (folder.path() / "data").string();
  format::write_text(weights, "one");
  format::write_text(data, "two");
  EXPECT_THAT(Command().lines({"--weights", weights, "--data", "text:" + data}),
              ElementsAre("--check ", "--data text:" + data, "--steps 10", "--weights " + weights,
                          "--data file " + data + ": " + files::fingerprint(data),
                          "--weights file " + weights + ": " + files::fingerprint(weights)));
}

}  // namespace
}  // namespace stagecraft
