#include "executor/intake/graph/program/higher_order.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;
using Kind = ProgramValue::Kind;
using Graph = std::shared_ptr<const ProgramGraph>;

constexpr const char* kPlace = "m.pt2: node \"outer\"";

std::string op(const std::string& name) { return "torch.ops.aten." + name; }

/// `target` of two values, which gives value `result`.
ProgramNode node(const std::string& name, const std::string& target, ArgumentValue self, ArgumentValue other,
                 int result) {
  return {name, op(target), {{"self", std::move(self)}, {"other", std::move(other)}}, {{{{result}}, false}}, {}};
}

/// A graph over `values` tensors, the first `inputs` of which it is given.
ProgramGraph graph_of(int values, int inputs) {
  ProgramGraph out;
  for (int i = 0; i < values; ++i) out.values.emplace_back().name = "inner" + std::to_string(i);
  for (int i = 0; i < inputs; ++i) out.inputs.push_back({i});
  return out;
}

/// One operand, times `factor`.
Graph times(double factor) {
  ProgramGraph out = graph_of(2, 1);
  out.nodes.push_back(node("times", "mul.Tensor", ValueIndex{0}, factor, 1));
  out.outputs = {ValueIndex{1}};
  return std::make_shared<const ProgramGraph>(std::move(out));
}

/// A node that contains graphs; value i of the outer graph is in slot i.
struct Outer {
  ProgramGraph graph;
  ProgramNode node;
  Frame frame;
  Symbols symbols;

  explicit Outer(const std::string& name) {
    node.name = "outer";
    node.target = "torch.ops.higher_order." + name;
    frame.symbols = &symbols;
  }
  ValueIndex add(Kind kind, c10::IValue value) {
    graph.values.emplace_back().kind = kind;
    frame.slots.push_back(std::move(value));
    return {to_int(graph.values.size()) - 1};
  }
  ValueIndex tensor(const at::Tensor& value) { return add(Kind::Tensor, value); }
  Outer& with(ArgumentValue value) {
    node.arguments.push_back({"", std::move(value)});
    return *this;
  }
  Outer& gives() {
    node.results.push_back({{add(Kind::Tensor, {})}, false});
    return *this;
  }
  at::Tensor run() {
    higher_order_call(graph, node, kPlace, [](int value) { return value; })(frame);
    return frame.slots[to_index(node.results[0].values[0].index)].toTensor();
  }
  [[nodiscard]] NodeFacts facts() const { return higher_order_facts(graph, node, kPlace); }
  [[nodiscard]] std::string error() const {
    try {
      (void)higher_order_call(graph, node, kPlace, [](int value) { return value; });
    } catch (const FormatError& e) { return e.what(); }
    return "none";
  }
};

/// A block under no_grad that doubles one operand and writes into the other.
TEST(HigherOrder, RunsItsGraphWithoutGradients) {
  ProgramGraph inner = graph_of(4, 2);
  inner.nodes.push_back(node("twice", "mul.Tensor", ValueIndex{0}, 2.0, 2));
  inner.nodes.push_back(node("written", "add_.Tensor", ValueIndex{1}, ValueIndex{2}, 3));
  inner.outputs = {ValueIndex{2}};
  Outer n("wrap_with_set_grad_enabled");
  const at::Tensor a = at::ones({2}).requires_grad_(true);
  const ValueIndex first = n.tensor(a);
  const ValueIndex second = n.tensor(at::zeros({2}));
  n.with(false).with(std::make_shared<const ProgramGraph>(inner)).with(first).with(second).gives();
  EXPECT_THAT(n.facts().writes, ElementsAre(1));
  // The result does not depend on the value that the block writes to.
  EXPECT_THAT(n.facts().only_writes, ElementsAre(1));
  EXPECT_FALSE(n.facts().random);
  const at::Tensor out = n.run();
  EXPECT_FALSE(out.requires_grad());
  EXPECT_TRUE(out.equal(at::full({2}, 2.0F)));
  EXPECT_TRUE(n.frame.slots[1].toTensor().equal(at::full({2}, 2.0F)));
}

TEST(HigherOrder, RunsTheGraphThatTheConditionChooses) {
  for (const c10::IValue& condition : {c10::IValue(true), c10::IValue(false), c10::IValue(at::ones({1}, at::kBool)),
                                       c10::IValue(at::zeros({1}, at::kBool))}) {
    Outer n("cond");
    const bool holds = condition.isTensor() ? condition.toTensor().is_nonzero() : condition.toBool();
    const ValueIndex chosen = n.add(condition.isTensor() ? Kind::Tensor : Kind::Bool, condition);
    const std::vector<std::optional<ValueIndex>> operands{n.tensor(at::ones({2}))};
    n.with(chosen).with(times(2)).with(times(3)).with(operands).gives();
    EXPECT_TRUE(n.run().equal(at::full({2}, holds ? 2.0F : 3.0F))) << holds;
    EXPECT_FALSE(n.facts().repeatable) << "the condition may change";
    EXPECT_THAT(n.facts().writes, IsEmpty());
  }
}

TEST(HigherOrder, CastsInsideAnAutocastBlockOnly) {
  ProgramGraph inner = graph_of(3, 2);
  inner.nodes.push_back(
      {"product", op("mm.default"), {{"self", ValueIndex{0}}, {"mat2", ValueIndex{1}}}, {{{{2}}, false}}, {}});
  inner.outputs = {ValueIndex{2}};
  for (const bool enabled : {true, false}) {
    Outer n("wrap_with_autocast");
    const ValueIndex a = n.tensor(at::ones({2, 2}));
    const ValueIndex b = n.tensor(at::ones({2, 2}));
    n.with(std::string("cpu")).with(at::kBFloat16).with(enabled).with(std::monostate());
    n.with(std::make_shared<const ProgramGraph>(inner)).with(a).with(b).gives();
    EXPECT_EQ(n.run().scalar_type(), enabled ? at::kBFloat16 : at::kFloat);
    EXPECT_FALSE(n.facts().repeatable) << "it depends on the casts around it";
  }
}

TEST(HigherOrder, GivesItsGraphConstantsAndSizes) {
  // Operand 1 is the literal 5; the number inside is the symbol s. x * 5 + s with s = 4.
  ProgramGraph inner = graph_of(5, 2);
  inner.values[1].kind = Kind::Int;
  inner.values[2].kind = Kind::Int;
  inner.values[2].number.emplace();
  inner.values[2].number->kind = SizeExpression::Kind::Symbol;
  inner.values[2].number->symbol = "s";
  inner.nodes.push_back(node("product", "mul.Tensor", ValueIndex{0}, ValueIndex{1}, 3));
  inner.nodes.push_back(node("sum", "add.Tensor", ValueIndex{3}, ValueIndex{2}, 4));
  inner.outputs = {ValueIndex{4}};
  Outer n("wrap_with_set_grad_enabled");
  n.symbols = {{"s", 4}};
  const ValueIndex x = n.tensor(at::full({2}, 3.0F));
  n.with(true).with(std::make_shared<const ProgramGraph>(inner)).with(x).with(std::int64_t{5}).gives();
  EXPECT_TRUE(n.run().equal(at::full({2}, 3.0F * 5 + 4)));
}

TEST(HigherOrder, LeavesOutTheChecksOfTorchExport) {
  ProgramGraph inner = *times(2);
  inner.nodes.push_back({"check", op("_assert_scalar.default"), {}, {}, {}});
  Outer n("wrap_with_set_grad_enabled");
  const ValueIndex x = n.tensor(at::ones({2}));
  n.with(true).with(std::make_shared<const ProgramGraph>(inner)).with(x).gives();
  EXPECT_TRUE(n.run().equal(at::full({2}, 2.0F)));
  EXPECT_TRUE(n.facts().repeatable);
}

TEST(HigherOrder, TellsWhichOperandAResultSharesMemoryWith) {
  ProgramGraph inner = graph_of(3, 2);
  inner.nodes.push_back({"view", op("t.default"), {{"self", ValueIndex{1}}}, {{{{2}}, false}}, {}});
  inner.outputs = {ValueIndex{2}};
  Outer n("wrap_with_set_grad_enabled");
  const ValueIndex first = n.tensor(at::ones({2, 2}));
  const ValueIndex second = n.tensor(at::ones({2, 2}));
  n.with(true).with(std::make_shared<const ProgramGraph>(inner)).with(first).with(second).gives();
  EXPECT_THAT(n.facts().aliases, ElementsAre(Pair(2, second.index)));
}

TEST(HigherOrder, IsRandomIfANodeInsideIs) {
  ProgramGraph inner = graph_of(2, 1);
  inner.nodes.push_back({"dropped",
                         op("dropout.default"),
                         {{"input", ValueIndex{0}}, {"p", 0.5}, {"train", true}},
                         {{{{1}}, false}},
                         {}});
  inner.outputs = {ValueIndex{1}};
  Outer n("wrap_with_set_grad_enabled");
  const ValueIndex x = n.tensor(at::ones({2}));
  n.with(true).with(std::make_shared<const ProgramGraph>(inner)).with(x).gives();
  EXPECT_TRUE(n.facts().random);
}

TEST(HigherOrder, NamesTheArgumentThatIsWrong) {
  const std::string place(kPlace);
  EXPECT_EQ(Outer("wrap_with_set_grad_enabled").error(), place + ": too few arguments");
  EXPECT_EQ(Outer("wrap_with_set_grad_enabled").with(1.5).error(), place + ": argument 0: expected a boolean");
  EXPECT_EQ(Outer("wrap_with_set_grad_enabled").with(true).with(true).error(),
            place + ": argument 1: expected a graph");
  EXPECT_EQ(Outer("wrap_with_autocast").with(std::string("tpu")).error(),
            place + ": argument 0: expected \"cpu\" or \"cuda\"");
  EXPECT_EQ(Outer("wrap_with_autocast").with(std::string("cpu")).with(true).error(),
            place + ": argument 1: expected a type");
  EXPECT_EQ(Outer("wrap_with_set_grad_enabled").with(true).with(times(2)).error(),
            place + ": found 0 operands, its graph needs 1");
  EXPECT_EQ(Outer("wrap_with_set_grad_enabled").with(true).with(times(2)).with(1.0).error(),
            place + ": found 0 results, its graph returns 1");
  EXPECT_EQ(Outer("wrap_with_set_grad_enabled").with(true).with(times(2)).with(std::string("x")).gives().error(),
            place + ": operands must be tensors and numbers");
}

TEST(HigherOrder, NamesTheInnerNodeThatIsWrong) {
  ProgramGraph inner = graph_of(2, 1);
  inner.nodes.push_back({"inside", op("no_such_operator.default"), {}, {{{{1}}, false}}, {}});
  inner.outputs = {ValueIndex{1}};
  Outer n("wrap_with_set_grad_enabled");
  const ValueIndex x = n.tensor(at::ones({2}));
  n.with(true).with(std::make_shared<const ProgramGraph>(inner)).with(x).gives();
  EXPECT_THAT(n.error(),
              StartsWith(std::string(kPlace) + ", inner node \"inside\" (torch.ops.aten.no_such_operator.default): "));
}

TEST(HigherOrder, RefusesOtherOperators) {
  EXPECT_THAT(Outer("autograd_function_apply").error(),
              HasSubstr(": is a custom torch.autograd.Function, whose backward is Python; write it with"));
  EXPECT_THAT(Outer("while_loop").error(),
              HasSubstr("unknown higher-order operator \"while_loop\", known are cond, wrap_with_autocast"));
}

TEST(GraphBlocks, KeepTheirMode) {
  const GraphBlock quiet =
      graph_block({"quiet", "torch.ops.higher_order.wrap_with_set_grad_enabled", {{"", false}}}, kPlace);
  EXPECT_EQ(quiet.name, "quiet");
  EXPECT_FALSE(quiet.autocast);
  EXPECT_FALSE(quiet.enabled);
  const GraphBlock cast = graph_block({"cast",
                                       "torch.ops.higher_order.wrap_with_autocast",
                                       {{"", std::string("cuda")}, {"", at::kHalf}, {"", true}, {"", false}}},
                                      kPlace);
  EXPECT_TRUE(cast.autocast);
  EXPECT_TRUE(cast.enabled);
  EXPECT_EQ(cast.dtype, at::kHalf);
  EXPECT_EQ(cast.cache, false);
}

}  // namespace
}  // namespace stagecraft::intake
