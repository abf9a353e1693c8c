#include "executor/stage/gradients/finite.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "costmodel/index.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/run/run.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/run_command.h"

namespace stagecraft::stage {
namespace {

using ::testing::ThrowsMessage;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(AllFinite, FindsOneValueAnywhere) {
  for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const std::int64_t place : {0, 7, 30}) {
      at::Tensor values = at::full({31}, std::numeric_limits<float>::max());
      EXPECT_TRUE(all_finite(values));
      EXPECT_TRUE(all_finite(at::full({31}, 3e38, at::kBFloat16)));
      values[place] = bad;
      EXPECT_FALSE(all_finite(values)) << place;
      EXPECT_FALSE(all_finite(values.to(at::kDouble))) << place;
      EXPECT_FALSE(all_finite(values.to(at::kBFloat16))) << place;
    }
  }
  EXPECT_TRUE(all_finite(at::full({3}, -std::numeric_limits<float>::denorm_min())));
  EXPECT_TRUE(all_finite(at::ones({3}, at::kLong)));
  EXPECT_TRUE(all_finite(at::ones({0})));
}

TEST(AllFinite, LooksAtTheValuesOfAViewAlone) {
  const at::Tensor whole = at::full({4, 4}, kInfinity);
  at::Tensor part = whole.narrow(1, 1, 2);
  part.fill_(1);
  EXPECT_TRUE(all_finite(part));
  EXPECT_FALSE(all_finite(whole.t()));
}

TEST(OnNonfinite, IsNamed) {
  EXPECT_EQ(parse_on_nonfinite("stop"), OnNonfinite::Stop);
  EXPECT_EQ(parse_on_nonfinite("warn"), OnNonfinite::Warn);
  EXPECT_EQ(parse_on_nonfinite("skip"), OnNonfinite::Skip);
  EXPECT_THAT([] { (void)parse_on_nonfinite("ignore"); },
              ThrowsMessage<std::invalid_argument>("unknown action \"ignore\", known are stop, warn, skip"));
}

/// A parameter with this gradient, or with none if it is undefined.
Parameter parameter(const std::string& name, const at::Tensor& gradient) {
  at::Tensor value = at::ones({2}).requires_grad_(true);
  value.mutable_grad() = gradient;
  return {name, 0, value};
}

TEST(NonfiniteGradient, NamesTheFirstParameter) {
  const Parameter good = parameter("good", at::ones({2})), none = parameter("none", {});
  const Parameter bad = parameter("bad", at::full({2}, kInfinity)), worse = parameter("worse", at::full({2}, NAN));
  EXPECT_EQ(nonfinite_gradient({none, good}), std::nullopt);
  EXPECT_EQ(nonfinite_gradient({none, good, bad, worse}), "bad");
  EXPECT_EQ(nonfinite_gradient({worse, bad}), "worse");
  EXPECT_EQ(nonfinite_gradient({}), std::nullopt);
}

TEST(NonfiniteFlag, IsAboveZeroIfAnyGradientIsNotFinite) {
  const Parameter good = parameter("good", at::full({2}, std::numeric_limits<float>::max()));
  const Parameter none = parameter("none", {});
  EXPECT_FALSE(nonfinite_flag({none}).defined());
  const at::Tensor zero = nonfinite_flag({none, good});
  EXPECT_EQ(zero.dim(), 0);
  EXPECT_EQ(zero.item<float>(), 0);
  for (const float value : {kInfinity, -kInfinity, std::nanf("")})
    EXPECT_GT(nonfinite_flag({good, parameter("bad", at::full({2}, value))}).item<float>(), 0);
}

TEST(NonfiniteFlag, ChangesNoGradient) {
  const Parameter parameters[] = {parameter("a", at::full({2}, 1.1F)), parameter("b", at::full({2}, kInfinity))};
  (void)nonfinite_flag({parameters[0], parameters[1]});
  EXPECT_TRUE(parameters[0].value.grad().eq(1.1F).all().item<bool>());
  EXPECT_TRUE(parameters[1].value.grad().eq(kInfinity).all().item<bool>());
}

using stagecraft::testing::cut_plan;
using stagecraft::testing::even_cuts;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

/// An mlp whose graph, and therefore every plan, computes in `compute`.
PlannedModel mlp_in(at::ScalarType compute) {
  return planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "4"}}, 3, compute);
}

run::RunOptions checked(std::int64_t steps) {
  run::RunOptions options;
  options.steps = steps;
  options.check = true;
  options.optimizer.momentum = 0.9;
  return options;
}

run::RunResult run(const PlannedModel& planned, const Plan& plan, const run::RunOptions& options) {
  return run::run_local(plan, planned.model, *planned.data, options, milliseconds(60000));
}

void expect_bit_equal(const run::RunResult& result, const std::string& what) {
  EXPECT_GT(result.check->values, 0) << what;
  EXPECT_EQ(result.check->different, 0) << what;
  EXPECT_EQ(result.check->losses_different, 0) << what;
}

TEST(LossScaler, HalvesWithAnOverflowAndDoublesAfterItsInterval) {
  LossScaler scaler({.growth_interval = 3});
  EXPECT_EQ(scaler.state(), (LossScale{65536, 0}));
  scaler.update(true);
  EXPECT_EQ(scaler.state(), (LossScale{32768, 0}));
  scaler.update(false);
  scaler.update(false);
  EXPECT_EQ(scaler.state(), (LossScale{32768, 2}));
  scaler.update(true);  // restarts the count
  EXPECT_EQ(scaler.state(), (LossScale{16384, 0}));
  for (int i = 0; i < 3; ++i) scaler.update(false);
  EXPECT_EQ(scaler.state(), (LossScale{32768, 0}));
  EXPECT_EQ(scaler.skipped(), 2);
}

TEST(LossScaler, KeepsAFixedScale) {
  LossScaler scaler({.fixed = 8, .growth_interval = 1});
  scaler.update(true);
  scaler.update(false);
  scaler.set_state({4, 1});
  EXPECT_EQ(scaler.scale(), 8);
  EXPECT_EQ(scaler.skipped(), 1);
}

TEST(LossScaler, NeverGrowsBeyondFloat) {
  LossScaler scaler({.growth_interval = 1});
  scaler.set_state({0x1p127, 0});
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 0x1p127);
}

TEST(LossScaler, NamesAWrongOption) {
  EXPECT_EQ(parse_loss_scale("dynamic"), std::nullopt);
  EXPECT_EQ(parse_loss_scale("1024"), 1024);
  for (const char* text : {"", "0", "-1", "inf", "nan", "8x", "Dynamic"}) {
    EXPECT_THAT([&] { (void)parse_loss_scale(text); },
                ThrowsMessage<std::invalid_argument>("found \"" + std::string(text) +
                                                     "\", expected dynamic or a number above 0"));
  }
  EXPECT_THAT([] { (void)LossScaler({.growth_interval = 0}); },
              ThrowsMessage<std::invalid_argument>("the loss scale grows every 0 steps, must be at least 1"));
}

TEST(Overflows, FindsInfinitiesAndNaNsAndChangesNothing) {
  std::vector<Parameter> parameters(2);
  for (Parameter& parameter : parameters) parameter.value = at::zeros({3}).requires_grad_(true);
  EXPECT_FALSE(overflows(parameters));
  parameters[1].value.mutable_grad() = at::full({3}, 3e38F);
  EXPECT_FALSE(overflows(parameters));
  EXPECT_TRUE(at::equal(parameters[1].value.grad(), at::full({3}, 3e38F)));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    parameters[0].value.mutable_grad() = at::zeros({3});
    parameters[0].value.grad()[2] = bad;
    EXPECT_TRUE(overflows(parameters));
  }
}

TEST(RunInLowPrecision, EqualsASingleProcessBitForBitForEveryReplicaVector) {
  for (const at::ScalarType compute : {at::kBFloat16, at::kHalf}) {
    const PlannedModel planned = mlp_in(compute);
    const int layers = to_int(planned.model.layers.size());
    for (const std::vector<int>& replicas :
         std::vector<std::vector<int>>{{1}, {3}, {1, 1}, {2, 1}, {1, 2}, {3, 2}, {1, 1, 1}, {2, 3, 1}}) {
      const Plan plan = cut_plan(planned, even_cuts(layers, to_int(replicas.size())), replicas, "1f1b", 5);
      EXPECT_EQ(plan.dtype, compute == at::kHalf ? "float16" : "bfloat16");
      const run::RunResult result = run(planned, plan, checked(3));
      expect_bit_equal(result, plan.dtype);
      EXPECT_EQ(result.loss_scale.has_value(), compute == at::kHalf);
    }
  }
}

TEST(RunInLowPrecision, SkipsStepsThatOverflowOnEveryRankAndContinues) {
  const PlannedModel planned = mlp_in(at::kHalf);
  const int layers = to_int(planned.model.layers.size());
  for (const double clip : {0.0, 0.05}) {
    const Plan plan = cut_plan(planned, even_cuts(layers, 3), {2, 1, 2}, "1f1b", 4);
    run::RunOptions options = checked(30);
    options.optimizer.clip_norm = clip;
    testing::CommandFolder folder;
    options.checkpoint.folder = (folder.path() / "checkpoints").string();
    options.checkpoint.data = "synthetic";
    options.steps = 1;
    options.loss_scale.fixed = 0x1p60;  // far beyond float16's 65504
    const run::RunResult first = run(planned, plan, options);
    EXPECT_EQ(first.skipped_steps, 1);
    EXPECT_EQ(first.loss_scale->scale, 0x1p60);
    // No weight changed.
    const std::string saved = options.checkpoint.folder + "/step-1";
    const files::TensorFiles files(saved, checkpoint::check_checkpoint(saved));
    for (const model::LayerSpec& layer : planned.model.layers) {
      for (const model::ParameterSpec& parameter : layer.parameters)
        EXPECT_TRUE(at::equal(files.read(parameter.name), model::initial_value(parameter, options.seed)))
            << parameter.name;
    }
    // A dynamic scale halves until steps succeed again; the result equals that of a single process.
    options.checkpoint = {};
    options.steps = 60;
    options.loss_scale = {.growth_interval = 1000};
    options.loss_scale.first = 0x1p60;
    const run::RunResult result = run(planned, plan, options);
    expect_bit_equal(result, "after overflows");
    EXPECT_GT(result.skipped_steps, 10);
    EXPECT_LT(result.skipped_steps, 60);
    EXPECT_EQ(result.loss_scale->scale, std::ldexp(0x1p60, -to_int(result.skipped_steps)));
  }
}

TEST(RunInLowPrecision, ContinuesWithTheScaleOfACheckpoint) {
  const PlannedModel planned = mlp_in(at::kHalf);
  const Plan plan = cut_plan(planned, {4}, {2, 1}, "1f1b", 4);
  testing::CommandFolder folder;
  const auto options = [&](const std::string& name, std::int64_t steps) {
    run::RunOptions out;
    out.steps = steps;
    out.optimizer.momentum = 0.9;
    out.loss_scale = {.growth_interval = 4};
    out.loss_scale.first = 0x1p24;  // overflows at first
    out.checkpoint.folder = (folder.path() / name).string();
    out.checkpoint.data = "synthetic";
    out.checkpoint.resume = true;
    return out;
  };
  const run::RunResult whole = run(planned, plan, options("whole", 40));
  EXPECT_GT(whole.skipped_steps, 0);
  (void)run(planned, plan, options("parts", 17));
  const run::RunResult parts = run(planned, plan, options("parts", 40));
  EXPECT_EQ(parts.loss_scale, whole.loss_scale);
  EXPECT_EQ(checkpoint::check_checkpoint((folder.path() / "whole/step-40").string()).files,
            checkpoint::check_checkpoint((folder.path() / "parts/step-40").string()).files);
}

TEST(RunInLowPrecision, NamesWhatCannotBeRun) {
  const PlannedModel planned = mlp_in(at::kHalf);
  Plan plan = cut_plan(planned, {4}, {1, 1}, "pipedream", 4);
  EXPECT_THAT([&] { (void)run(planned, plan, {}); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("schedule \"pipedream\" is asynchronous and cannot skip a float16 step that overflows")));
  plan = cut_plan(planned, {4}, {1, 1}, "1f1b", 4);
  plan.dtype = "int8";
  EXPECT_THAT([&] { (void)run(planned, plan, {}); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("the plan computes in \"int8\", expected float32, bfloat16 or float16")));
}

}  // namespace

}  // namespace stagecraft::stage
