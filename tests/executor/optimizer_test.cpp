#include "executor/optimizer.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// A parameter of one value, with a gradient.
at::Tensor parameter(float value, float gradient) {
  at::Tensor out = at::full({1}, value);
  out.requires_grad_(true);
  out.mutable_grad() = at::full({1}, gradient);
  return out;
}

void set_gradient(at::Tensor& p, float gradient) { p.mutable_grad().fill_(gradient); }
float value(const at::Tensor& p) { return p.detach().item<float>(); }

TEST(Optimizer, SgdWithMomentumByHand) {
  // v1 = g = 4 / 2; w = 1 - 0.1 * 2 = 0.8. v2 = 0.5 * 2 + 2 = 3; w = 0.8 - 0.3 = 0.5.
  at::Tensor w = parameter(1, 4);
  Optimizer optimizer({.name = "sgd", .learning_rate = 0.1, .momentum = 0.5}, {w});
  optimizer.step(2);
  EXPECT_FLOAT_EQ(value(w), 0.8F);
  set_gradient(w, 4);
  optimizer.step(2);
  EXPECT_FLOAT_EQ(value(w), 0.5F);
}

TEST(Optimizer, AdamsFirstStepIsTheLearningRateInTheGradientsDirection) {
  // m = 0.1 g, v = 0.001 g^2; corrected both give g and g^2: w -= lr * g / (|g| + eps).
  for (const float gradient : {3.0F, -0.25F}) {
    at::Tensor w = parameter(1, gradient);
    Optimizer optimizer({.name = "adam", .learning_rate = 0.01}, {w});
    optimizer.step(1);
    EXPECT_NEAR(value(w), 1 - 0.01 * gradient / (std::abs(gradient) + 1e-8), 1e-6);
  }
}

TEST(Optimizer, AdamwShrinksTheWeightApartFromTheGradient) {
  // w * (1 - lr * decay) - lr * 1 = 2 * (1 - 0.1 * 0.5) - 0.1 = 1.8.
  at::Tensor w = parameter(2, 5);
  Optimizer optimizer({.name = "adamw", .learning_rate = 0.1, .weight_decay = 0.5}, {w});
  optimizer.step(1);
  EXPECT_NEAR(value(w), 1.8, 1e-5);
}

TEST(Optimizer, AParameterWithoutAGradientStaysAndBeginsLater) {
  at::Tensor late = at::full({1}, 1.0F);
  late.requires_grad_(true);
  at::Tensor early = parameter(1, 1);
  Optimizer optimizer({.name = "sgd", .learning_rate = 0.1, .momentum = 0.9}, {late, early});
  optimizer.step(1);
  EXPECT_EQ(value(late), 1.0F);
  EXPECT_FLOAT_EQ(value(early), 0.9F);
  late.mutable_grad() = at::full({1}, 1.0F);
  set_gradient(early, 1);
  optimizer.step(1);
  EXPECT_FLOAT_EQ(value(late), 0.9F);                 // its first step: momentum is the gradient
  EXPECT_FLOAT_EQ(value(early), 0.9F - 0.1F * 1.9F);  // its second: 0.9 * 1 + 1
}

TEST(Optimizer, SaysWhatItKeepsAndWhatItTakes) {
  EXPECT_EQ(state_values({.name = "sgd"}), 0);
  EXPECT_EQ(state_values({.name = "sgd", .momentum = 0.9}), 1);
  EXPECT_EQ(state_values({.name = "adam"}), 2);
  EXPECT_THAT([] { validate(OptimizerOptions{.name = "lamb"}); },
              ThrowsMessage<std::invalid_argument>("unknown optimizer \"lamb\", known are sgd, adam, adamw"));
  EXPECT_THAT([] { validate(OptimizerOptions{.learning_rate = -1}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("the learning rate is -1")));
  EXPECT_THAT([] { validate(OptimizerOptions{.name = "adam", .momentum = 0.9}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("takes no momentum, sgd does")));
}

}  // namespace
}  // namespace stagecraft
