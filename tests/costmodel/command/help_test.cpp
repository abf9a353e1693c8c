#include "costmodel/command/help.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <sstream>

#include "costmodel/command/tool_numbers.h"

namespace stagecraft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

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
