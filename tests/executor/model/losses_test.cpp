#include "executor/model/losses.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "executor/model/model.h"

namespace stagecraft::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

/// A model whose output is its input "x" of `shape`, with a loss on it.
Model with_loss(const std::string& loss, std::vector<std::int64_t> shape, int batch_axis = 0,
                const std::string& tokens = {}) {
  Model model;
  model.name = "m";
  ModelInput x{.name = "x", .dtype = "float32", .shape = shape};
  x.batch_axis = batch_axis;
  const ValueRef value = append(model, x);
  if (!tokens.empty()) {
    ModelInput ids{.name = tokens, .dtype = "int32", .shape = {shape.front()}, .classes = 4};
    ids.batch_axis = batch_axis;
    append(model, ids);
  }
  append_loss(model, loss, {.value = value, .shape = shape, .batch_axis = batch_axis}, tokens.empty() ? "ids" : tokens);
  return model;
}

double loss_of(const Model& model, const at::Tensor& output, const at::Tensor& target) {
  const std::array inputs{output, target};
  LayerCall call;
  call.inputs = inputs;
  return model.layers.back().forward(call).front().item<double>();
}

at::Tensor floats(std::vector<float> values, std::vector<std::int64_t> shape) { return at::tensor(values).view(shape); }
at::Tensor wholes(std::vector<std::int64_t> values, std::vector<std::int64_t> shape, at::ScalarType type = at::kLong) {
  return at::tensor(values).view(shape).to(type);
}

const float kLog2 = std::log(2.0F), kLog3 = std::log(3.0F);

TEST(AppendLoss, CrossEntropyOfClasses) {
  const Model model = with_loss("cross_entropy", {2});
  ASSERT_EQ(model.layers.size(), 1U);
  EXPECT_EQ(model.layers[0].name, "loss");
  const ModelInput& target = model.inputs.at(1);
  EXPECT_EQ(target.name, "target");
  EXPECT_EQ(target.dtype, "int64");
  EXPECT_THAT(target.shape, IsEmpty());
  EXPECT_EQ(target.classes, 2);
  // Logits log 3 and 0 are odds of 3 : 1: the classes' probabilities are 3/4 and 1/4.
  EXPECT_NEAR(loss_of(model, floats({kLog3, 0, kLog3, 0}, {2, 2}), wholes({0, 1}, {2})),
              (std::log(4.0 / 3) + std::log(4.0)) / 2, 1e-6);
}

TEST(AppendLoss, CrossEntropyOfASequenceHasItsClassesLast) {
  for (const int axis : {0, 1}) {
    const Model model = with_loss("cross_entropy", {2, 3}, axis);
    EXPECT_THAT(model.inputs.at(1).shape, ElementsAre(2));
    EXPECT_EQ(model.inputs.at(1).classes, 3);
    EXPECT_EQ(model.inputs.at(1).batch_axis, axis);
    // One sample of two positions; odds 2 : 1 : 1 and 1 : 1 : 1, targets 0 and 2: probabilities 1/2 and 1/3.
    const at::Tensor logits = floats({kLog2, 0, 0, 0, 0, 0}, {1, 2, 3}).movedim(0, axis);
    EXPECT_NEAR(loss_of(model, logits, wholes({0, 2}, {1, 2}).movedim(0, axis)), (std::log(2.0) + std::log(3.0)) / 2,
                1e-6);
  }
}

TEST(AppendLoss, CrossEntropyOfAnImageHasItsClassesOnAxisOne) {
  const Model model = with_loss("cross_entropy", {2, 1, 2});
  EXPECT_THAT(model.inputs.at(1).shape, ElementsAre(1, 2));
  EXPECT_EQ(model.inputs.at(1).classes, 2);
  // Class 0 is [log 3, 0] over the two pixels, class 1 is [0, 0]: probabilities of the targets 1/4 and 1/2.
  EXPECT_NEAR(loss_of(model, floats({kLog3, 0, 0, 0}, {1, 2, 1, 2}), wholes({1, 0}, {1, 1, 2})),
              (std::log(4.0) + std::log(2.0)) / 2, 1e-6);
}

TEST(AppendLoss, NextTokenComparesEachPositionWithTheTokenAfterIt) {
  for (const int axis : {0, 1}) {
    const Model model = with_loss("next_token", {3, 2}, axis, "tokens");
    ASSERT_EQ(model.inputs.size(), 2U) << "no target";
    EXPECT_EQ(model.layers.back().inputs[1].input, 1);
    // Odds 3 : 1 at the first position, 1 : 3 at the second; tokens 7, 0, 0. The first token is never a target, and the
    // last position has no target: probabilities 3/4 and 1/4.
    const at::Tensor logits = floats({kLog3, 0, 0, kLog3, 50, -50}, {1, 3, 2}).movedim(0, axis);
    const at::Tensor tokens = wholes({7, 0, 0}, {1, 3}, at::kInt).movedim(0, axis);
    EXPECT_NEAR(loss_of(model, logits, tokens), (std::log(4.0 / 3) + std::log(4.0)) / 2, 1e-6);
  }
}

TEST(AppendLoss, MeanSquaredError) {
  const Model model = with_loss("mse", {2});
  EXPECT_EQ(model.inputs.at(1).dtype, "float32");
  EXPECT_THAT(model.inputs.at(1).shape, ElementsAre(2));
  // Differences 1, -2, 0 and 3.
  EXPECT_DOUBLE_EQ(loss_of(model, floats({1, 2, 3, 4}, {2, 2}), floats({0, 4, 3, 1}, {2, 2})), (1 + 4 + 0 + 9) / 4.0);
}

TEST(AppendLoss, BinaryCrossEntropyOfLogits) {
  const Model model = with_loss("bce", {2});
  // Logits log 3 and 0 mean probabilities 3/4 and 1/2; targets 1 and 1/2.
  EXPECT_NEAR(loss_of(model, floats({kLog3, 0}, {1, 2}), floats({1, 0.5}, {1, 2})),
              (std::log(4.0 / 3) + std::log(2.0)) / 2, 1e-6);
}

TEST(AppendLoss, NoneLeavesAModelThatGivesItsLoss) {
  const Model model = with_loss("none", {});
  EXPECT_TRUE(model.layers.empty());
  EXPECT_EQ(model.inputs.size(), 1U);
}

TEST(AppendLoss, SaysWhatItCannotTake) {
  const auto refuses = [](const auto& call, const std::string& message) {
    EXPECT_THAT(call, ThrowsMessage<std::invalid_argument>(HasSubstr(message)));
  };
  refuses([] { (void)with_loss("hinge", {2}); },
          "unknown loss \"hinge\", known are cross_entropy, next_token, mse, bce, none");
  refuses([] { (void)with_loss("none", {2}); },
          "loss none: the output of model m is float32 [2] per sample, expected a single number");
  refuses([] { (void)with_loss("cross_entropy", {}); }, "loss cross_entropy: the output of model m is float32 []");
  refuses([] { (void)with_loss("cross_entropy", {2, 3, 3}, 1); }, "samples first");
  refuses([] { (void)with_loss("next_token", {1, 4}, 0, "tokens"); }, "[positions, classes] with at least 2 positions");
  refuses([] { (void)with_loss("next_token", {3, 4}); }, "loss next_token: unknown input \"ids\", known are x");
  Model model = with_loss("mse", {2});
  refuses([&] { append_loss(model, "mse", {.value = {.input = 0}, .shape = {2}}); },
          "model m already has a layer \"loss\"; use loss none");
  model.layers.clear();
  refuses([&] { append_loss(model, "mse", {.value = {.input = 0}, .shape = {2}}); },
          "model m already has an input \"target\"; use loss none");
  refuses([&] { append_loss(model, "mse", {.value = {.input = 0}, .shape = {2}, .dtype = at::kLong}); },
          "is int64 [2] per sample, expected a floating type");
  refuses([&] { append_loss(model, "next_token", {.value = {.input = 0}, .shape = {3, 2}}, "x"); },
          "loss next_token: input \"x\" of model m is float32 [2] per sample, expected integers [3]");
}

}  // namespace
}  // namespace stagecraft::model
