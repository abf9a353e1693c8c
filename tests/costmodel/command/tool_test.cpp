#include "costmodel/command/tool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <sstream>

#include "costmodel/version.h"

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
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

/// The result of `validator` for a text: why it refuses the text, or what it stores.
struct Verdict {
  std::string refusal;
  std::string stored;
};
Verdict verdict(const CLI::Validator& validator, const std::string& text) {
  Verdict out{"", text};
  out.refusal = validator(out.stored);
  return out;
}

TEST(ShownNumber, QuotesWhatDoesNotLookLikeANumber) {
  EXPECT_EQ(shown_number("-1.5e9"), "-1.5e9");
  EXPECT_EQ(shown_number(""), "\"\"");
  EXPECT_EQ(shown_number("ten"), "\"ten\"");
  EXPECT_EQ(shown_number("1 2"), "\"1 2\"");
}

TEST(NumberText, OmitsTrailingZeros) {
  EXPECT_EQ(number_text(0.001), "0.001");
  EXPECT_EQ(number_text(1'000'000), "1000000");
  EXPECT_EQ(number_text(1e30), "1e+30");
  EXPECT_EQ(number_text(-0.5), "-0.5");
}

TEST(NumberText, KeepsFifteenDigits) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const double value =
        std::ldexp(static_cast<double>(random() % 1'000'000'000), static_cast<int>(random() % 200) - 100);
    EXPECT_NEAR(std::strtod(number_text(value).c_str(), nullptr), value, 5e-15 * value) << "seed " << seed;
  }
}

TEST(Integer, StoresTheNumberThatWasChecked) {
  const Verdict found = verdict(integer(1, 20), "010");
  EXPECT_EQ(found.refusal, "");
  EXPECT_EQ(found.stored, "10");  // cannot be read as octal
}

TEST(Integer, TakesWhatIsInItsRangeAndNamesWhatIsNot) {
  for (int low = -3; low <= 3; ++low) {
    for (int high = low; high <= 3; ++high) {
      const CLI::Validator range = integer(low, high);
      for (int value = -5; value <= 5; ++value) {
        const std::string refusal = verdict(range, std::to_string(value)).refusal;
        if (low <= value && value <= high) {
          EXPECT_EQ(refusal, "") << low << ".." << high;
        } else {
          EXPECT_THAT(refusal, AllOf(StartsWith(std::to_string(value)), HasSubstr(std::to_string(low)),
                                     HasSubstr(std::to_string(high))));
        }
      }
    }
  }
}

TEST(Integer, NamesTheMaximumOnlyIfItIsExceeded) {
  EXPECT_THAT(verdict(integer(1), "0").refusal, AllOf(StartsWith("0 "), HasSubstr("1 or more")));
  EXPECT_THAT(verdict(integer(1), "2147483648").refusal, AllOf(StartsWith("2147483648 "), HasSubstr("2147483647")));
  EXPECT_THAT(verdict(integer(1), "-2147483649").refusal, HasSubstr("1 or more"));
  EXPECT_THAT(verdict(integer(1, 4, "the topology has 4"), "5").refusal, ::testing::EndsWith(", the topology has 4"));
  EXPECT_THAT(verdict(integer<std::uint64_t>(0), "-1").refusal, StartsWith("-1 "));
}

TEST(NumberFrom, IncludesBothEnds) {
  const CLI::Validator range = number_from(0.5, 2);
  for (const char* text : {"0.5", "2", "1e0"}) EXPECT_EQ(verdict(range, text).refusal, "") << text;
  for (const char* text : {"0.49", "2.01", "nan", "inf", "1e999"})
    EXPECT_THAT(verdict(range, text).refusal, AllOf(HasSubstr(text), HasSubstr("0.5"), HasSubstr("2"))) << text;
}

TEST(NumberAbove, ExcludesItsBoundAndInfinity) {
  const CLI::Validator above = number_above(0);
  EXPECT_EQ(verdict(above, "1e-300").refusal, "");
  for (const char* text : {"0", "-1", "inf", "nan", "", "x"})
    EXPECT_THAT(verdict(above, text).refusal, HasSubstr("above 0")) << text;
}

TEST(Wrapped, BreaksAtSpaces) {
  EXPECT_THAT(wrapped("one two three", 7), ElementsAre("one two", "three"));
  EXPECT_THAT(wrapped("one two three", 13), ElementsAre("one two three"));
  EXPECT_THAT(wrapped("", 7), ElementsAre(""));
}

TEST(Wrapped, LeavesLongWordsWhole) {
  EXPECT_THAT(wrapped("a graph.json/or/topology.json b", 7), ElementsAre("a", "graph.json/or/topology.json", "b"));
  EXPECT_THAT(wrapped("graph.json/or/topology.json", 7), ElementsAre("graph.json/or/topology.json"));
}

TEST(Wrapped, IndentsTheRestOfAnIndentedLine) {
  EXPECT_THAT(wrapped("all:\n  one two three\nend", 9), ElementsAre("all:", "  one two", "    three", "end"));
}

/// The help of a program with options of every kind.
class Help : public ::testing::Test {
 protected:
  std::string text(int width) {
    CLI::App app("Sows.", "stagecraft sow");
    app.formatter(std::make_shared<HelpFormatter>(width));
    app.footer("Example:\n  stagecraft sow seeds.json");
    app.add_option("FIELD", field_, "where to sow")->required();
    app.add_option("SACK", seed_, "seeds (required)");
    app.add_option("BARN", seed_, "where the tools are");
    {
      const OptionGroup group(app, "Weather");
      CLI::Option* const rain = app.add_flag("--rain", rain_, "sow in the rain");
      app.add_option("--hours", hours_,
                     "wait for so many hours of sunshine before the first seed is put into the ground")
          ->capture_default_str()
          ->transform(integer(1))
          ->excludes(rain);
    }
    app.add_option("--seed", seed_, "kind of seed")->envname("SEED");
    app.add_option("-o,--output", field_, "where the harvest goes")->type_name("FILE");
    app.add_option("--pairs", pairs_, "plants side by side")->type_name("PLANT:PLANT");
    app.add_flag("--secret", rain_, "not shown")->group("");
    return app.help();
  }

  std::string field_, seed_, pairs_;
  int hours_ = 3;
  bool rain_ = false;
};

TEST_F(Help, ListsTheGroupsWithOneEmptyLineBetween) {
  const std::string help = text(80);
  EXPECT_THAT(help, HasSubstr("Sows.\nUsage: stagecraft sow [OPTIONS] FIELD SACK [BARN]\n\nPositionals:\n"));
  EXPECT_THAT(help, HasSubstr("\n\nWeather:\n  --rain                  sow in the rain [not with --hours]\n"));
  EXPECT_THAT(help, HasSubstr("\n\nExample:\n  stagecraft sow seeds.json\n"));
  EXPECT_THAT(help, Not(HasSubstr("\n\n\n")));
  EXPECT_THAT(help, Not(HasSubstr("secret")));
  // Options declared after a group belong to the usual one.
  EXPECT_LT(help.find("--seed"), help.find("Weather:"));
}

TEST_F(Help, EndsDescriptionsWithWhatIsAllowed) {
  const std::string help = text(200);
  EXPECT_THAT(help, HasSubstr("put into the ground [1 or more; default: 3; not with --rain]\n"));
  EXPECT_THAT(help, HasSubstr("kind of seed [or the environment variable SEED]\n"));
  EXPECT_THAT(help, HasSubstr("  FIELD                   where to sow\n"));
  EXPECT_THAT(help, HasSubstr("  --seed TEXT             kind of seed"));
  EXPECT_THAT(help, HasSubstr("  -o,--output FILE        where the harvest goes\n"));
  EXPECT_THAT(help, HasSubstr("  --pairs PLANT:PLANT     plants side by side\n"));
}

TEST_F(Help, FitsTheScreen) {
  for (const int width : {66, 80, 100, 200}) {
    SCOPED_TRACE(width);
    std::istringstream lines(text(width));
    for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), static_cast<std::size_t>(width)) << line;
  }
}

}  // namespace
}  // namespace stagecraft
