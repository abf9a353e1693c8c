#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <string>
#include <vector>

#include "tests/support/run_command.h"

// partitioner -> costmodel <- executor <- profiler: nothing else is included, and planning tools stay free of LibTorch.

namespace stagecraft {
namespace {

namespace fs = std::filesystem;

/// The rooms that each room may include.
const std::map<std::string, std::vector<std::string>> kRooms{
    {"costmodel", {"costmodel"}},
    {"partitioner", {"costmodel", "partitioner"}},
    {"executor", {"costmodel", "executor"}},
    {"profiler", {"costmodel", "executor", "profiler"}},
};

bool is_one_of(const std::string& word, const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Why `file` (from the root) may not include `target`; absent if it may.
std::optional<std::string> breach(const std::string& file, const std::string& target) {
  const std::string room = file.substr(0, file.find('/'));
  const std::string first = target.substr(0, target.find('/'));
  if (first == "tests" || first == "bench") return "a room includes no " + first;
  if (kRooms.contains(first) && !is_one_of(first, kRooms.at(room))) return room + " may not include " + first;
  const bool tensors = is_one_of(first, {"torch", "ATen", "c10", "caffe2"});
  if (tensors && (room == "costmodel" || room == "partitioner")) return room + " does without LibTorch";
  if (target == "torch/torch.h" || target == "ATen/ATen.h")
    return "costs every file that includes it many seconds, narrower headers do";
  if (first == "nlohmann" && !file.starts_with("costmodel/format/")) return "JSON stays in costmodel/format";
  const bool tool = file.ends_with("_tool.cpp") || file.ends_with("/tool.h") || file.ends_with("/tool_numbers.h") ||
                    file.ends_with("/tool_options.h");
  if (first == "CLI" && !tool) return "command lines stay in the tools";
  return std::nullopt;
}

/// Breaches in one file's text, each "FILE:LINE: ...".
std::vector<std::string> breaches(const std::string& file, std::istream& text) {
  static const std::regex include(R"re(^\s*#\s*include\s*["<]([^">]+)[">].*)re");
  std::vector<std::string> out;
  int number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    std::smatch match;
    if (!std::regex_match(line, match, include)) continue;
    if (const auto why = breach(file, match[1])) {
      out.push_back(file + ":" + std::to_string(number) + ": includes " + match[1].str() + ", " + *why);
    }
  }
  return out;
}

TEST(Architecture, IsKeptByEveryInclude) {
  const fs::path root = STAGECRAFT_SOURCE_DIR;
  std::vector<std::string> found;
  int files = 0;
  for (const auto& [room, may] : kRooms) {
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp") continue;
      ++files;
      std::ifstream in(entry.path());
      for (const std::string& line : breaches(fs::relative(entry.path(), root).string(), in)) found.push_back(line);
    }
  }
  EXPECT_GT(files, 50);
  EXPECT_THAT(found, ::testing::IsEmpty());
}

TEST(Architecture, NamesFileAndLineOfABreach) {
  const auto found = [](const std::string& file, const std::string& text) {
    std::istringstream in(text);
    return breaches(file, in);
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(found("costmodel/a.cpp", "#pragma once\n#include \"partitioner/strategy.h\"\n"),
              ElementsAre("costmodel/a.cpp:2: includes partitioner/strategy.h, costmodel may not include partitioner"));
  EXPECT_THAT(found("executor/a.cpp", "#include \"profiler/profile.h\""), ::testing::SizeIs(1));
  EXPECT_THAT(found("partitioner/a.h", "# include <c10/util/Half.h>"),
              ElementsAre("partitioner/a.h:1: includes c10/util/Half.h, partitioner does without LibTorch"));
  EXPECT_THAT(found("executor/a.cpp", "#include <torch/torch.h>"), ::testing::SizeIs(1));
  EXPECT_THAT(found("executor/a.cpp", "#include <nlohmann/json.hpp>"),
              ElementsAre("executor/a.cpp:1: includes nlohmann/json.hpp, JSON stays in costmodel/format"));
  EXPECT_THAT(found("executor/a.cpp", "#include <CLI/CLI.hpp>"),
              ElementsAre("executor/a.cpp:1: includes CLI/CLI.hpp, command lines stay in the tools"));
  EXPECT_THAT(found("executor/run_tool.cpp",
                    "#include <CLI/CLI.hpp>\n#include \"costmodel/plan.h\"\n// #include \"profiler/x.h\""),
              ::testing::IsEmpty());
}

TEST(Architecture, PlanningToolsDoNotLinkLibTorch) {
  const testing::CommandFolder folder;
  for (const char* verb : {"plan", "predict", "compare", "graph", "import", "export"}) {
    const auto needed = folder.run("readelf -d \"$(command -v stagecraft-" + std::string(verb) + ")\" | grep NEEDED");
    EXPECT_EQ(needed.status, 0) << needed.err;
    EXPECT_THAT(needed.out, ::testing::HasSubstr("libstdc++")) << verb;
    for (const char* library : {"torch", "libc10", "cuda", "nccl", "cupti"}) {
      EXPECT_THAT(needed.out, ::testing::Not(::testing::HasSubstr(library))) << verb;
    }
  }
}

}  // namespace
}  // namespace stagecraft
