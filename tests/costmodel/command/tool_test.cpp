#include "costmodel/command/tool.h"
#include "costmodel/version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <iostream>
#include <sstream>

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The result of running a tool.
struct Outcome {
  int status = -1;
  std::string out;
  std::string err;
};

/// Runs stagecraft-sow with these arguments; `run` does its work.
Outcome sow(std::vector<std::string> words, const std::function<void(CLI::App&)>& configure,
            const std::function<int()>& run) {
  words.insert(words.begin(), "stagecraft-sow");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  std::ostringstream out;
  std::ostringstream err;
  std::streambuf* const cout_before = std::cout.rdbuf(out.rdbuf());
  std::streambuf* const cerr_before = std::cerr.rdbuf(err.rdbuf());
  const ToolText text{"sow", "Sows.", "stagecraft sow seeds.json", ", of wheat"};
  const int status = run_tool(
      text, static_cast<int>(argv.size()), argv.data(), [&](CLI::App& app) { configure(app); }, [&] { return run(); });
  std::cout.rdbuf(cout_before);
  std::cerr.rdbuf(cerr_before);
  return {status, out.str(), err.str()};
}

Outcome sow(const std::vector<std::string>& words, const std::function<int()>& run = [] { return 0; }) {
  return sow(words, [](CLI::App&) {}, run);
}

TEST(RunTool, EndsWithWhatTheWorkGives) {
  EXPECT_EQ(sow({}).status, 0);
  EXPECT_EQ(sow({}, [] { return 1; }).status, 1);
  EXPECT_EQ(sow({}).err, "");
}

TEST(RunTool, HelpsWithAnExampleAndDoesNoWork) {
  bool worked = false;
  const Outcome o = sow({"--help"}, [&] {
    worked = true;
    return 1;
  });
  EXPECT_EQ(o.status, 0);
  EXPECT_FALSE(worked);
  EXPECT_THAT(o.out, AllOf(HasSubstr("Sows."), HasSubstr("stagecraft sow seeds.json"), HasSubstr("Exit status")));
  EXPECT_EQ(o.err, "");
}

TEST(RunTool, PrintsItsVersionAndThoseOfItsLibraries) {
  const Outcome o = sow({"--version"});
  EXPECT_EQ(o.status, 0);
  EXPECT_EQ(o.out, std::string("stagecraft-sow ") + version() + ", of wheat\n");
}

TEST(RunTool, EndsWithTwoOnACommandLineItCannotRead) {
  const Outcome o = sow({"--depth", "3"});
  EXPECT_EQ(o.status, 2);
  EXPECT_EQ(o.out, "");
  EXPECT_THAT(o.err,
              AllOf(StartsWith("stagecraft-sow: "), HasSubstr("--depth"), HasSubstr("\nsee stagecraft sow --help\n")));
}

TEST(RunTool, SuggestsTheOptionNearestToAMisspelling) {
  int depth = 0;
  int width = 0;
  const auto declare = [&](CLI::App& app) {
    app.add_option("--depth", depth);
    app.add_option("--width", width);
  };
  const auto said = [&](const std::string& argument) { return sow({argument, "3"}, declare, [] { return 0; }).err; };
  EXPECT_THAT(said("--depht"),
              HasSubstr("the following arguments were not expected: --depht 3, did you mean --depth? [SC1002]\n"));
  EXPECT_THAT(said("--with=4"), HasSubstr(", did you mean --width? [SC1002]\n"));
  EXPECT_THAT(said("--colour"), ::testing::Not(HasSubstr("did you mean")));
}

TEST(RunTool, EndsWithTwoWhereTheWorkFindsTheCommandLineWrong) {
  const Outcome o = sow({}, []() -> int { throw CLI::ValidationError("--depth", "is too deep"); });
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err, HasSubstr("--depth: is too deep"));
}

TEST(RunTool, GivesEachWrongCommandLineItsCode) {
  const auto configure = [](CLI::App& app) {
    app.add_option("--depth")->expected(1);
    app.add_flag("--wet")->excludes("--depth");
    app.add_flag("--deep")->needs("--depth");
    app.add_option("SEEDS")->required();
  };
  const auto err = [&](const std::vector<std::string>& words) { return sow(words, configure, [] { return 0; }).err; };
  EXPECT_THAT(err({"a", "--width", "1"}), HasSubstr(" [SC1002]\nsee"));
  EXPECT_THAT(err({}), HasSubstr(" [SC1003]\nsee"));
  EXPECT_THAT(err({"a", "--wet", "--depth", "2"}), HasSubstr(" [SC1004]\nsee"));
  EXPECT_THAT(err({"a", "--deep"}), HasSubstr(" [SC1004]\nsee"));
  EXPECT_THAT(err({"a", "--depth"}), HasSubstr(" [SC1005]\nsee"));
  EXPECT_EQ(sow({}, []() -> int { throw CLI::ParseError("seeds in winter", CLI::ExitCodes::InvalidError); }).err,
            "stagecraft-sow: seeds in winter [SC1001]\nsee stagecraft sow --help\n");
}

TEST(RunTool, ExitsWithOneOnBadInputAndMachineFailure) {
  const Outcome bad = sow({}, []() -> int { throw FormatError("seeds.json: /: is empty"); });
  EXPECT_EQ(bad.status, 1);
  EXPECT_EQ(bad.err, "stagecraft-sow: seeds.json: /: is empty [SC1201]\n");
  const Outcome refused = sow({}, []() -> int { throw DeviceError("no seeder"); });
  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(refused.err, "stagecraft-sow: no seeder [SC4001]\n");
}

TEST(Usage, MakesABadArgumentWrongUsageAndLeavesTheRest) {
  EXPECT_EQ(usage("--depth", [] { return 3; }), 3);
  EXPECT_EQ(sow({}, [] { return usage("--depth", []() -> int { throw std::invalid_argument("is too deep"); }); }).err,
            "stagecraft-sow: --depth: is too deep [SC1005]\nsee stagecraft sow --help\n");
  EXPECT_EQ(sow({}, [] { return usage("--depth", []() -> int { throw FormatError("a file"); }); }).status, 1);
}

TEST(OneOf, ListsTheNamesForAnotherOne) {
  const CLI::Validator clocks = one_of("clock", {"host", "cupti"});
  std::string known = "cupti";
  std::string unknown = "sundial";
  EXPECT_EQ(clocks(known), "");
  EXPECT_THAT(clocks(unknown), AllOf(HasSubstr("clock \"sundial\""), HasSubstr("host, cupti")));
}

TEST(AddBytesOption, ReadsAByteCountWithASuffix) {
  std::optional<Bytes> limit;
  const auto declare = [&](CLI::App& app) { add_bytes_option(app, "--limit", limit, "most"); };
  EXPECT_EQ(sow({"--limit", "2KiB"}, declare, [] { return 0; }).status, 0);
  EXPECT_EQ(limit, Bytes(2048));
  const Outcome o = sow({"--limit", "much"}, declare, [] { return 0; });
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err, AllOf(HasSubstr("--limit"), HasSubstr("\"much\"")));
}

TEST(AddForceOption, SetsTheFlagThatIsOffOtherwise) {
  bool force = false;
  const auto declare = [&](CLI::App& app) { add_force_option(app, force); };
  EXPECT_EQ(sow({}, declare, [] { return 0; }).status, 0);
  EXPECT_FALSE(force);
  EXPECT_EQ(sow({"--force"}, declare, [] { return 0; }).status, 0);
  EXPECT_TRUE(force);
}

}  // namespace
}  // namespace stagecraft
