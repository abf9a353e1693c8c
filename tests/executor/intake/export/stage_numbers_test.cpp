#include "executor/intake/export/stage_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "executor/intake/pt2/program_metadata.h"

namespace stagecraft::intake {
namespace {

using ::testing::ElementsAre;

SizeExpression expression(const std::string& text) { return parse_size_expression(text); }

const std::string kSymbol = "Symbol('s0', positive=True, integer=True)";

/// Each node as "result = target(arguments)".
std::vector<std::string> lines(const NumberNodes& made) {
  const auto shown = [](const format::Json& argument) {
    if (argument.contains("as_int")) return argument.at("as_int").dump();
    if (argument.contains("as_tensor")) return argument.at("as_tensor").at("name").get<std::string>();
    return argument.at("as_sym_int").at("as_name").get<std::string>();
  };
  std::vector<std::string> out;
  for (const format::Json& node : made.nodes) {
    std::string arguments;
    for (const format::Json& input : node.at("inputs")) {
      arguments += (arguments.empty() ? "" : ", ") + input.at("name").get<std::string>() + "=" + shown(input.at("arg"));
    }
    EXPECT_EQ(node.at("outputs").size(), 1U);
    EXPECT_EQ(node.at("name"), shown(node.at("outputs").at(0)));
    out.push_back(shown(node.at("outputs").at(0)) + " = " + node.at("target").get<std::string>() + "(" + arguments +
                  ")");
  }
  return out;
}

NumberNodes made(const std::string& extent, std::int64_t hint, const std::string& number) {
  std::map<std::string, int> taken;
  return number_nodes({.tensor = "t",
                       .axis = 1,
                       .extent = expression(extent),
                       .hint = hint,
                       .number = "n",
                       .expression = expression(number)},
                      [&](const std::string& wanted) {
                        const int times = taken[wanted]++;
                        return times == 0 ? wanted : wanted + "_" + std::to_string(times);
                      });
}

TEST(NumberNodes, OneNodeGivesTheSizeItself) {
  const std::string twice = "Mul(Integer(2), " + kSymbol + ")";
  const NumberNodes found = made(twice, 6, twice);
  EXPECT_THAT(lines(found), ElementsAre("n = torch.ops.aten.sym_size.int(self=t, dim=1)"));
  EXPECT_TRUE(found.entries.empty());
}

TEST(NumberNodes, DivideAMultiple) {
  const NumberNodes found = made("Mul(Integer(2), " + kSymbol + ")", 6, kSymbol);
  EXPECT_THAT(lines(found), ElementsAre("n_size = torch.ops.aten.sym_size.int(self=t, dim=1)",
                                        "n = _operator.floordiv(a=n_size, b=2)"));
  ASSERT_EQ(found.entries.size(), 1U);
  EXPECT_EQ(found.entries[0].first, "n_size");
  const format::Json& entry = found.entries[0].second.at("as_expr");
  EXPECT_EQ(entry.at("expr_str"), "Mul(Integer(2), " + kSymbol + ")");
  EXPECT_EQ(entry.at("hint").at("as_int"), 6);
}

TEST(NumberNodes, ComputeAnExpressionOfTheBatch) {
  const NumberNodes found =
      made("Mul(Integer(2), " + kSymbol + ")", 6, "Add(Integer(1), Mul(Integer(5), " + kSymbol + "), " + kSymbol + ")");
  EXPECT_THAT(lines(found),
              ElementsAre("n_size = torch.ops.aten.sym_size.int(self=t, dim=1)",
                          "n_batch = _operator.floordiv(a=n_size, b=2)", "n_part = _operator.mul(a=5, b=n_batch)",
                          "n_part_1 = _operator.add(a=1, b=n_part)", "n = _operator.add(a=n_part_1, b=n_batch)"));
  // The batch is 3: 5 * 3 and 1 + 15.
  std::map<std::string, int> hints;
  for (const auto& [name, entry] : found.entries) hints[name] = entry.at("as_expr").at("hint").at("as_int").get<int>();
  EXPECT_EQ(hints, (std::map<std::string, int>{{"n_size", 6}, {"n_batch", 3}, {"n_part", 15}, {"n_part_1", 16}}));
}

TEST(NumberNodes, EntriesReadBackAsTheyWereMeant) {
  const std::string text =
      "FloorDiv(Max(Integer(4), Pow(" + kSymbol + ", Integer(2))), Min(Integer(3), Mod(" + kSymbol + ", Integer(2))))";
  const NumberNodes found = made(kSymbol, 5, text);
  for (const auto& [name, entry] : found.entries) {
    const auto value = entry.at("as_expr").at("expr_str").get<std::string>();
    // With a batch of 5: max(4, 25), min(3, 1).
    EXPECT_EQ(evaluate(expression(value), {{"s0", 5}}), entry.at("as_expr").at("hint").at("as_int")) << name;
  }
  EXPECT_THAT(
      lines(found),
      ElementsAre("n_size = torch.ops.aten.sym_size.int(self=t, dim=1)", "n_part = _operator.pow(a=n_size, b=2)",
                  "n_part_1 = torch.sym_max(a=4, b=n_part)", "n_part_2 = _operator.mod(a=n_size, b=2)",
                  "n_part_3 = torch.sym_min(a=3, b=n_part_2)", "n = _operator.floordiv(a=n_part_1, b=n_part_3)"));
}

}  // namespace
}  // namespace stagecraft::intake
