#include "costmodel/command/convert_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/plan_json.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/run_command.h"

// Conversion of archives, with a stager from the test. tests/tools/convert_tool_test.cpp tests the rest of the program.

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ConvertCommand : public ::testing::Test {
 protected:
  ConvertCommand() {
    folder_.write("model.pt2", "PK\3\4 and the rest");
    folder_.write("plan.json", format::plan_json(testing::row_plan("1f1b", {2, 1}, 4)));
  }
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }

  /// The exit status of stagecraft-convert PLAN --model MODEL -o out and `more`; its output goes to `said_`.
  int convert(const interchange::ArchiveStager& stager, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"--model", at("model.pt2")};
    words.insert(words.end(), more.begin(), more.end());
    return convert_plan(stager, words);
  }
  int convert_plan(const interchange::ArchiveStager& stager, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words{"stagecraft-convert", at("plan.json"), "-o", at("out")};
    words.insert(words.end(), more.begin(), more.end());
    std::vector<char*> argv;
    for (std::string& word : words) argv.push_back(word.data());
    ::testing::internal::CaptureStderr();
    const int status = run_convert_command(static_cast<int>(argv.size()), argv.data(), stager);
    said_ = ::testing::internal::GetCapturedStderr();
    return status;
  }

  testing::CommandFolder folder_;
  std::string said_;
};

/// Two stages, each with its own archive.
interchange::ArchiveStages two_stages() {
  interchange::ArchiveStages out;
  out.package = {"net",
                 {"input0"},
                 {"b"},
                 {{{"input0"}, {"a"}, "class Stage0:\n    pass\n"}, {{"a"}, {"b"}, "class Stage1:\n    pass\n"}},
                 {}};
  for (const char* name : {"stage0.pt2", "stage1.pt2"}) {
    out.archives[name] = [name](const std::string& path) { format::write_text(path, std::string("PK") + name); };
  }
  return out;
}

TEST_F(ConvertCommand, WritesTheStagesOfAnArchiveWithThePlansRanks) {
  std::string asked;
  const auto stager = [&](const Plan& plan, const std::string& path) {
    asked = path + " " + std::to_string(plan.stages.size());
    return two_stages();
  };
  EXPECT_EQ(convert(stager), 0) << said_;
  EXPECT_EQ(asked, at("model.pt2") + " 2");
  EXPECT_EQ(folder_.read("out/stage1.pt2"), "PKstage1.pt2");
  EXPECT_THAT(folder_.read("out/__init__.py"), HasSubstr("return \"net\""));
  EXPECT_EQ(said_, "stage 0: input0 -> a\nstage 1: a -> b\n");
  EXPECT_THAT(folder_.read("out/hybrid_conf.json"), HasSubstr("{\"0\": [0, 1], \"1\": [2]}"));
}

TEST_F(ConvertCommand, TakesTheArchiveThatThePlanNames) {
  Plan plan = testing::row_plan("1f1b", {1, 1}, 4);
  plan.model = at("model.pt2");
  folder_.write("plan.json", format::plan_json(plan));
  std::string asked;
  EXPECT_EQ(convert_plan([&](const Plan&, const std::string& path) {
              asked = path;
              return two_stages();
            }),
            0)
      << said_;
  EXPECT_EQ(asked, at("model.pt2"));
}

TEST_F(ConvertCommand, CallsTheModelAsAsked) {
  EXPECT_EQ(convert([](const Plan&, const std::string&) { return two_stages(); }, {"--arch", "mine"}), 0) << said_;
  EXPECT_THAT(folder_.read("out/__init__.py"), HasSubstr("return \"mine\""));
}

TEST_F(ConvertCommand, WritesAgainOverItsOwnFilesAlone) {
  const auto stager = [](const Plan&, const std::string&) { return two_stages(); };
  EXPECT_EQ(convert(stager), 0) << said_;
  EXPECT_EQ(convert(stager), 1);
  EXPECT_THAT(said_, HasSubstr(at("out")));
  EXPECT_EQ(convert(stager, {"--force"}), 0) << said_;
  folder_.write("out/stage7.pt2", "not an archive");
  EXPECT_EQ(convert(stager, {"--force"}), 1);
  EXPECT_EQ(folder_.read("out/stage7.pt2"), "not an archive");
}

TEST_F(ConvertCommand, NamesThePlanThatDoesNotFitTheArchiveAndWritesNothing) {
  EXPECT_EQ(convert([](const Plan&, const std::string&) -> interchange::ArchiveStages {
              throw std::invalid_argument("layer \"l0\" is not in it");
            }),
            1);
  EXPECT_EQ(said_, "stagecraft-convert: " + at("plan.json") + ": layer \"l0\" is not in it [SC2001]\n");
  EXPECT_FALSE(std::filesystem::exists(at("out")));
  EXPECT_EQ(convert([](const Plan&, const std::string& path) -> interchange::ArchiveStages {
              throw FormatError(path + ": is cut off");
            }),
            1);
  EXPECT_EQ(said_, "stagecraft-convert: " + at("model.pt2") + ": is cut off [SC1201]\n");
}

TEST_F(ConvertCommand, NamesTheOptionThatBuildsTheStagerWhereThereIsNone) {
  EXPECT_EQ(convert({}), 1);
  EXPECT_THAT(said_, AllOf(HasSubstr(at("model.pt2")), HasSubstr("-DSTAGECRAFT_WITH_TORCH=ON")));
}

TEST_F(ConvertCommand, TakesNoClassesForAnArchive) {
  const auto stager = [](const Plan&, const std::string&) { return two_stages(); };
  EXPECT_EQ(convert(stager, {"--layer", "A=b:C"}), 2);
  EXPECT_THAT(said_, StartsWith("stagecraft-convert: --layer: " + at("model.pt2")));
  EXPECT_EQ(convert(stager, {"--replicas", "1,1"}), 2);
  EXPECT_THAT(said_, AllOf(StartsWith("stagecraft-convert: --replicas: "), HasSubstr("plan.json")));
}

TEST_F(ConvertCommand, NamesTheLayerOptionThatSaysNothingOrTwoThings) {
  EXPECT_EQ(convert({}, {"--layer", "nothing"}), 2);
  EXPECT_THAT(said_, HasSubstr("\"nothing\""));
  EXPECT_EQ(convert({}, {"--layer", "A=b:C", "--layer", "A=d:E"}), 2);
  EXPECT_THAT(said_, HasSubstr("\"A\""));
}

}  // namespace
}  // namespace stagecraft
