#include "executor/intake/builtin/blocks.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/executor/intake/builtin/one_layer.h"

namespace stagecraft::intake {
namespace {

using model::Init;
using ::testing::ElementsAre;

at::Tensor row(const std::vector<float>& values) { return at::tensor(values); }

at::Tensor run(const model::Model& model, const std::vector<at::Tensor>& inputs,
               const std::vector<at::Tensor>& parameters = {}) {
  return model.layers.back().forward(model::LayerCall{inputs, parameters, {}}).at(0);
}

std::vector<std::string> parameter_names(const model::Model& model) {
  std::vector<std::string> out;
  for (const model::ParameterSpec& parameter : model.layers.back().parameters) out.push_back(parameter.name);
  return out;
}

TEST(Blocks, AreLayersThatReadEarlierOnesAndInputs) {
  const model::Model model = built_model("model", [](GraphBuilder& graph) {
    const ValueIndex a = graph.input({"a", "float32", {2}}), b = graph.input({"b", "float32", {2}});
    return add(graph, "second", linear(graph, "first", a, {.in = 2, .out = 2}), b);
  });
  ASSERT_EQ(model.layers.size(), 2U);
  EXPECT_EQ(model.layers[0].name, "first");
  EXPECT_EQ(model.layers[0].kind, "Linear");
  EXPECT_EQ(model.layers[1].name, "second");
  EXPECT_EQ(model.layers[1].inputs[0].layer, 0);
  EXPECT_EQ(model.layers[1].inputs[1].input, 1);
}

TEST(Linear, IsWeightTimesInputPlusBias) {
  const model::Model l =
      one_layer({2}, [](GraphBuilder& g, ValueIndex x) { return linear(g, "fc", x, {.in = 2, .out = 3}); });
  EXPECT_THAT(parameter_names(l), ElementsAre("fc.weight", "fc.bias"));
  EXPECT_THAT(l.layers[0].parameters[0].shape, ElementsAre(3, 2));
  EXPECT_EQ(l.layers[0].parameters[0].scale, 1 / std::sqrt(2.0));
  // (1 + 2 * 10, 3 + 4 * 10, 5 + 6 * 10) + (0, 0, 100).
  const at::Tensor out = run(l, {row({1, 10}).view({1, 2})}, {row({1, 2, 3, 4, 5, 6}).view({3, 2}), row({0, 0, 100})});
  EXPECT_TRUE(out.equal(row({21, 43, 165}).view({1, 3})));
}

TEST(Linear, OfADeviationBeginsNormalWithoutBias) {
  const model::Model l = one_layer(
      {2}, [](GraphBuilder& g, ValueIndex x) { return linear(g, "fc", x, {.in = 2, .out = 3, .deviation = 0.02}); });
  EXPECT_EQ(l.layers[0].parameters[0].init, Init::Normal);
  EXPECT_EQ(l.layers[0].parameters[0].scale, 0.02);
  EXPECT_EQ(l.layers[0].parameters[1].init, Init::Zeros);
}

model::Model one_convolution(const std::vector<std::int64_t>& shape, const ConvShape& conv) {
  return one_layer(shape, [&](GraphBuilder& g, ValueIndex x) { return conv2d(g, "conv", x, conv); });
}

TEST(Conv2d, SumsTheWindowUnderItsFilter) {
  const model::Model l = one_convolution({1, 3, 3}, {.in = 1, .out = 1, .kernel = 2});
  // Windows of 0 1 2 / 3 4 5 / 6 7 8 under 1 10 / 100 1000, and 0.5.
  const at::Tensor out =
      run(l, {at::arange(9, at::kFloat).view({1, 1, 3, 3})}, {row({1, 10, 100, 1000}).view({1, 1, 2, 2}), row({0.5F})});
  EXPECT_TRUE(out.flatten().equal(row({4310.5, 5421.5, 7643.5, 8754.5})));
}

TEST(Conv2d, StrideAndPaddingMoveTheWindows) {
  const model::Model l =
      one_convolution({1, 4, 4}, {.in = 1, .out = 1, .kernel = 3, .stride = 2, .padding = 1, .bias = false});
  EXPECT_THAT(parameter_names(l), ElementsAre("conv.weight"));
  // A row 1 2 3 4 in the middle of zeros: windows around columns 0 and 2 of rows 0 and 2 (the row is row 1).
  at::Tensor x = at::zeros({1, 1, 4, 4});
  x[0][0][1].copy_(row({1, 2, 3, 4}));
  EXPECT_TRUE(run(l, {x}, {at::ones({1, 1, 3, 3})}).flatten().equal(row({1 + 2, 2 + 3 + 4, 1 + 2, 2 + 3 + 4})));
}

TEST(Conv2d, BeginsAsPyTorchOrAsKaimingByItsFan) {
  const model::Model plain = one_convolution({4, 2, 2}, {.in = 4, .out = 8, .kernel = 2});
  EXPECT_EQ(plain.layers[0].parameters[0].scale, 0.25) << "16 values come in";
  const model::Model kaiming = one_convolution({4, 2, 2}, {.in = 4, .out = 8, .kernel = 2, .kaiming = true});
  EXPECT_EQ(kaiming.layers[0].parameters[0].init, Init::Normal);
  EXPECT_DOUBLE_EQ(kaiming.layers[0].parameters[0].scale, 0.25) << "sqrt(2 / 32)";
  EXPECT_EQ(kaiming.layers[0].parameters[1].init, Init::Zeros);
}

TEST(LayerNorm, GivesMeanZeroAndVarianceOne) {
  const model::Model l = one_layer({2}, [](GraphBuilder& g, ValueIndex x) { return layer_norm(g, "norm", x, 2); });
  // (1, 3): mean 2, variance 1.
  const at::Tensor out = run(l, {row({1, 3}).view({1, 2})}, {row({10, 100}), row({0, 5})});
  EXPECT_TRUE(out.allclose(row({-10, 105}).view({1, 2}), 1e-4));
}

TEST(Relu, LeavesNothingBelowZero) {
  const model::Model l = one_layer({}, [](GraphBuilder& g, ValueIndex x) { return relu(g, "relu", x); });
  EXPECT_TRUE(run(l, {row({-1, 0, 2})}).equal(row({0, 0, 2})));
}

TEST(MaxPool2d, TakesTheLargestOfEachWindow) {
  const auto pool = [](const std::vector<std::int64_t>& shape, std::int64_t padding) {
    return one_layer(shape, [&](GraphBuilder& g, ValueIndex x) { return max_pool2d(g, "pool", x, 2, 2, padding); });
  };
  EXPECT_TRUE(
      run(pool({1, 4, 4}, 0), {at::arange(16, at::kFloat).view({1, 1, 4, 4})}).flatten().equal(row({5, 7, 13, 15})));
  EXPECT_TRUE(
      run(pool({1, 2, 2}, 1), {at::arange(4, at::kFloat).view({1, 1, 2, 2})}).flatten().equal(row({0, 1, 2, 3})));
}

TEST(AveragePool2d, FitsItsWindowsToTheSide) {
  const model::Model l =
      one_layer({1, 4, 4}, [](GraphBuilder& g, ValueIndex x) { return average_pool2d(g, "pool", x, 2); });
  // Of 0..15 in four windows: the first holds 0, 1, 4, 5.
  EXPECT_TRUE(run(l, {at::arange(16, at::kFloat).view({1, 1, 4, 4})}).flatten().equal(row({2.5, 4.5, 10.5, 12.5})));
}

TEST(Flatten, KeepsTheSamplesApart) {
  const model::Model l = one_layer({2, 3, 4}, [](GraphBuilder& g, ValueIndex x) { return flatten(g, "flat", x); });
  EXPECT_EQ(run(l, {at::zeros({5, 2, 3, 4})}).sizes(), at::IntArrayRef({5, 24}));
}

TEST(Concat, JoinsTheLastAxis) {
  const model::Model l = built_model("model", [](GraphBuilder& g) {
    const ValueIndex one = g.input({"one", "float32", {1}}), two = g.input({"two", "float32", {2}});
    return concat(g, "both", one, two);
  });
  const at::Tensor out = run(l, {row({1, 2}).view({2, 1}), row({3, 4, 5, 6}).view({2, 2})});
  EXPECT_TRUE(out.equal(row({1, 3, 4, 2, 5, 6}).view({2, 3})));
}

TEST(Embedding, LooksUpRows) {
  const model::Model l = built_model("model", [](GraphBuilder& g) {
    return embedding(g, "table", g.input({"x", "int64", {2}, 3}), model::uniform("shared", {3, 2}, 1));
  });
  EXPECT_THAT(parameter_names(l), ElementsAre("shared"));
  const at::Tensor out =
      run(l, {at::tensor({2, 0}, at::kLong).view({1, 2})}, {row({0, 1, 10, 11, 20, 21}).view({3, 2})});
  EXPECT_TRUE(out.equal(row({20, 21, 0, 1}).view({1, 2, 2})));
}

TEST(Lstm, OfTwoDirectionsHasTwiceTheParametersAndWidth) {
  const model::Model l = one_layer({5, 3}, [](GraphBuilder& g, ValueIndex x) {
    return lstm(g, "lstm", x, {.in = 3, .hidden = 2, .bidirectional = true, .scale = 0.1});
  });
  EXPECT_THAT(parameter_names(l),
              ElementsAre("lstm.weight_ih", "lstm.weight_hh", "lstm.bias_ih", "lstm.bias_hh", "lstm.weight_ih_reverse",
                          "lstm.weight_hh_reverse", "lstm.bias_ih_reverse", "lstm.bias_hh_reverse"));
  std::vector<at::Tensor> parameters;
  for (const model::ParameterSpec& parameter : l.layers[0].parameters)
    parameters.push_back(at::full(parameter.shape, 0.1));
  const at::Tensor out = run(l, {at::ones({1, 5, 3})}, parameters);
  EXPECT_EQ(out.sizes(), at::IntArrayRef({1, 5, 4}));
  // With one input and one set of weights, the reverse direction gives the forward direction's outputs in reverse
  // order.
  EXPECT_TRUE(out.slice(2, 0, 2).allclose(out.slice(2, 2, 4).flip(1)));
}

TEST(CrossEntropy, IsTheMeanOverAllPositions) {
  const model::Model l = built_model("model", [](GraphBuilder& g) {
    const ValueIndex scores = linear(g, "scores", g.input({"x", "float32", {2, 2}}), {.in = 2, .out = 2});
    return cross_entropy(g, scores, g.input({"target", "int64", {2}, 2}));
  });
  EXPECT_EQ(l.layers.back().name, "loss");
  // Scores (0, ln 3): probabilities 1/4 and 3/4. One position has class 0, the other class 1.
  const at::Tensor logits = row({0, std::log(3.0F), 0, std::log(3.0F)}).view({1, 2, 2});
  EXPECT_NEAR(run(l, {logits, at::tensor({0, 1}, at::kLong).view({1, 2})}).item<double>(),
              (std::log(4.0) + std::log(4.0 / 3)) / 2, 1e-6);
}

TEST(MaskStream, DrawsOnWithEachMask) {
  MaskStream drop(3), again(3);
  const at::Tensor x = at::ones({1000}), first = drop.drop(x, 0.5), second = drop.drop(x, 0.5);
  EXPECT_FALSE(first.equal(second)) << "two masks of one call are independent";
  EXPECT_TRUE(first.equal(again.drop(x, 0.5)));
  EXPECT_TRUE(second.equal(again.drop(x, 0.5)));
  EXPECT_EQ(drop.drawn(), 2);
}

TEST(MaskStream, SkipsTheMasksOfOtherSizes) {
  MaskStream all(3), last(3);
  const at::Tensor x = at::ones({1000});
  (void)all.drop(at::ones({7, 30}), 0.25);
  const at::Tensor wanted = all.drop(x, 0.5);
  last.skip({7, 30}, x, 0.25);
  EXPECT_TRUE(wanted.equal(last.drop(x, 0.5)));
}

TEST(Dropout, IsNoneWithoutProbabilityOrTraining) {
  const at::Tensor x = at::ones({3, 1});
  for (const std::int64_t percent : {0, 50}) {
    const model::Model l =
        one_layer({1}, [&](GraphBuilder& g, ValueIndex in) { return dropout(g, "dropout", in, percent); });
    model::LayerCall evaluates{{&x, 1}, {}, {}};
    evaluates.training = false;
    EXPECT_TRUE(l.layers[0].forward(evaluates).at(0).is_same(x));
    EXPECT_EQ(run(l, {x}).is_same(x), percent == 0);
  }
}

}  // namespace
}  // namespace stagecraft::intake
