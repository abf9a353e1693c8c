#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "costmodel/schedule.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

// partitioner -> costmodel <- executor <- profiler, and the arrows between their folders: no other includes are
// allowed, and planning tools do not use LibTorch.

namespace stagecraft {
namespace {

namespace fs = std::filesystem;

/// The arrows: the folders that a folder may include besides itself, together with everything that those may include.
/// Files at the root of executor/ and profiler/ may include their folders.
const std::map<std::string, std::vector<std::string>> kArrows{
    {"costmodel", {}},
    {"costmodel/text", {"costmodel"}},
    {"costmodel/scheduling", {"costmodel"}},
    {"costmodel/links", {"costmodel"}},
    {"costmodel/simulation", {"costmodel"}},
    {"costmodel/prediction", {"costmodel/links", "costmodel/simulation", "costmodel/text"}},
    {"costmodel/accuracy", {"costmodel/prediction"}},
    {"costmodel/analysis", {"costmodel/accuracy"}},
    {"costmodel/doctor", {"costmodel/accuracy"}},
    {"costmodel/format/files", {"costmodel"}},
    {"costmodel/format", {"costmodel/format/files", "costmodel/doctor", "costmodel/analysis"}},
    {"costmodel/format/results", {"costmodel/format"}},
    {"costmodel/interchange/problems", {"costmodel/format"}},
    {"costmodel/interchange", {"costmodel/interchange/problems"}},
    {"costmodel/interchange/convert", {"costmodel/interchange"}},
    {"costmodel/report", {"costmodel/interchange", "costmodel/format/results"}},
    {"costmodel/project", {"costmodel/format/results"}},
    {"costmodel/command", {"costmodel/interchange/convert"}},
    {"costmodel/tools", {"costmodel/command"}},
    {"partitioner/costs", {"costmodel/prediction"}},
    {"partitioner/bounds", {"partitioner/costs"}},
    {"partitioner", {"costmodel/prediction"}},
    {"partitioner/search", {"partitioner", "partitioner/bounds"}},
    {"partitioner/strategies", {"partitioner/search"}},
    {"partitioner/choices", {"partitioner/strategies", "costmodel/report"}},
    {"partitioner/command", {"partitioner/choices"}},
    {"partitioner/objective", {"partitioner/strategies", "costmodel/interchange", "costmodel/format/results"}},
    {"executor/device", {"costmodel/format"}},
    {"executor/device/machine", {"executor/device"}},
    {"executor/files", {"executor/device"}},
    {"executor/model", {"executor/device/machine"}},
    {"executor/intake/graph", {"executor/model", "executor/files"}},
    {"executor/intake/graph/calls", {"executor/intake/graph"}},
    {"executor/intake/graph/layers", {"executor/intake/graph/calls"}},
    {"executor/intake/graph/program", {"executor/intake/graph/calls"}},
    {"executor/intake/builtin", {"executor/intake/graph/program", "executor/intake/graph/layers"}},
    {"executor/intake/pt2", {"executor/intake/graph/program", "executor/intake/graph/layers"}},
    {"executor/intake/torchscript", {"executor/intake/graph/layers"}},
    {"executor/intake/export", {"executor/intake/pt2", "executor/intake/torchscript", "costmodel/interchange/convert"}},
    {"executor/intake", {"executor/intake/builtin", "executor/intake/pt2", "executor/intake/torchscript"}},
    {"executor/data", {"executor/model", "executor/files"}},
    {"executor/meeting", {"costmodel/text"}},
    {"executor/channel", {"executor/device/machine", "executor/meeting"}},
    {"executor/channel/ucx", {"executor/channel"}},
    {"executor/channel/nccl", {"executor/channel"}},
    {"executor/channel/table", {"executor/channel/ucx", "executor/channel/nccl"}},
    {"executor/launch", {"executor/channel/table", "costmodel/interchange"}},
    {"executor/stage", {"executor/model", "executor/channel"}},
    {"executor/stage/gradients", {"executor/stage"}},
    {"executor/checkpoint", {"executor/stage", "executor/files"}},
    {"executor/run/binding",
     {"executor/intake", "executor/data", "executor/launch", "executor/checkpoint", "executor/stage/gradients",
      "costmodel/interchange"}},
    {"executor/run/worker", {"executor/run/binding"}},
    {"executor/run", {"executor/run/worker", "costmodel/format/results"}},
    {"executor", {"executor/run", "executor/intake/export"}},
    {"profiler/kernels", {"executor/device"}},
    {"profiler/subject", {"profiler/kernels", "executor/run"}},
    {"profiler/layers", {"profiler/subject"}},
    {"profiler/links", {"profiler/subject", "executor/channel/nccl"}},
    {"profiler", {"profiler/layers", "profiler/links"}},
    {"python/bindings", {"partitioner/strategies", "costmodel/report"}},
};

/// `folder` and everything that it may include.
std::set<std::string> reach(const std::string& folder) {
  std::set<std::string> out{folder};
  for (const std::string& next : kArrows.at(folder)) out.merge(reach(next));
  return out;
}

bool is_one_of(const std::string& word, const std::vector<std::string>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

/// Command-line tools and the code they share; they may include their whole room, the cost model's documents and
/// estimates, and the formats of other programs.
bool is_tool(const std::string& file) {
  return file.ends_with("_tool.cpp") || file.ends_with("_command.cpp") || file.ends_with("_command.h") ||
         file.ends_with("/tool_options.h") || file.ends_with("/tool_options.cpp") ||
         file.starts_with("costmodel/command/") || file.starts_with("partitioner/command/");
}

std::set<std::string> may_include(const std::string& file) {
  std::string folder = fs::path(file).parent_path().string();
  if (!is_tool(file)) return reach(folder);
  std::set<std::string> out = reach(folder);
  out.merge(reach("costmodel/command"));
  out.merge(reach("costmodel/report"));
  out.merge(reach("costmodel/project"));
  // The profiler's tools start ranks like the executor's.
  if (folder == "profiler") out.insert("executor");
  // plan hands command lines with --objective-profile on.
  if (folder == "partitioner") {
    out.merge(reach("partitioner/command"));
    out.insert("partitioner/objective");
  }
  if (folder == "partitioner/objective") out.insert("partitioner/command");
  return out;
}

/// Why `file` (from the root) may not include `target`; absent if it may.
std::optional<std::string> breach(const std::string& file, const std::string& target) {
  const std::string room = file.substr(0, file.find('/'));
  const std::string first = target.substr(0, target.find('/'));
  if (first == "tests" || first == "bench") return "a room does not include " + first;
  const std::string from = fs::path(file).parent_path().string();
  const std::string to = fs::path(target).parent_path().string();
  if (kArrows.contains(to) && !may_include(file).contains(to)) return from + " may not include " + to;
  const bool tensors = is_one_of(first, {"torch", "ATen", "c10", "caffe2"});
  if (tensors && (room == "costmodel" || room == "partitioner" || room == "python"))
    return room + " does without LibTorch";
  if (tensors && from == "executor/meeting" && first == "ATen") return "the meeting store knows no tensors";
  if (target == "torch/torch.h" || target == "ATen/ATen.h")
    return "costs every file that includes it many seconds, narrower headers do";
  if (first == "nlohmann" && !from.starts_with("costmodel/format")) return "JSON stays in costmodel/format";
  if (first == "toml++" && file != "costmodel/project/project.cpp")
    return "TOML stays in costmodel/project/project.cpp";
  if (first == "CLI" && !is_tool(file)) return "command lines stay in the tools";
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
  const fs::path root = source_folder();
  std::vector<std::string> found;
  int files = 0;
  for (const char* room : {"costmodel", "partitioner", "executor", "profiler", "python"}) {
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

TEST(Architecture, HasNoFolderWithoutArrowsAndNoCycle) {
  const fs::path root = source_folder();
  std::set<std::string> found;
  for (const char* room : {"costmodel", "partitioner", "executor", "profiler", "python"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      const std::string extension = entry.path().extension();
      if (extension == ".h" || extension == ".cpp")
        found.insert(fs::relative(entry.path().parent_path(), root).string());
    }
  }
  std::set<std::string> listed;
  for (const auto& [folder, may] : kArrows) {
    listed.insert(folder);
    // reach() would not end on a cycle: no folder that a folder reaches may reach it.
    for (const std::string& next : may) EXPECT_FALSE(reach(next).contains(folder)) << folder << " and " << next;
  }
  EXPECT_EQ(found, listed);
}

/// Which names include which, where `name_of` gives the name of a file (from the root), and "" for one that does not
/// count.
std::map<std::string, std::set<std::string>> includes_between(
    const std::vector<std::string>& rooms, const std::function<std::string(const std::string& file)>& name_of) {
  static const std::regex include(R"re(^\s*#\s*include\s*"([^"]+)".*)re");
  const fs::path root = source_folder();
  std::map<std::string, std::set<std::string>> out;
  for (const std::string& room : rooms) {
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp") continue;
      const std::string from = name_of(fs::relative(entry.path(), root).string());
      if (from.empty()) continue;
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        std::smatch match;
        if (!std::regex_match(line, match, include) || !fs::exists(root / match[1].str())) continue;
        const std::string to = name_of(match[1]);
        if (!to.empty() && to != from) out[from].insert(to);
      }
    }
  }
  return out;
}

/// Pairs of names that include each other, directly or through others.
std::vector<std::string> cycles(const std::map<std::string, std::set<std::string>>& includes) {
  std::map<std::string, std::set<std::string>> reached;
  for (const auto& [from, direct] : includes) {
    std::vector<std::string> next(direct.begin(), direct.end());
    while (!next.empty()) {
      const std::string name = next.back();
      next.pop_back();
      if (!reached[from].insert(name).second || !includes.contains(name)) continue;
      next.insert(next.end(), includes.at(name).begin(), includes.at(name).end());
    }
  }
  std::vector<std::string> out;
  for (const auto& [from, all] : reached) {
    for (const std::string& to : all) {
      if (from < to && reached.contains(to) && reached.at(to).contains(from)) out.push_back(from + " and " + to);
    }
  }
  return out;
}

TEST(Architecture, HasNoFoldersThatIncludeEachOther) {
  // A tool includes the folders of its room from above, although its file is at the room's root.
  const auto folder_of = [](const std::string& file) {
    return file.ends_with("_tool.cpp") ? std::string() : fs::path(file).parent_path().string();
  };
  const auto includes = includes_between({"costmodel", "partitioner", "executor", "profiler", "python"}, folder_of);
  EXPECT_GT(includes.size(), 50U);
  EXPECT_THAT(cycles(includes), ::testing::IsEmpty());
}

TEST(Architecture, HasNoFilesOfTheseRoomsThatIncludeEachOther) {
  // A header and its sources, also those for one kind of device, are one.
  const auto unit_of = [](const std::string& file) {
    static const std::regex suffix(R"re((_cpu|_cuda)?\.(h|cpp)$)re");
    return std::regex_replace(file, suffix, "");
  };
  const auto includes = includes_between({"costmodel", "profiler"}, unit_of);
  EXPECT_GT(includes.size(), 100U);
  EXPECT_THAT(cycles(includes), ::testing::IsEmpty());
}

TEST(Architecture, NamesWhatIncludesEachOther) {
  EXPECT_THAT(cycles({{"a", {"b"}}, {"b", {"c"}}, {"c", {"a", "d"}}, {"d", {"e"}}}),
              ::testing::ElementsAre("a and b", "a and c", "b and c"));
}

TEST(Architecture, NamesFileAndLineOfABreach) {
  const auto found = [](const std::string& file, const std::string& text) {
    std::istringstream in(text);
    return breaches(file, in);
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(found("costmodel/a.cpp", "#pragma once\n#include \"partitioner/strategy.h\"\n"),
              ElementsAre("costmodel/a.cpp:2: includes partitioner/strategy.h, costmodel may not include partitioner"));
  EXPECT_THAT(found("executor/a.cpp", "#include \"profiler/profile.h\""),
              ElementsAre("executor/a.cpp:1: includes profiler/profile.h, executor may not include profiler"));
  EXPECT_THAT(found("executor/meeting/a.cpp", "#include \"executor/channel/channel.h\""),
              ElementsAre("executor/meeting/a.cpp:1: includes executor/channel/channel.h, executor/meeting may not "
                          "include executor/channel"));
  EXPECT_THAT(found("costmodel/a.cpp", "#include \"costmodel/format/graph_json.h\""), ::testing::SizeIs(1));
  EXPECT_THAT(found("executor/intake/graph/a.cpp", "#include \"executor/intake/graph/program/program_graph.h\""),
              ::testing::SizeIs(1));
  EXPECT_THAT(found("executor/run/a.cpp", "#include \"executor/stage/optimizer.h\""), ::testing::IsEmpty());
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

/// A bound holds by the properties of a schedule's entry in the table, so that a new schedule has it too.
TEST(Architecture, ChoosesNoBoundOrSearchByTheNameOfASchedule) {
  const fs::path root = source_folder();
  std::vector<std::string> found;
  for (const char* folder : {"costs", "bounds", "search", "strategies", "choices"}) {
    for (const auto& entry : fs::directory_iterator(root / "partitioner" / folder)) {
      const std::string name = entry.path().filename();
      if (name.ends_with(".md") || name == "pipedream.h") continue;  // that one names the strategy
      std::ifstream in(entry.path());
      for (std::string line; std::getline(in, line);) {
        const std::string code = line.substr(0, line.find("//"));
        for (const ScheduleEntry& schedule : schedules()) {
          if (code.find('"' + schedule.name + '"') != std::string::npos) found.push_back(name + ": " + line);
        }
      }
    }
  }
  EXPECT_THAT(found, ::testing::IsEmpty());
}

/// A type or alias in a source file.
struct DefinedType {
  std::string name;
  std::string place;  ///< FILE:LINE
  bool is_global;     ///< outside unnamed namespaces, functions and other types
};

/// The types of one file's text, which is formatted: what a namespace contains begins in the first column. Aliases of a
/// type of the same name are left out.
std::vector<DefinedType> types_in(const std::string& file, std::istream& text) {
  static const std::regex definition(
      R"re(( *)(struct|class|union|enum|enum class) (\w+)( final)?( :[^;]*)?( \{.*)?)re");
  static const std::regex alias(R"re(( *)(using) (\w+) = (.*))re");
  std::vector<DefinedType> out;
  std::vector<bool> unnamed;  // the namespaces that the line is in
  int number = 0;
  for (std::string line; std::getline(text, line);) {
    ++number;
    if (line.starts_with("namespace ") && line.ends_with("{")) unnamed.push_back(line == "namespace {");
    if (line.starts_with("}  // namespace") && !unnamed.empty()) unnamed.pop_back();
    std::smatch match;
    const bool is_alias = std::regex_match(line, match, alias);
    if (!is_alias && !std::regex_match(line, match, definition)) continue;
    const std::string name = match[3];
    if (is_alias && match[4].str().find("::" + name) != std::string::npos) continue;
    out.push_back({name, file + ":" + std::to_string(number),
                   match.length(1) == 0 && std::ranges::find(unnamed, true) == unnamed.end()});
  }
  return out;
}

/// Names that a global type shares with another type, each "FILE:LINE: ...".
std::vector<std::string> shared_names(const std::vector<DefinedType>& types) {
  std::map<std::string, std::string> global;
  std::vector<std::string> out;
  const auto report = [&](const DefinedType& type, const std::string& other) {
    out.push_back(type.place + ": " + type.name + " is also the name of a type in " + other +
                  ", one of them needs a more specific name");
  };
  for (const DefinedType& type : types) {
    if (!type.is_global) continue;
    const auto [other, is_new] = global.emplace(type.name, type.place);
    if (!is_new) report(type, other->second);
  }
  for (const DefinedType& type : types) {
    const auto other = global.find(type.name);
    if (!type.is_global && other != global.end()) report(type, other->second);
  }
  return out;
}

TEST(Architecture, HasNoTwoTypesOfOneName) {
  const fs::path root = source_folder();
  std::vector<DefinedType> in_rooms;
  std::vector<DefinedType> global;  // also in tests, whose other types may have any name
  for (const char* room : {"costmodel", "partitioner", "executor", "profiler", "python", "tests", "bench"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / room)) {
      const std::string extension = entry.path().extension();
      if (extension != ".h" && extension != ".cpp") continue;
      std::ifstream in(entry.path());
      for (const DefinedType& type : types_in(fs::relative(entry.path(), root).string(), in)) {
        if (!is_one_of(room, {"tests", "bench"})) in_rooms.push_back(type);
        if (type.is_global) global.push_back(type);
      }
    }
  }
  EXPECT_GT(global.size(), 500U);
  EXPECT_THAT(shared_names(in_rooms), ::testing::IsEmpty());
  EXPECT_THAT(shared_names(global), ::testing::IsEmpty());
}

TEST(Architecture, NamesBothPlacesOfASharedName) {
  const auto found = [](const std::string& second) {
    std::istringstream first(
        "namespace stagecraft {\nstruct Stage {\n};\nenum class Origin { Measured };\nstruct Link;\n");
    std::vector<DefinedType> types = types_in("costmodel/plan.h", first);
    std::istringstream in("namespace stagecraft::run {\n" + second);
    for (const DefinedType& type : types_in("executor/run/a.cpp", in)) types.push_back(type);
    return shared_names(types);
  };
  using ::testing::ElementsAre;
  const std::string stage =
      "Stage is also the name of a type in costmodel/plan.h:2, one of them needs a more specific name";
  EXPECT_THAT(found("class Stage final : public Base {\n"), ElementsAre("executor/run/a.cpp:2: " + stage));
  EXPECT_THAT(found("class Stage\n    : public Base {\n"), ElementsAre("executor/run/a.cpp:2: " + stage));
  EXPECT_THAT(found("namespace {\nstruct Stage {};\n"), ElementsAre("executor/run/a.cpp:3: " + stage));
  EXPECT_THAT(found("struct Outer {\n  struct Stage {\n"), ElementsAre("executor/run/a.cpp:3: " + stage));
  EXPECT_THAT(found("using Stage = std::vector<int>;\n"), ElementsAre("executor/run/a.cpp:2: " + stage));
  EXPECT_THAT(found("  enum class Origin : std::uint8_t { Node };\n"),
              ElementsAre("executor/run/a.cpp:2: Origin is also the name of a type in costmodel/plan.h:4, one of them "
                          "needs a more specific name"));
  // Declarations, aliases of the type itself, and two names of which neither is global.
  EXPECT_THAT(found("struct Stage;\nusing Stage = stagecraft::Stage;\nstruct Link {};\n"), ::testing::IsEmpty());
  EXPECT_THAT(found("namespace {\nstruct Key {};\n}  // namespace\nstruct Outer {\n  struct Key {};\n};\n"),
              ::testing::IsEmpty());
}

TEST(Architecture, PlanningToolsDoNotLinkLibTorch) {
  const testing::CommandFolder folder;
  std::vector<std::string> verbs{"plan"};
  for (const auto& entry : fs::directory_iterator(source_folder() + "/costmodel/tools")) {
    const std::string name = entry.path().stem().string();
    // With LibTorch, the executor's convert_tool.cpp replaces the cost model's.
    if (name.ends_with("_tool") && name != "convert_tool") verbs.push_back(name.substr(0, name.find("_tool")));
  }
  EXPECT_GT(verbs.size(), 15U);
  for (const std::string& verb : verbs) {
    const auto needed = folder.run("readelf -d \"$(command -v stagecraft-" + verb + ")\" | grep NEEDED");
    EXPECT_EQ(needed.status, 0) << needed.err;
    EXPECT_THAT(needed.out, ::testing::HasSubstr("libstdc++")) << verb;
    for (const char* library : {"torch", "libc10", "cuda", "nccl", "cupti"}) {
      EXPECT_THAT(needed.out, ::testing::Not(::testing::HasSubstr(library))) << verb;
    }
  }
}

}  // namespace
}  // namespace stagecraft
