#include "executor/stage/optimizer.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "executor/stage/stage_program.h"
#include "tests/support/operator_count.h"

namespace stagecraft::stage {
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
  // m = 0.1 g, v = 0.001 g^2; with bias correction these are g and g^2: w -= lr * g / (|g| + eps).
  for (const float gradient : {3.0F, -0.25F}) {
    at::Tensor w = parameter(1, gradient);
    Optimizer optimizer({.name = "adam", .learning_rate = 0.01}, {w});
    optimizer.step(1);
    EXPECT_NEAR(value(w), 1 - 0.01 * gradient / (std::abs(gradient) + 1e-8), 1e-6);
  }
}

TEST(Optimizer, AdamwDecaysTheWeightIndependentlyOfTheGradient) {
  // w * (1 - lr * decay) - lr * 1 = 2 * (1 - 0.1 * 0.5) - 0.1 = 1.8.
  at::Tensor w = parameter(2, 5);
  Optimizer optimizer({.name = "adamw", .learning_rate = 0.1, .weight_decay = 0.5}, {w});
  optimizer.step(1);
  EXPECT_NEAR(value(w), 1.8, 1e-5);
}

TEST(Optimizer, MatchesValuesWhateverTheLayouts) {
  // Transposed, [[0, 2, 4], [1, 3, 5]], with a contiguous gradient of 10 times the values. Two steps of w -= 0.1 *
  // gradient * (1, then 1.5 with momentum 0.5): w - 2.5 w = -1.5 w. Adam moves by 0.1 against the gradient unless it is
  // 0.
  for (const char* name : {"sgd", "adam", "adamw"}) {
    at::Tensor w = at::arange(6, at::kFloat).view({3, 2}).t();
    const at::Tensor before = w.clone();
    w.requires_grad_(true);
    Optimizer optimizer({.name = name, .learning_rate = 0.1, .momentum = std::string(name) == "sgd" ? 0.5 : 0}, {w});
    for (int step = 0; step < 2; ++step) {
      w.mutable_grad() = before.contiguous().mul(10);
      if (step == 1) {  // like a restored checkpoint
        OptimizerState state = optimizer.state(0);
        for (at::Tensor* tensor : {&state.first, &state.second})
          *tensor = tensor->defined() ? tensor->contiguous() : *tensor;
        optimizer.set_state(0, std::move(state));
      }
      optimizer.step(1);
    }
    const at::Tensor expected = std::string(name) == "sgd" ? before.mul(-1.5) : before.sub(before.sign().mul(0.2));
    EXPECT_TRUE(at::allclose(w, expected, 1e-5, 1e-5)) << name << "\n" << w;
  }
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

/// Every optimizer that has a fused kernel with every option that changes its arithmetic.
const std::vector<OptimizerOptions> kFused{
    {.name = "sgd", .learning_rate = 0.1},
    {.name = "sgd", .learning_rate = 0.1, .weight_decay = 0.01},
    {.name = "sgd", .learning_rate = 0.1, .momentum = 0.9},
    {.name = "sgd", .learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0.01},
    {.name = "adam", .learning_rate = 0.1},
    {.name = "adam", .learning_rate = 0.1, .weight_decay = 0.01, .beta1 = 0.5, .beta2 = 0.75, .epsilon = 1e-3},
    {.name = "adamw", .learning_rate = 0.1},
    {.name = "adamw", .learning_rate = 0.1, .weight_decay = 0.01, .beta1 = 0.5, .beta2 = 0.75, .epsilon = 1e-3},
    {.name = "adam", .learning_rate = 0.1, .amsgrad = true},
    {.name = "sgd", .learning_rate = 0.1, .momentum = 0.9, .dampening = 0.5},
    {.name = "sgd", .learning_rate = 0.1, .momentum = 0.9, .nesterov = true},
    {.name = "adagrad", .learning_rate = 0.1, .weight_decay = 0.01, .learning_rate_decay = 0.1}};

/// Those and every other optimizer.
std::vector<OptimizerOptions> every_option() {
  std::vector<OptimizerOptions> out = kFused;
  for (const char* name : {"adamax", "nadam", "radam", "adadelta", "rmsprop", "lion"}) {
    out.push_back({.name = name, .learning_rate = 0.1});
    out.push_back({.name = name, .learning_rate = 0.1, .weight_decay = 0.01});
  }
  out.push_back({.name = "rmsprop", .learning_rate = 0.1, .momentum = 0.9, .centered = true});
  return out;
}

TEST(Optimizer, LionByHand) {
  // From the paper: c = 0.9 m + 0.1 g, w -= rate (sign(c) + decay w), m = 0.99 m + 0.01 g. Step 1, g = 2: w = 1 - 0.1
  // (1 + 0.5) = 0.85, m = 0.02. Step 2, g = -0.1: c = 0.018 - 0.01 > 0, so w = 0.85 - 0.1 (1 + 0.425) = 0.7075,
  // although the gradient points the other way. m = 0.0198 - 0.001 = 0.0188.
  at::Tensor w = parameter(1, 2);
  Optimizer optimizer({.name = "lion", .learning_rate = 0.1, .weight_decay = 0.5}, {w});
  optimizer.step(1);
  EXPECT_FLOAT_EQ(value(w), 0.85F);
  set_gradient(w, -0.1F);
  optimizer.step(1);
  EXPECT_FLOAT_EQ(value(w), 0.7075F);
  EXPECT_FLOAT_EQ(optimizer.state(0).first.item<float>(), 0.0188F);
}

TEST(Optimizer, MovesEveryParameterAsIfItWereAlone) {
  // The same operations on each value, so the same bits. One parameter has its first gradient in the second step.
  const std::vector<std::vector<std::int64_t>> shapes{{}, {1}, {7}, {3, 5}, {64, 33}, {2, 3, 4, 5}, {0, 4}};
  const std::uint64_t seed = 14;
  for (const OptimizerOptions& options : every_option()) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    std::vector<at::Tensor> together, alone;
    std::vector<Optimizer> separate;
    for (const auto& shape : shapes) {
      together.push_back(at::randn(shape, generator).requires_grad_(true));
      alone.push_back(together.back().detach().clone().requires_grad_(true));
      separate.emplace_back(options, std::vector{alone.back()});
    }
    Optimizer all(options, together);
    for (int step = 0; step < 4; ++step) {
      const double divisor = step == 1 ? 1 : 4;
      for (std::size_t i = step == 0 ? 1 : 0; i < shapes.size(); ++i) {
        together[i].mutable_grad() = at::randn(shapes[i], generator);
        alone[i].mutable_grad() = together[i].grad().clone();
        separate[i].step(divisor, 0.5);
      }
      all.step(divisor, 0.5);
    }
    for (std::size_t i = 0; i < shapes.size(); ++i)
      EXPECT_TRUE(at::equal(together[i], alone[i])) << options.name << " " << i << ", seed " << seed;
  }
}

TEST(Optimizer, UpdatesALargeParameterInBfloat16AsItsParts) {
  // More values than are copied to float32 together; "nadam" moves a product of each parameter in each step.
  constexpr std::int64_t kPart = std::int64_t{1} << 16;
  for (const char* const name : {"adam", "nadam", "lion"}) {
    OptimizerOptions options{.name = name, .learning_rate = 0.1, .weight_decay = 0.01};
    options.types = {StateType::Bfloat16, StateType::Bfloat16, StateType::Bfloat16};
    const at::Tensor whole = make_leaf(at::randn({2 * kPart + 77}).to(at::kBFloat16), at::kBFloat16);
    std::vector<at::Tensor> parts;
    for (const at::Tensor& part : whole.detach().clone().split(kPart)) parts.push_back(make_leaf(part, at::kBFloat16));
    Optimizer together(options, {whole});
    Optimizer apart(options, parts);
    for (int step = 0; step < 3; ++step) {
      const at::Tensor gradient = at::randn_like(whole.detach());
      whole.mutable_grad() = gradient.clone();
      const std::vector<at::Tensor> of_parts = gradient.split(kPart);
      for (std::size_t i = 0; i < parts.size(); ++i) parts[i].mutable_grad() = of_parts[i].clone();
      together.step(2);
      apart.step(2);
    }
    const OptimizerState state = together.state(0);
    std::int64_t first = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const std::int64_t count = parts[i].numel();
      EXPECT_TRUE(at::equal(whole.detach().narrow(0, first, count), parts[i].detach())) << name << ", part " << i;
      EXPECT_TRUE(at::equal(state.master.narrow(0, first, count), apart.state(i).master)) << name << ", part " << i;
      EXPECT_TRUE(at::equal(state.first.narrow(0, first, count), apart.state(i).first)) << name << ", part " << i;
      first += count;
    }
    EXPECT_TRUE(!state.steps.defined() || state.steps.item<float>() == 3) << name;
    EXPECT_TRUE(!state.product.defined() || at::equal(state.product, apart.state(0).product)) << name;
    EXPECT_EQ(whole.grad().scalar_type(), at::kBFloat16);
  }
}

TEST(Optimizer, KeepsWhatIsLessThanABitOfABfloat16Parameter) {
  // bfloat16 has 8 bits: 1 - 2^-11 rounds to 1, and so does each of the next steps; after eight, the master value is
  // 1 - 2^-8, which is a bfloat16.
  at::Tensor w = make_leaf(at::full({1}, 1, at::kBFloat16), at::kFloat);
  OptimizerOptions options{.name = "sgd", .learning_rate = 0x1p-11};
  options.types.parameters = StateType::Bfloat16;
  Optimizer optimizer(options, {w});
  for (int step = 0; step < 8; ++step) {
    w.mutable_grad() = at::full({1}, 1.0F);
    optimizer.step(1);
    EXPECT_EQ(optimizer.state(0).master.item<float>(), 1 - 0x1p-11F * static_cast<float>(step + 1));
    EXPECT_TRUE(step >= 3 || w.item<float>() == 1) << "step " << step;
  }
  EXPECT_EQ(w.item<float>(), 1 - 0x1p-8F);
}

TEST(Optimizer, TakesAsManyOperatorsForManyParametersAsForOne) {
  const auto operators = [](const OptimizerOptions& options, int parameters) {
    std::vector<at::Tensor> all;
    for (int i = 0; i < parameters; ++i) all.push_back(parameter(1, 2));
    Optimizer optimizer(options, all);
    optimizer.step(2);  // creates the state
    return operators_of([&] { optimizer.step(2); });
  };
  for (const OptimizerOptions& options : kFused) {
    EXPECT_EQ(operators(options, 20), operators(options, 1)) << options.name;
    EXPECT_GE(operators(options, 1), 1) << options.name;
  }
}

TEST(Optimizer, TreatsTheParametersOfAGroupAsAnOptimizerWithItsSettings) {
  // The group has no decay and a quarter of the rate, or its own.
  const std::uint64_t seed = 15;
  for (const OptimizerOptions& plain : every_option()) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    OptimizerOptions grouped = plain, other = plain, third = plain;
    grouped.groups = {parse_group("bias:weight-decay=0,lr-factor=0.25"), parse_group("head:learning-rate=0.3")};
    other.weight_decay = 0;
    other.learning_rate *= 0.25;
    third.learning_rate = 0.3;
    const std::vector<std::string> names{"body.weight", "body.bias", "head.weight", "head.bias"};
    const std::vector<OptimizerOptions> as{plain, other, third, other};
    std::vector<at::Tensor> together, alone;
    std::vector<Optimizer> separate;
    for (const OptimizerOptions& options : as) {
      together.push_back(at::randn({3, 5}, generator).requires_grad_(true));
      alone.push_back(together.back().detach().clone().requires_grad_(true));
      separate.emplace_back(options, std::vector{alone.back()});
    }
    Optimizer all(grouped, together, names);
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < names.size(); ++i) {
        together[i].mutable_grad() = at::randn({3, 5}, generator);
        alone[i].mutable_grad() = together[i].grad().clone();
        separate[i].step(4, 0.5);
      }
      all.step(4, 0.5);
    }
    for (std::size_t i = 0; i < names.size(); ++i)
      EXPECT_TRUE(at::equal(together[i], alone[i])) << plain.name << " " << names[i] << ", seed " << seed;
  }
}

TEST(Optimizer, KeepsMovingAveragesByHand) {
  // SGD at rate 1 with gradients of 1: 8, 7, 6, 5. Decay 0.5: 7, then 0.5 * 7 + 0.5 * 6 = 6.5, then 5.75. The other
  // parameter has a gradient in the second step only: 1, 1, 0, 0; its average 1, 0.5, 0.25.
  at::Tensor w = parameter(8, 1);
  at::Tensor late = at::ones({1}).requires_grad_(true);
  Optimizer optimizer({.learning_rate = 1, .ema_decay = 0.5}, {w, late});
  EXPECT_FALSE(optimizer.state(0).average.defined());
  const std::vector<std::pair<float, float>> expected{{7, 1}, {6.5, 0.5}, {5.75, 0.25}};
  for (std::size_t step = 0; step < 3; ++step) {
    late.mutable_grad() = step == 1 ? at::ones({1}) : at::Tensor();
    optimizer.step(1);
    EXPECT_EQ(optimizer.state(0).average.item<float>(), expected[step].first);
    EXPECT_EQ(optimizer.state(1).average.item<float>(), expected[step].second);
  }
  EXPECT_EQ(state_values({.name = "adam", .ema_decay = 0.5}), 3);
  EXPECT_THAT([] { validate(OptimizerOptions{.ema_decay = 1}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("moving averages is 1, must be at least 0 and below 1")));
}

TEST(Optimizer, NamesWhatToUseInsteadOfAdafactorAndMuon) {
  EXPECT_EQ(unknown_optimizer_text("adamw"), "");
  EXPECT_THAT(unknown_optimizer_text("Adafactor"), HasSubstr("use lion or sgd with momentum"));
  EXPECT_THAT(unknown_optimizer_text("muon"), HasSubstr("use adamw"));
}

TEST(Optimizer, SaysWhatItKeepsAndWhatItTakes) {
  EXPECT_EQ(state_values({.name = "sgd"}), 0);
  EXPECT_EQ(state_values({.name = "sgd", .momentum = 0.9}), 1);
  EXPECT_EQ(state_values({.name = "adam"}), 2);
  EXPECT_EQ(state_values({.name = "adam", .amsgrad = true}), 3);
  EXPECT_EQ(state_values({.name = "lion"}), 1);
  EXPECT_EQ(state_values({.name = "rmsprop"}), 1);
  EXPECT_EQ(state_values({.name = "rmsprop", .momentum = 0.9}), 2);
  EXPECT_EQ(state_values({.name = "rmsprop", .momentum = 0.9, .centered = true}), 3);
  EXPECT_THAT([] { validate(OptimizerOptions{.name = "lamb"}); },
              ThrowsMessage<std::invalid_argument>("unknown optimizer \"lamb\", known are sgd, adam, adamw, adamax, "
                                                   "nadam, radam, adagrad, adadelta, rmsprop, lion"));
  EXPECT_THAT([] { validate(OptimizerOptions{.learning_rate = -1}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("the learning rate is -1")));
  EXPECT_THAT([] { validate(OptimizerOptions{.name = "adam", .momentum = 0.9}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("has no momentum; use sgd or rmsprop")));
  EXPECT_THAT([] { validate(OptimizerOptions{.name = "sgd", .epsilon = 1e-3}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("optimizer \"sgd\" has no epsilon; use adam or ")));
  EXPECT_THAT([] { validate(OptimizerOptions{.name = "adam", .beta1 = 1}); },
              ThrowsMessage<std::invalid_argument>("beta1 is 1, must be at least 0 and below 1"));
  EXPECT_THAT([] { validate(OptimizerOptions{.momentum = 0.5, .dampening = 0.5, .nesterov = true}); },
              ThrowsMessage<std::invalid_argument>("Nesterov momentum needs a momentum, and no dampening"));
}

TEST(Optimizer, NamesTheSettingsThatAreNotDefaults) {
  EXPECT_TRUE(further_settings({.name = "adam", .momentum = 0.9, .beta2 = 0.5}).empty());
  EXPECT_EQ(further_settings({.name = "rmsprop", .alpha = 0.5, .centered = true}),
            (std::map<std::string, std::string>{{"alpha", "0.5"}, {"centered", "true"}}));
}

TEST(Optimizer, TakesAFactorOnItsRate) {
  // SGD at rate 0.5, a gradient of 2, half the rate: 1 - 0.5 * 0.5 * 2 = 0.5.
  at::Tensor value = at::ones({1}).set_requires_grad(true);
  value.mutable_grad() = at::full({1}, 2.0);
  Optimizer({.learning_rate = 0.5}, {value}).step(1, 0.5);
  EXPECT_EQ(value.item<double>(), 0.5);
}

}  // namespace
}  // namespace stagecraft::stage
