#include "executor/intake/graph/size_expression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>
#include <stdexcept>

#include "executor/intake/pt2/program_metadata.h"

namespace stagecraft::intake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();

const std::string kBatch = "Symbol('s77', positive=True, integer=True)";

std::int64_t value_of(const std::string& text, std::int64_t batch = 0) {
  return evaluate(parse_size_expression(text), {{"s77", batch}});
}

void expect_refused(const std::string& text, const std::string& message) {
  EXPECT_THAT([&] { (void)parse_size_expression(text); }, ThrowsMessage<std::invalid_argument>(HasSubstr(message)))
      << text;
}

TEST(SizeExpressions, AreReadAsExportWritesThem) {
  EXPECT_EQ(parse_size_expression("Integer(8)"), SizeExpression(8));
  SizeExpression symbol;
  symbol.kind = SizeExpression::Kind::Symbol;
  symbol.symbol = "s77";
  EXPECT_EQ(parse_size_expression(kBatch), symbol);
  EXPECT_EQ(value_of("Mul(Integer(8), " + kBatch + ")", 5), 40);
  EXPECT_EQ(value_of("Add(Integer(-3), " + kBatch + ", One)", 5), 3);
  EXPECT_EQ(value_of("FloorDiv(" + kBatch + ", Integer(2))", 7), 3);
  EXPECT_EQ(value_of("Mod(" + kBatch + ", Integer(4))", 7), 3);
  EXPECT_EQ(value_of("Min(Integer(6), " + kBatch + ")", 7), 6);
  EXPECT_EQ(value_of("Max(Integer(6), " + kBatch + ", Zero)", 7), 7);
  EXPECT_EQ(value_of("Pow(" + kBatch + ", Integer(3))", 5), 125);
  EXPECT_EQ(value_of("Mul(NegativeOne, " + kBatch + ")", 5), -5);
}

TEST(SizeExpressions, DivideAsPythonDoes) {
  EXPECT_EQ(value_of("FloorDiv(Integer(-7), Integer(2))"), -4);
  EXPECT_EQ(value_of("PythonMod(Integer(-7), Integer(2))"), 1);
  EXPECT_EQ(value_of("FloorDiv(Integer(7), Integer(-2))"), -4);
  EXPECT_EQ(value_of("Mod(Integer(7), Integer(-2))"), -1);
  EXPECT_EQ(value_of("Mod(Integer(-9223372036854775808), NegativeOne)"), 0);
  constexpr std::uint64_t kSeed = 1;
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 1000; ++i) {
    const auto a = static_cast<std::int64_t>(random() % 2001) - 1000;
    const auto b = static_cast<std::int64_t>(random() % 41) - 20;
    if (b == 0) continue;
    const std::string parts = "(Integer(" + std::to_string(a) + "), Integer(" + std::to_string(b) + "))";
    const std::int64_t quotient = value_of("FloorDiv" + parts);
    const std::int64_t rest = value_of("Mod" + parts);
    EXPECT_EQ(quotient * b + rest, a) << "seed " << kSeed;
    EXPECT_TRUE(b > 0 ? 0 <= rest && rest < b : b < rest && rest <= 0) << "seed " << kSeed << parts;
  }
}

TEST(SizeExpressions, NameWhatHasNoValue) {
  const auto refuse = [](const std::string& text, const std::string& message) {
    EXPECT_THAT([&] { (void)evaluate(parse_size_expression(text), {}); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(message)))
        << text;
  };
  refuse(kBatch, "symbol \"s77\" of a size has no value");
  refuse("FloorDiv(Integer(1), Integer(0))", "divided by zero");
  refuse("Mod(Integer(1), Integer(0))", "divided by zero");
  refuse("Pow(Integer(2), Integer(-1))", "has the power -1, must be at least 0");
  for (const char* text :
       {"Add(Integer(9223372036854775807), Integer(1))", "Mul(Integer(4294967296), Integer(2147483648))",
        "Pow(Integer(2), Integer(63))", "FloorDiv(Integer(-9223372036854775808), Integer(-1))"}) {
    refuse(text, "exceeds 64 bits");
  }
}

TEST(SizeExpressions, ReachTheEndsOf64Bits) {
  EXPECT_EQ(value_of("Add(Integer(9223372036854775806), Integer(1))"), kMost);
  EXPECT_EQ(value_of("Pow(Integer(-2), Integer(63))"), kLeast);
  EXPECT_EQ(value_of("Pow(Integer(-1), Integer(9223372036854775807))"), -1);
  EXPECT_EQ(value_of("Pow(Integer(0), Integer(0))"), 1);
}

TEST(SizeExpressions, AreSolvedForTheirSymbol) {
  const auto solved = [](const std::string& text, std::int64_t value) {
    return solve(parse_size_expression(text), value);
  };
  EXPECT_EQ(solved(kBatch, 7), 7);
  EXPECT_EQ(solved("Mul(Integer(8), " + kBatch + ")", 24), 3);
  EXPECT_EQ(solved("Mul(Integer(2), Mul(" + kBatch + ", Integer(3)))", 24), 4);
  EXPECT_EQ(solved("Mul(Integer(8), " + kBatch + ")", 25), std::nullopt);
  EXPECT_EQ(solved("Mul(Integer(-8), " + kBatch + ")", -24), std::nullopt);
  EXPECT_EQ(solved("Mul(" + kBatch + ", " + kBatch + ")", 25), std::nullopt);
  EXPECT_EQ(solved("Add(Integer(1), " + kBatch + ")", 25), std::nullopt);
  EXPECT_EQ(solved("Integer(8)", 8), std::nullopt);
}

TEST(SizeExpressions, TellTheirSymbolsAndWhetherTheyAreNumbers) {
  const SizeExpression both = parse_size_expression("Add(Symbol('b'), Mul(Symbol('a'), Symbol('b'), Integer(2)))");
  EXPECT_THAT(symbols_of(both), ElementsAre("a", "b"));
  EXPECT_EQ(constant_value(both), std::nullopt);
  EXPECT_EQ(constant_value(parse_size_expression("Mul(Integer(2), Integer(3))")), 6);
  EXPECT_EQ(constant_value(parse_size_expression("Mod(Integer(2), Integer(0))")), std::nullopt);
}

TEST(SizeExpressions, AreReadable) {
  const auto shown = [](const std::string& text) { return to_string(parse_size_expression(text)); };
  EXPECT_EQ(shown("Mul(Integer(8), " + kBatch + ")"), "8*s77");
  EXPECT_EQ(shown("Mul(Integer(8), Add(One, " + kBatch + "))"), "8*(1 + s77)");
  EXPECT_EQ(shown("FloorDiv(Min(" + kBatch + ", Integer(9)), Integer(2))"), "min(s77, 9)//2");
}

TEST(SizeExpressions, SayWhereTextGoesWrong) {
  expect_refused("",
                 "size \"\": at character 1: unknown function, known are Integer, Symbol, Add, Mul, FloorDiv, Mod, "
                 "PythonMod, Min, Max, Pow, Zero, One, NegativeOne");
  expect_refused("Mul(Integer(8), sqrt(Integer(4)))", "at character 17: unknown function");
  expect_refused("Mul(Integer(8)", "at character 15: expected ')'");
  expect_refused("Integer(8)x", "at character 11: expected its end");
  expect_refused("Integer(x)", "at character 9: expected an integer");
  expect_refused("Integer(9223372036854775808)", "at character 9: a number beyond 64 bits");
  expect_refused("Symbol(s77)", "at character 8: expected '''");
  expect_refused("Symbol('')", "expected the name of a symbol");
  expect_refused("Symbol('s', positive=1)", "expected True or False");
  expect_refused("Mod(Integer(8))", "found 1 parts of Mod, expected 2");
  expect_refused("Pow(One, One, One)", "found 3 parts of Pow, expected 2");
}

TEST(SizeExpressions, HaveBounds) {
  const auto nested = [](int levels) {
    std::string out;
    for (int i = 1; i < levels; ++i) out += "Add(";
    out += "One";
    for (int i = 1; i < levels; ++i) out += ")";
    return out;
  };
  EXPECT_EQ(value_of(nested(64)), 1);
  expect_refused(nested(65), "nested deeper than 64 levels");
  expect_refused(std::string(100000, '('), "unknown function");
  const auto wide = [](int parts) {
    std::string out = "Add(One";
    for (int i = 2; i < parts; ++i) out += ",One";
    return out + ")";
  };
  EXPECT_EQ(value_of(wide(10000)), 9999);
  expect_refused(wide(10001), "has more than 10000 parts");
}

}  // namespace
}  // namespace stagecraft::intake
