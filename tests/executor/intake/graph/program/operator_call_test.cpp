#include "executor/intake/graph/program/operator_call.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "costmodel/errors.h"
#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using Kind = ProgramValue::Kind;

/// One node over values; value i is in slot i.
struct OneNode {
  ProgramGraph graph;
  ProgramNode node;
  Frame frame;
  Symbols symbols;

  explicit OneNode(const std::string& target) {
    node.name = "node";
    node.target = target;
    frame.symbols = &symbols;
  }
  ValueIndex add(Kind kind, c10::IValue value) {
    ProgramValue made;
    made.name = "v" + std::to_string(graph.values.size());
    made.kind = kind;
    graph.values.push_back(made);
    frame.slots.push_back(std::move(value));
    return {to_int(graph.values.size()) - 1};
  }
  ValueIndex tensor(const at::Tensor& value = {}) { return add(Kind::Tensor, value); }
  OneNode& with(const std::string& name, ArgumentValue value) {
    node.arguments.push_back({name, std::move(value)});
    return *this;
  }
  OneNode& gives(Kind kind = Kind::Tensor) {
    node.results.push_back({{add(kind, {})}, false});
    return *this;
  }
  c10::IValue run() {
    make_call(graph, node, "m.pt2: node \"node\"", [](int value) { return value; })(frame);
    return frame.slots[to_index(node.results[0].values[0].index)];
  }
  NodeFacts facts() { return facts_of(graph, node, "m.pt2: node \"node\""); }
  std::string error() {
    try {
      (void)make_call(graph, node, "m.pt2: node \"node\"", [](int value) { return value; });
    } catch (const FormatError& e) { return e.what(); }
    return "none";
  }
};

std::string op(const std::string& name) { return "torch.ops.aten." + name; }

TEST(OperatorCall, ANumberWhereATensorIsWantedDoesNotChangeItsType) {
  OneNode n(op("mul.Tensor"));
  const ValueIndex x = n.tensor(at::full({2}, 3, at::kFloat));
  const at::Tensor out = n.with("self", x).with("other", 2.5).gives().run().toTensor();
  EXPECT_EQ(out.scalar_type(), at::kFloat);
  EXPECT_TRUE(out.equal(at::full({2}, 7.5, at::kFloat)));
}

TEST(OperatorCall, OneIntFillsAListOfFixedLength) {
  OneNode n(op("avg_pool2d.default"));
  const ValueIndex x = n.tensor(at::arange(16, at::kFloat).view({1, 4, 4}));
  // The first window holds 0, 1, 4, 5.
  const at::Tensor out = n.with("self", x).with("kernel_size", std::int64_t{2}).gives().run().toTensor();
  EXPECT_EQ(out.sizes(), (std::vector<std::int64_t>{1, 2, 2}));
  EXPECT_EQ(out[0][0][0].item<float>(), 2.5F);
}

TEST(OperatorCall, IntsBecomeFloatsWhereTheSchemaSaysSo) {
  OneNode n(op("leaky_relu.default"));
  const ValueIndex x = n.tensor(at::full({1}, -4, at::kFloat));
  EXPECT_EQ(n.with("self", x).with("negative_slope", std::int64_t{2}).gives().run().toTensor().item<float>(), -8);
}

TEST(OperatorCall, ListsMayLackTensors) {
  OneNode n(op("index.Tensor"));
  const ValueIndex x = n.tensor(at::arange(6, at::kFloat).view({2, 3}));
  const ValueIndex columns = n.tensor(at::tensor({2, 0}, at::kLong));
  std::vector<std::optional<ValueIndex>> indices{std::nullopt, columns};
  const at::Tensor out = n.with("self", x).with("indices", indices).gives().run().toTensor();
  EXPECT_TRUE(out.equal(at::tensor({2.0F, 0.0F, 5.0F, 3.0F}).view({2, 2})));
}

TEST(OperatorCall, NumbersOfTheBatchStandInLists) {
  OneNode n(op("view.default"));
  const ValueIndex x = n.tensor(at::zeros({2, 6}));
  const ValueIndex batch = n.add(Kind::Int, std::int64_t{4});
  const at::Tensor out =
      n.with("self", x).with("size", std::vector<IntItem>{batch, std::int64_t{3}}).gives().run().toTensor();
  EXPECT_EQ(out.sizes(), (std::vector<std::int64_t>{4, 3}));
}

TEST(OperatorCall, AListOfResultsFillsItsValues) {
  OneNode n(op("split.Tensor"));
  const ValueIndex x = n.tensor(at::arange(5));
  n.with("self", x).with("split_size", std::int64_t{3});
  n.node.results.push_back({{n.tensor(), n.tensor()}, true});
  (void)n.run();
  EXPECT_TRUE(n.frame.slots[1].toTensor().equal(at::arange(3)));
  EXPECT_TRUE(n.frame.slots[2].toTensor().equal(at::tensor({3, 4}, at::kLong)));
}

TEST(OperatorCall, DevicesAreTheFrames) {
  OneNode n(op("zeros.default"));
  const at::Tensor out = n.with("size", std::vector<IntItem>{std::int64_t{2}})
                             .with("device", c10::Device(c10::kCUDA, 3))
                             .gives()
                             .run()
                             .toTensor();
  EXPECT_TRUE(out.device().is_cpu());
}

TEST(OperatorCall, RefusesWhatTheSchemaDoesNotTake) {
  EXPECT_EQ(OneNode(op("frobnicate.default")).error(),
            "m.pt2: node \"node\": LibTorch 2.11 has no operator torch.ops.aten.frobnicate.default");
  EXPECT_EQ(OneNode("torch.ops.torchvision.nms.default").error(),
            "m.pt2: node \"node\": operator torch.ops.torchvision.nms.default belongs to \"torchvision\", which is a "
            "Python library; use PyTorch's own operators, \"aten\"");
  EXPECT_EQ(OneNode("os.system").error(),
            "m.pt2: node \"node\": target \"os.system\", expected torch.ops.NAMESPACE.OPERATOR.OVERLOAD");
  EXPECT_EQ(OneNode(op("relu.default")).gives().error(), "m.pt2: node \"node\": argument \"self\" is missing");
  OneNode unknown(op("relu.default"));
  EXPECT_EQ(unknown.gives().with("input", unknown.tensor()).error(),
            "m.pt2: node \"node\": unknown argument \"input\", known are self");
  OneNode twice(op("relu.default"));
  const ValueIndex x = twice.tensor();
  EXPECT_THAT(twice.gives().with("self", x).with("self", x).error(), HasSubstr("argument \"self\" appears twice"));
  OneNode text(op("relu.default"));
  EXPECT_EQ(text.gives().with("self", std::string("x")).error(),
            "m.pt2: node \"node\": argument \"self\": found \"x\", expected Tensor");
  OneNode results(op("relu.default"));
  EXPECT_EQ(results.with("self", results.tensor()).error(),
            "m.pt2: node \"node\": found 0 results, the operator returns 1");
  OneNode real(op("flatten.using_ints"));
  EXPECT_THAT(real.gives().with("self", real.tensor()).with("start_dim", 1.5).error(), HasSubstr("expected int"));
}

TEST(NodeFacts, TellWritesAndSharedMemory) {
  OneNode in_place(op("relu_.default"));
  const ValueIndex x = in_place.tensor();
  const NodeFacts facts = in_place.with("self", x).gives().facts();
  EXPECT_THAT(facts.writes, ElementsAre(0));
  EXPECT_THAT(facts.aliases, ElementsAre(Pair(1, 0)));

  OneNode view(op("split.Tensor"));
  const ValueIndex whole = view.tensor();
  view.with("self", whole).with("split_size", std::int64_t{1});
  view.node.results.push_back({{view.tensor(), view.tensor()}, true});
  EXPECT_THAT(view.facts().aliases, ElementsAre(Pair(1, 0), Pair(2, 0)));
  EXPECT_THAT(view.facts().writes, IsEmpty());

  OneNode fresh(op("add.Tensor"));
  EXPECT_THAT(fresh.with("self", fresh.tensor()).with("other", fresh.tensor()).gives().facts().aliases, IsEmpty());
  OneNode einsum(op("einsum.default"));
  const std::vector<std::optional<ValueIndex>> operands{einsum.tensor()};
  EXPECT_THAT(einsum.with("equation", std::string("ij->ji")).with("tensors", operands).gives().facts().aliases,
              ElementsAre(Pair(1, 0)));
}

OneNode batch_norm(bool training) {
  OneNode n(op("batch_norm.default"));
  n.with("input", n.tensor()).with("weight", std::monostate()).with("bias", std::monostate());
  const ValueIndex mean = n.tensor(), variance = n.tensor();
  n.with("running_mean", mean).with("running_var", variance).with("training", training).with("momentum", 0.25);
  n.with("eps", 1e-5).with("cudnn_enabled", false).gives();
  return n;
}

TEST(NodeFacts, BatchNormMovesItsStatisticsWhereItTrains) {
  const NodeFacts training = batch_norm(true).facts();
  EXPECT_THAT(training.writes, ElementsAre(1, 2));
  EXPECT_THAT(training.decays, ElementsAre(Pair(1, 0.75), Pair(2, 0.75)));
  EXPECT_THAT(training.aliases, IsEmpty());
  EXPECT_THAT(batch_norm(false).facts().writes, IsEmpty());
}

OneNode dropout(double p, bool train) {
  OneNode n(op("dropout.default"));
  n.with("input", n.tensor()).with("p", p).with("train", train).gives();
  return n;
}

TEST(NodeFacts, DropoutDrawsOnlyWhereItDrops) {
  EXPECT_TRUE(dropout(0.1, true).facts().random);
  EXPECT_FALSE(dropout(0, true).facts().random);
  EXPECT_FALSE(dropout(0.1, false).facts().random);
  // Without dropout, the result is the argument itself.
  EXPECT_THAT(dropout(0, true).facts().aliases, ElementsAre(Pair(1, 0)));
}

TEST(NodeFacts, RefusesSparseGradients) {
  OneNode n(op("embedding.default"));
  n.with("weight", n.tensor()).with("indices", n.tensor()).with("sparse", true).gives();
  EXPECT_THROW((void)n.facts(), FormatError);
}

std::int64_t whole(const std::string& target, std::int64_t a, std::int64_t b) {
  OneNode n(target);
  return n.with("a", a).with("b", b).gives(Kind::Int).run().toInt();
}

TEST(NumberCall, DividesAsPythonDoes) {
  EXPECT_EQ(whole("_operator.floordiv", -7, 2), -4);
  EXPECT_EQ(whole("_operator.floordiv", 7, -2), -4);
  EXPECT_EQ(whole("_operator.floordiv", -8, 2), -4);
  EXPECT_EQ(whole("_operator.mod", -7, 3), 2);
  EXPECT_EQ(whole("_operator.mod", 7, -3), -2);
  EXPECT_EQ(whole("_operator.pow", 3, 4), 81);
  EXPECT_EQ(whole("torch.sym_max", 3, 4), 4);
  OneNode ratio("_operator.truediv");
  EXPECT_EQ(ratio.with("a", std::int64_t{1}).with("b", std::int64_t{4}).gives(Kind::Float).run().toDouble(), 0.25);
}

TEST(NumberCall, ListsWhatItKnows) {
  EXPECT_THAT(OneNode("_operator.matmul").gives(Kind::Int).error(),
              HasSubstr("unknown operation on numbers \"_operator.matmul\", known are _operator.add, "));
}

}  // namespace
}  // namespace stagecraft::intake
