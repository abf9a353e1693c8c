#include "executor/intake/pt2/program_guards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

using Ranges = std::map<std::string, std::pair<std::int64_t, std::int64_t>>;
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

Ranges ranges(const std::string& text) {
  const format::Json document = format::parse_document(text, "model.pt2");
  return read_ranges(format::Cursor(document, "model.pt2"));
}
std::string range_error(const std::string& text) {
  try {
    (void)ranges(text);
  } catch (const FormatError& e) { return e.what(); }
  return "no error";
}

TEST(ReadRanges, AreOpenWhereTheFileSaysNothing) {
  EXPECT_THAT(ranges(R"({"s0": {"min_val": 2, "max_val": null}, "s1": {}})"),
              ElementsAre(Pair("s0", Pair(2, kMost)), Pair("s1", Pair(kLeast, kMost))));
  EXPECT_TRUE(ranges("{}").empty());
}

TEST(ReadRanges, OfAMultipleContainTheIntegersWithinIt) {
  constexpr unsigned kSeed = 9;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  for (int i = 0; i < 500; ++i) {
    const auto factor = 1 + static_cast<std::int64_t>(random() % 5);
    const auto least = static_cast<std::int64_t>(random() % 41) - 20, most = least + to_int(random() % 20);
    std::vector<std::int64_t> within;  // by trial
    for (std::int64_t s = -40; s <= 40; ++s) {
      if (factor * s >= least && factor * s <= most) within.push_back(s);
    }
    const std::string text = "{\"" + std::to_string(factor) + "*s0\": {\"min_val\": " + std::to_string(least) +
                             ", \"max_val\": " + std::to_string(most) + "}}";
    if (within.empty()) {
      EXPECT_THAT(range_error(text), HasSubstr("empty")) << text;
    } else {
      EXPECT_THAT(ranges(text), ElementsAre(Pair("s0", Pair(within.front(), within.back())))) << text;
    }
  }
}

TEST(ReadRanges, OfOneSymbolNarrowEachOther) {
  EXPECT_THAT(ranges(R"({"s0": {"min_val": 1, "max_val": 9}, "2*s0": {"min_val": 4, "max_val": 100}})"),
              ElementsAre(Pair("s0", Pair(2, 9))));
}

TEST(ReadRanges, NameWhatIsNoMultipleOfASymbol) {
  for (const char* key : {"s0 + 1", "0*s0", "-2*s0", "2*", "7", "", "2s0"})
    EXPECT_THAT(range_error(std::string("{\"") + key + "\": {}}"),
                AllOf(HasSubstr("model.pt2: "), HasSubstr('"' + std::string(key) + '"')))
        << key;
}

/// Whether the guards hold for a program of inputs "x" [s0, s1] and "y_0" [3], with these ranges.
bool implied(const std::vector<std::string>& guards, const Ranges& allowed) {
  ExportedProgram program;
  program.ranges = allowed;
  const auto symbol = [](const std::string& name) {
    SizeExpression out;
    out.kind = SizeExpression::Kind::Symbol;
    out.symbol = name;
    return out;
  };
  const auto input = [&](const std::string& name, std::vector<SizeExpression> sizes) {
    ProgramValue& value = program.graph.values.emplace_back();
    value.name = name;
    value.tensor.emplace().sizes = std::move(sizes);
    ProgramInput& made = program.inputs.emplace_back();
    made.value = {to_int(program.graph.values.size()) - 1};
    made.name = name;
  };
  input("x", {symbol("s0"), symbol("s1")});
  input("y_0", {3});
  format::Json document = format::Json::array();
  for (const std::string& guard : guards) document.push_back(guard);
  try {
    check_guards(format::Cursor(document, "model.pt2"), program);
    return true;
  } catch (const FormatError& e) {
    EXPECT_THAT(e.what(), HasSubstr("model.pt2: /")) << "with the place";
    return false;
  }
}

const std::string kA = "L['x'].size()[0]", kB = "L['x'].size()[1]";

TEST(CheckGuards, CompareTwoSymbolsByTheirRanges) {
  const Ranges apart{{"s0", {1, 4}}, {"s1", {4, 9}}};
  EXPECT_TRUE(implied({kA + " <= " + kB, kB + " >= " + kA}, apart));
  EXPECT_FALSE(implied({kA + " < " + kB}, apart)) << "both may be 4";
  EXPECT_FALSE(implied({kA + " != " + kB}, apart));
  EXPECT_TRUE(implied({kA + " != " + kB}, {{"s0", {1, 3}}, {"s1", {4, 9}}}));
  EXPECT_TRUE(implied({kA + " == " + kB}, {{"s0", {4, 4}}, {"s1", {4, 4}}}));
  EXPECT_FALSE(implied({kA + " == " + kB}, {{"s0", {1, 4}}, {"s1", {1, 4}}}));
  EXPECT_FALSE(implied({kA + " + 1 <= 2*" + kB}, apart)) << "too hard to tell";
}

TEST(CheckGuards, FollowPythonsPrecedence) {
  const Ranges any{{"s0", {1, 20}}};
  EXPECT_TRUE(implied({"-" + kA + "**2 <= 0"}, any)) << "minus the square";
  EXPECT_TRUE(implied({"2 + 3*" + kA + " >= 5"}, any));
  EXPECT_FALSE(implied({"(2 + 3)*" + kA + " >= 6"}, any));
  EXPECT_TRUE(implied({"7 - 2 - 1 == 4", "2*7 // 4 == 3", "2*(7 // 4) == 2", "-7 // 2 == -4", "-7 % 3 == 2"}, any));
}

TEST(CheckGuards, KnowInputsOfContainers) {
  EXPECT_TRUE(implied({"L['y'][0].size()[0] == 3"}, {}));
  EXPECT_FALSE(implied({"L['y'][1].size()[0] == 3"}, {}));
  EXPECT_FALSE(implied({"L['y'][0].size()[0] == 4"}, {}));
}

TEST(CheckGuards, RefuseAnErrorInAnyAllowedSize) {
  EXPECT_TRUE(implied({"12 // " + kA + " >= 1"}, {{"s0", {1, 12}}}));
  EXPECT_FALSE(implied({"12 // " + kA + " >= 0"}, {{"s0", {0, 12}}})) << "a division by zero";
  EXPECT_FALSE(implied({kA + "**62 >= 1"}, {{"s0", {1, 3}}})) << "beyond 64 bits";
}

TEST(CheckGuards, SpendABoundedEffortOnAllOfThemTogether) {
  const std::string guard = kA + " // 2 >= 0";
  const Ranges large{{"s0", {0, 500'000}}};
  EXPECT_TRUE(implied({guard}, large));
  EXPECT_FALSE(implied(std::vector<std::string>(100, guard), large));
}

}  // namespace
}  // namespace stagecraft::intake
