#include "executor/intake/graph/program/number_call.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "costmodel/errors.h"

namespace stagecraft::intake {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Kind = ProgramValue::Kind;

constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();

/// A node that computes `target` of `operands` into value 0.
NodeCall made(const std::string& target, const std::vector<ArgumentValue>& operands, ProgramGraph graph = {}) {
  graph.values.insert(graph.values.begin(), ProgramValue{"result", Kind::Float, {}, {}});
  ProgramNode node;
  node.target = target;
  for (const ArgumentValue& operand : operands) node.arguments.push_back({"", operand});
  node.results = {{{{0}}, false}};
  return number_call(graph, node, "m.pt2: node \"n\"", [](int value) { return value; });
}

c10::IValue result(const std::string& target, const std::vector<ArgumentValue>& operands) {
  Frame frame;
  frame.slots.resize(1);
  made(target, operands)(frame);
  return frame.slots[0];
}
std::int64_t whole(const std::string& target, std::int64_t a, std::int64_t b) {
  const c10::IValue found = result("_operator." + target, {a, b});
  EXPECT_TRUE(found.isInt()) << target;
  return found.toInt();
}
double real(const std::string& target, double a, double b) { return result("_operator." + target, {a, b}).toDouble(); }

TEST(NumberCall, IntegersStayIntegers) {
  EXPECT_EQ(whole("add", 7, -9), -2);
  EXPECT_EQ(whole("sub", 7, -9), 16);
  EXPECT_EQ(whole("mul", 7, -9), -63);
  EXPECT_EQ(whole("pow", 3, 4), 81);
  EXPECT_EQ(whole("pow", -2, 63), kLeast);
  EXPECT_EQ(whole("pow", 5, 0), 1);
  EXPECT_EQ(result("_operator.neg", {std::int64_t{7}}).toInt(), -7);
  EXPECT_EQ(result("_operator.pos", {std::int64_t{7}}).toInt(), 7);
}

TEST(NumberCall, OneFloatMakesTheResultFloat) {
  EXPECT_EQ(result("_operator.add", {std::int64_t{7}, 0.5}).toDouble(), 7.5);
  EXPECT_EQ(result("_operator.mul", {0.5, std::int64_t{7}}).toDouble(), 3.5);
  EXPECT_EQ(result("_operator.truediv", {std::int64_t{1}, std::int64_t{4}}).toDouble(), 0.25);
  EXPECT_EQ(result("_operator.pow", {std::int64_t{2}, std::int64_t{-1}}).toDouble(), 0.5);
  EXPECT_EQ(result("torch.sym_float", {std::int64_t{7}}).toDouble(), 7);
  EXPECT_EQ(real("floordiv", -7, 2), -4);
  EXPECT_EQ(real("mod", -7, 3), 2);
}

TEST(NumberCall, QuotientAndRemainderAreThoseOfFlooring) {
  // a = b q + r, where r has the sign of b and |r| < |b|, defines both.
  constexpr unsigned kSeed = 3;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  for (int i = 0; i < 2000; ++i) {
    const auto a = static_cast<std::int64_t>(random() % 41) - 20, b = static_cast<std::int64_t>(random() % 19) - 9;
    if (b == 0) continue;
    const std::int64_t q = whole("floordiv", a, b), r = whole("mod", a, b);
    EXPECT_EQ(b * q + r, a) << a << " by " << b;
    EXPECT_TRUE(b > 0 ? r >= 0 && r < b : r <= 0 && r > b) << a << " by " << b;
  }
}

TEST(NumberCall, ExtremesOfSixtyFourBitsAreNumbersOrErrors) {
  EXPECT_EQ(whole("add", kMost, kLeast), -1);
  EXPECT_EQ(whole("floordiv", kLeast, 1), kLeast);
  EXPECT_EQ(whole("floordiv", kMost, -1), -kMost);
  EXPECT_EQ(whole("mod", kLeast, -1), 0);
  EXPECT_EQ(whole("mod", kLeast, kMost), kMost - 1) << "-(2^63) = -2 (2^63 - 1) + 2^63 - 2";
  for (const auto& [target, a, b] :
       std::vector<std::tuple<std::string, std::int64_t, std::int64_t>>{{"add", kMost, 1},
                                                                        {"sub", kLeast, 1},
                                                                        {"mul", kMost, 2},
                                                                        {"floordiv", kLeast, -1},
                                                                        {"pow", 10, 19},
                                                                        {"pow", -3, kMost}}) {
    const auto compute = [&, target = target, a = a, b = b] { (void)whole(target, a, b); };
    EXPECT_THAT(compute, ThrowsMessage<std::invalid_argument>(HasSubstr("64"))) << target;
  }
  EXPECT_THAT([] { (void)result("_operator.neg", {kLeast}); }, ThrowsMessage<std::invalid_argument>(HasSubstr("64")));
}

TEST(NumberCall, PowersOfOnesTakeNoTime) {
  EXPECT_EQ(whole("pow", 1, kMost), 1);
  EXPECT_EQ(whole("pow", 0, kMost), 0);
  EXPECT_EQ(whole("pow", -1, kMost), -1);
  EXPECT_EQ(whole("pow", -1, kMost - 1), 1);
  EXPECT_EQ(whole("pow", 0, 0), 1);
  EXPECT_EQ(whole("pow", 0, 2), 0);
  EXPECT_EQ(whole("pow", -1, 3), -1);
}

TEST(NumberCall, RefusesADivisionByZero) {
  for (const char* target : {"floordiv", "mod"}) {
    EXPECT_THAT([&] { (void)whole(target, 7, 0); }, ThrowsMessage<std::invalid_argument>(HasSubstr("zero")));
  }
}

TEST(NumberCall, RoundsToIntegers) {
  const auto rounded = [](const std::string& target, double x) { return result(target, {x}).toInt(); };
  EXPECT_EQ(rounded("math.trunc", -2.5), -2);
  EXPECT_EQ(rounded("math.floor", -2.5), -3);
  EXPECT_EQ(rounded("math.ceil", -2.5), -2);
  EXPECT_EQ(rounded("torch.sym_int", 2.9), 2);
  for (const double x : {1e19, -1e19, std::nan(""), std::numeric_limits<double>::infinity()}) {
    EXPECT_THAT([&] { (void)rounded("math.trunc", x); }, ThrowsMessage<std::invalid_argument>(HasSubstr("64")));
  }
}

TEST(NumberCall, ComparesAndChooses) {
  const auto is = [](const std::string& target, std::int64_t a, std::int64_t b) {
    return result("_operator." + target, {a, b}).toBool();
  };
  for (const auto& [a, b] : std::vector<std::pair<std::int64_t, std::int64_t>>{{3, 4}, {4, 4}, {5, 4}}) {
    EXPECT_EQ(is("lt", a, b), a < b);
    EXPECT_EQ(is("le", a, b), a <= b);
    EXPECT_EQ(is("gt", a, b), a > b);
    EXPECT_EQ(is("ge", a, b), a >= b);
    EXPECT_EQ(is("eq", a, b), a == b);
    EXPECT_EQ(is("ne", a, b), a != b);
    EXPECT_EQ(result("torch.sym_max", {a, b}).toInt(), std::max(a, b));
    EXPECT_EQ(result("torch.sym_min", {a, b}).toInt(), std::min(a, b));
  }
  EXPECT_TRUE(result("_operator.xor", {true, false}).toBool());
  EXPECT_FALSE(result("torch.sym_not", {true}).toBool());
  EXPECT_EQ(result("torch.sym_ite", {false, std::int64_t{1}, std::int64_t{2}}).toInt(), 2);
}

TEST(NumberCall, TakesValuesFromTheirSlots) {
  ProgramGraph graph;
  graph.values.push_back({"batch", Kind::Int, {}, {}});
  const NodeCall call = made("_operator.mul", {ValueIndex{1}, std::int64_t{3}}, graph);
  Frame frame;
  frame.slots.resize(2);
  for (const std::int64_t batch : {4, 5}) {
    frame.slots[1] = batch;
    call(frame);
    EXPECT_EQ(frame.slots[0].toInt(), 3 * batch);
  }
}

TEST(NumberCall, MeasuresTensors) {
  ProgramGraph graph;
  graph.values.push_back({"x", Kind::Tensor, {}, {}});
  Frame frame;
  frame.slots.resize(2);
  frame.slots[1] = at::empty({4, 5});
  const auto measured = [&](const std::string& target, const std::vector<ArgumentValue>& operands) {
    made("torch.ops.aten." + target, operands, graph)(frame);
    return frame.slots[0].toInt();
  };
  EXPECT_EQ(measured("sym_size.int", {ValueIndex{1}, std::int64_t{1}}), 5);
  EXPECT_EQ(measured("sym_stride.int", {ValueIndex{1}, std::int64_t{0}}), 5);
  EXPECT_EQ(measured("sym_numel.default", {ValueIndex{1}}), 20);
}

TEST(NumberCall, NamesWhatItCannotCompute) {
  ProgramGraph graph;
  graph.values.push_back({"x", Kind::Tensor, {}, {}});
  const auto refuses = [&](const std::string& target, const std::vector<ArgumentValue>& operands,
                           const std::string& found) {
    EXPECT_THAT([&] { (void)made(target, operands, graph); },
                ThrowsMessage<FormatError>(AllOf(HasSubstr("m.pt2: node \"n\": "), HasSubstr(found))));
  };
  refuses("_operator.matmul", {}, "\"_operator.matmul\"");
  refuses("_operator.add", {std::int64_t{1}}, "1 arguments");
  refuses("_operator.add", {std::int64_t{1}, ValueIndex{1}}, "a tensor");
  refuses("_operator.add", {std::int64_t{1}, std::string("2")}, "a number");
  refuses("torch.ops.aten.sym_size.int", {std::int64_t{1}, std::int64_t{1}}, "a tensor");
}

}  // namespace
}  // namespace stagecraft::intake
