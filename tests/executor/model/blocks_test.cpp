#include "executor/model/blocks.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace stagecraft::model {
namespace {

using ::testing::ElementsAre;

at::Tensor row(const std::vector<float>& values) { return at::tensor(values); }

/// A model with an input; the test appends one layer.
struct OneLayer {
  at::Tensor run(const std::vector<at::Tensor>& inputs, const std::vector<at::Tensor>& parameters = {}) const {
    return model.layers.back().forward(LayerCall{inputs, parameters, {}}).at(0);
  }
  [[nodiscard]] std::vector<std::string> parameter_names() const {
    std::vector<std::string> out;
    for (const ParameterSpec& parameter : model.layers.back().parameters) out.push_back(parameter.name);
    return out;
  }
  Model model;
  ValueRef x = append(model, ModelInput{"x", "float32", {1}});
};

TEST(Append, NumbersLayersAndInputs) {
  Model model;
  const ValueRef a = append(model, ModelInput{"a", "float32", {1}}), b = append(model, ModelInput{"b", "float32", {1}});
  EXPECT_EQ(a.layer, -1);
  EXPECT_EQ(b.input, 1);
  const ValueRef first = relu(model, "first", a), second = add(model, "second", first, b);
  EXPECT_EQ(first.layer, 0);
  EXPECT_EQ(second.layer, 1);
  EXPECT_EQ(second.output, 0);
  EXPECT_EQ(model.layers[1].inputs[0].layer, 0);
  EXPECT_EQ(model.layers[1].inputs[1].input, 1);
}

TEST(FrozenBytes, CountBuffersAndFrozenParametersByTheirTypes) {
  LayerSpec layer;
  layer.parameters = {zeros("a", {2, 3}), zeros("b", {5}), zeros("c", {7})};
  EXPECT_EQ(frozen_bytes(layer), Bytes(0));
  layer.parameters[1].trainable = layer.parameters[2].trainable = false;
  layer.parameters[2].dtype = at::kLong;
  EXPECT_EQ(frozen_bytes(layer), Bytes(5 * 4 + 7 * 8));
  EXPECT_EQ(parameter_count(layer), 6);
}

TEST(FanInScale, IsOneOverTheRoot) {
  EXPECT_EQ(fan_in_scale(4), 0.5);
  EXPECT_EQ(fan_in_scale(1), 1);
}

TEST(ParameterSpecs, BeginAsTheirNamesSay) {
  EXPECT_EQ(ones("a", {2}).init, Init::Ones);
  EXPECT_EQ(zeros("a", {2}).init, Init::Zeros);
  EXPECT_EQ(uniform("a", {2}, 0.5).scale, 0.5);
  EXPECT_EQ(normal("a", {2}, 0.5).init, Init::Normal);
  for (const ParameterSpec& parameter : {ones("a", {2}), zeros("a", {2}), uniform("a", {2}, 1), normal("a", {2}, 1)})
    EXPECT_TRUE(parameter.trainable);
}

TEST(Linear, IsWeightTimesInputPlusBias) {
  OneLayer l;
  linear(l.model, "fc", l.x, {.in = 2, .out = 3});
  EXPECT_THAT(l.parameter_names(), ElementsAre("fc.weight", "fc.bias"));
  EXPECT_THAT(l.model.layers[0].parameters[0].shape, ElementsAre(3, 2));
  EXPECT_EQ(l.model.layers[0].parameters[0].scale, 1 / std::sqrt(2.0));
  // (1 + 2 * 10, 3 + 4 * 10, 5 + 6 * 10) + (0, 0, 100).
  const at::Tensor out = l.run({row({1, 10}).view({1, 2})}, {row({1, 2, 3, 4, 5, 6}).view({3, 2}), row({0, 0, 100})});
  EXPECT_TRUE(out.equal(row({21, 43, 165}).view({1, 3})));
}

TEST(Linear, OfADeviationBeginsNormalWithoutBias) {
  OneLayer l;
  linear(l.model, "fc", l.x, {.in = 2, .out = 3, .deviation = 0.02});
  EXPECT_EQ(l.model.layers[0].parameters[0].init, Init::Normal);
  EXPECT_EQ(l.model.layers[0].parameters[0].scale, 0.02);
  EXPECT_EQ(l.model.layers[0].parameters[1].init, Init::Zeros);
}

TEST(Conv2d, SumsTheWindowUnderItsFilter) {
  OneLayer l;
  conv2d(l.model, "conv", l.x, {.in = 1, .out = 1, .kernel = 2});
  // Windows of 0 1 2 / 3 4 5 / 6 7 8 under 1 10 / 100 1000, and 0.5.
  const at::Tensor out =
      l.run({at::arange(9, at::kFloat).view({1, 1, 3, 3})}, {row({1, 10, 100, 1000}).view({1, 1, 2, 2}), row({0.5F})});
  EXPECT_TRUE(out.flatten().equal(row({4310.5, 5421.5, 7643.5, 8754.5})));
}

TEST(Conv2d, StrideAndPaddingMoveTheWindows) {
  OneLayer l;
  conv2d(l.model, "conv", l.x, {.in = 1, .out = 1, .kernel = 3, .stride = 2, .padding = 1, .bias = false});
  EXPECT_THAT(l.parameter_names(), ElementsAre("conv.weight"));
  // A row 1 2 3 4 in the middle of zeros: windows around columns 0 and 2 of rows 0 and 2 (the row is row 1).
  at::Tensor x = at::zeros({1, 1, 4, 4});
  x[0][0][1].copy_(row({1, 2, 3, 4}));
  EXPECT_TRUE(l.run({x}, {at::ones({1, 1, 3, 3})}).flatten().equal(row({1 + 2, 2 + 3 + 4, 1 + 2, 2 + 3 + 4})));
}

TEST(Conv2d, BeginsAsPyTorchOrAsKaimingByItsFan) {
  OneLayer l;
  conv2d(l.model, "plain", l.x, {.in = 4, .out = 8, .kernel = 2});
  EXPECT_EQ(l.model.layers[0].parameters[0].scale, 0.25) << "16 values come in";
  conv2d(l.model, "kaiming", l.x, {.in = 4, .out = 8, .kernel = 2, .kaiming = true});
  EXPECT_EQ(l.model.layers[1].parameters[0].init, Init::Normal);
  EXPECT_DOUBLE_EQ(l.model.layers[1].parameters[0].scale, 0.25) << "sqrt(2 / 32)";
  EXPECT_EQ(l.model.layers[1].parameters[1].init, Init::Zeros);
}

TEST(LayerNorm, GivesMeanZeroAndVarianceOne) {
  OneLayer l;
  layer_norm(l.model, "norm", l.x, 2);
  // (1, 3): mean 2, variance 1.
  const at::Tensor out = l.run({row({1, 3}).view({1, 2})}, {row({10, 100}), row({0, 5})});
  EXPECT_TRUE(out.allclose(row({-10, 105}).view({1, 2}), 1e-4));
}

TEST(Relu, LeavesNothingBelowZero) {
  OneLayer l;
  relu(l.model, "relu", l.x);
  EXPECT_TRUE(l.run({row({-1, 0, 2})}).equal(row({0, 0, 2})));
}

TEST(MaxPool2d, TakesTheLargestOfEachWindow) {
  OneLayer l;
  max_pool2d(l.model, "pool", l.x, 2, 2);
  EXPECT_TRUE(l.run({at::arange(16, at::kFloat).view({1, 1, 4, 4})}).flatten().equal(row({5, 7, 13, 15})));
  max_pool2d(l.model, "padded", l.x, 2, 2, 1);
  EXPECT_TRUE(l.run({at::arange(4, at::kFloat).view({1, 1, 2, 2})}).flatten().equal(row({0, 1, 2, 3})));
}

TEST(AveragePool2d, FitsItsWindowsToTheSide) {
  OneLayer l;
  average_pool2d(l.model, "pool", l.x, 2);
  // Of 0..15 in four windows: the first holds 0, 1, 4, 5.
  EXPECT_TRUE(l.run({at::arange(16, at::kFloat).view({1, 1, 4, 4})}).flatten().equal(row({2.5, 4.5, 10.5, 12.5})));
}

TEST(Flatten, KeepsTheSamplesApart) {
  OneLayer l;
  flatten(l.model, "flat", l.x);
  EXPECT_EQ(l.run({at::zeros({5, 2, 3, 4})}).sizes(), at::IntArrayRef({5, 24}));
}

TEST(Concat, JoinsTheLastAxis) {
  OneLayer l;
  concat(l.model, "both", l.x, l.x);
  const at::Tensor out = l.run({row({1, 2}).view({2, 1}), row({3, 4, 5, 6}).view({2, 2})});
  EXPECT_TRUE(out.equal(row({1, 3, 4, 2, 5, 6}).view({2, 3})));
}

TEST(Embedding, LooksUpRows) {
  OneLayer l;
  embedding(l.model, "table", l.x, uniform("shared", {3, 2}, 1));
  EXPECT_THAT(l.parameter_names(), ElementsAre("shared"));
  const at::Tensor out =
      l.run({at::tensor({2, 0}, at::kLong).view({1, 2})}, {row({0, 1, 10, 11, 20, 21}).view({3, 2})});
  EXPECT_TRUE(out.equal(row({20, 21, 0, 1}).view({1, 2, 2})));
}

TEST(Lstm, OfTwoDirectionsHasTwiceTheParametersAndWidth) {
  OneLayer l;
  lstm(l.model, "lstm", l.x, {.in = 3, .hidden = 2, .bidirectional = true, .scale = 0.1});
  EXPECT_THAT(l.parameter_names(),
              ElementsAre("lstm.weight_ih", "lstm.weight_hh", "lstm.bias_ih", "lstm.bias_hh", "lstm.weight_ih_reverse",
                          "lstm.weight_hh_reverse", "lstm.bias_ih_reverse", "lstm.bias_hh_reverse"));
  std::vector<at::Tensor> parameters;
  for (const ParameterSpec& parameter : l.model.layers[0].parameters)
    parameters.push_back(at::full(parameter.shape, 0.1));
  const at::Tensor out = l.run({at::ones({1, 5, 3})}, parameters);
  EXPECT_EQ(out.sizes(), at::IntArrayRef({1, 5, 4}));
  // With one input and one set of weights, the reverse direction gives the forward direction's outputs in reverse
  // order.
  EXPECT_TRUE(out.slice(2, 0, 2).allclose(out.slice(2, 2, 4).flip(1)));
}

TEST(CrossEntropy, IsTheMeanOverAllPositions) {
  OneLayer l;
  cross_entropy(l.model, l.x, l.x);
  EXPECT_EQ(l.model.layers[0].name, "loss");
  // Scores (0, ln 3): probabilities 1/4 and 3/4. One position has class 0, the other class 1.
  const at::Tensor logits = row({0, std::log(3.0F), 0, std::log(3.0F)}).view({1, 2, 2});
  EXPECT_NEAR(l.run({logits, at::tensor({0, 1}, at::kLong).view({1, 2})}).item<double>(),
              (std::log(4.0) + std::log(4.0 / 3)) / 2, 1e-6);
}

TEST(DropoutMask, NextCallOfALayerDrawsOn) {
  LayerCall call;
  call.random_seed = 3;
  Dropout drop(call, 50);
  EXPECT_TRUE(drop.active());
  const at::Tensor x = at::ones({1000}), first = drop(x), second = drop(x);
  EXPECT_FALSE(first.equal(second)) << "two masks of one call are independent";
  Dropout again(call, 50);
  EXPECT_TRUE(first.equal(again(x)));
  EXPECT_TRUE(second.equal(again(x)));
}

TEST(DropoutMask, IsNoneWithoutProbabilityOrTraining) {
  LayerCall call;
  EXPECT_FALSE(Dropout(call, 0).active());
  call.training = false;
  EXPECT_FALSE(Dropout(call, 50).active());
  const at::Tensor x = at::ones({3});
  EXPECT_TRUE(Dropout(call, 50)(x).is_same(x));
}

}  // namespace
}  // namespace stagecraft::model
