#include "executor/run/run_comparison.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "executor/device/machine/processor.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/run_command.h"

namespace stagecraft::run {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

using Metadata = std::map<std::string, std::string>;

/// Two steps of two microbatches of three samples: parameter "w" [2] and buffer "mean" [1].
class TrainingRecordFile : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path() const { return (folder_.path() / "record.safetensors").string(); }
  [[nodiscard]] TrainingRecord record() const {
    (void)files::write_safetensors(path(), tensors_, metadata_);
    return TrainingRecord(path());
  }
  [[nodiscard]] std::string error() const {
    try {
      (void)record();
    } catch (const FormatError& e) { return e.what(); }
    return "";
  }

  files::NamedTensors tensors_{{"loss", at::tensor({1.0, 2.0, 3.0, 4.0}, at::kDouble).view({2, 2})},
                               {"gradient.1/w", at::tensor({5.0F, 6.0F})},
                               {"parameter/w", at::tensor({7.0F, 8.0F})},
                               {"buffer/mean", at::tensor({9.0F})}};
  Metadata metadata_{
      {"format", "stagecraft.record"}, {"version", "2"}, {"steps", "2"}, {"microbatches", "2"}, {"samples", "3"},
      {"learning_rate", "0.125"},      {"seed", "11"}};

 private:
  stagecraft::testing::CommandFolder folder_;
};

Plan plan_of(int microbatches, int samples) {
  Plan out;
  out.microbatches = microbatches;
  out.microbatch_samples = samples;
  return out;
}

stage::OptimizerOptions plain_sgd() { return {.learning_rate = 0.125}; }

TEST_F(TrainingRecordFile, FitsTheRunThatItRecords) {
  EXPECT_NO_THROW(record().check_fits(plan_of(2, 3), 2, plain_sgd(), 11));
}

TEST_F(TrainingRecordFile, FitsNoOtherRun) {
  const TrainingRecord file = record();
  const auto refused = [&](const Plan& plan, std::int64_t steps, const stage::OptimizerOptions& optimizer,
                           std::uint64_t seed) {
    EXPECT_THAT([&] { file.check_fits(plan, steps, optimizer, seed); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(HasSubstr(path()), HasSubstr("2 steps"), HasSubstr("2 microbatches"), HasSubstr("3 samples"),
                          HasSubstr("--steps 2"), HasSubstr("--learning-rate 0.125"), HasSubstr("--seed 11"))));
  };
  refused(plan_of(4, 3), 2, plain_sgd(), 11);
  refused(plan_of(2, 4), 2, plain_sgd(), 11);
  refused(plan_of(2, 3), 3, plain_sgd(), 11);
  refused(plan_of(2, 3), 2, plain_sgd(), 12);
  refused(plan_of(2, 3), 2, {.learning_rate = 0.25}, 11);
  refused(plan_of(2, 3), 2, {.name = "adam", .learning_rate = 0.125}, 11);
  refused(plan_of(2, 3), 2, {.learning_rate = 0.125, .momentum = 0.9}, 11);
  refused(plan_of(2, 3), 2, {.learning_rate = 0.125, .weight_decay = 0.1}, 11);
  refused(plan_of(2, 3), 2, {.learning_rate = 0.125, .clip_norm = 1}, 11);
  refused(plan_of(2, 3), 2, {.learning_rate = 0.125, .rate = {.warmup = 1}}, 11);
  refused(plan_of(2, 3), 2, {.learning_rate = 0.125, .rate = {.name = "cosine", .steps = 2}}, 11);
}

TEST_F(TrainingRecordFile, NamesTheMetadataThatAreMissingOrWrong) {
  metadata_["version"] = "1";
  EXPECT_EQ(error(), "") << "version 1 is read too";
  metadata_["version"] = "3";
  EXPECT_THAT(error(), AllOf(HasSubstr(path() + ": /__metadata__/version: "), HasSubstr("\"3\""), HasSubstr("\"2\"")));
  metadata_.erase("version");
  EXPECT_THAT(error(), AllOf(HasSubstr("/__metadata__/version: "), HasSubstr("nothing")));
  metadata_["version"] = "2";
  metadata_["format"] = "pt";
  EXPECT_THAT(error(), AllOf(HasSubstr("/__metadata__/format: "), HasSubstr("\"pt\"")));
  metadata_["format"] = "stagecraft.record";
  for (const char* key : {"steps", "microbatches", "samples", "learning_rate", "seed"}) {
    const std::string before = metadata_[key];
    metadata_[key] = "2x";
    EXPECT_THAT(error(), AllOf(HasSubstr(std::string("/__metadata__/") + key + ": "), HasSubstr("\"2x\""))) << key;
    metadata_.erase(key);
    EXPECT_THAT(error(), HasSubstr(std::string("/__metadata__/") + key + ": ")) << key;
    metadata_[key] = before;
  }
}

TEST_F(TrainingRecordFile, SaysWhichKernelsDiffer) {
  for (const auto& [key, value] : device::cpu_kernels()) metadata_[key] = value;
  metadata_["threads"] = "4";
  EXPECT_EQ(record().other_kernels(4), "");
  EXPECT_THAT(record().other_kernels(2), AllOf(HasSubstr("threads"), HasSubstr("\"4\""), HasSubstr("\"2\"")));
  metadata_["processor"] = "abacus";
  EXPECT_THAT(record().other_kernels(4),
              AllOf(HasSubstr("processor"), HasSubstr("\"abacus\""), HasSubstr(device::processor_name())));
  metadata_.erase("processor");
  EXPECT_THAT(record().other_kernels(4), AllOf(HasSubstr("processor"), HasSubstr(device::processor_name())));
}

/// A parameter with the gradient `gradient`, or with none.
stage::Parameter parameter(const std::string& name, const at::Tensor& gradient = {}) {
  at::Tensor value = at::tensor({7.0F, 8.0F}).requires_grad_(true);
  value.mutable_grad() = gradient;
  return {name, 0, value};
}

TEST_F(TrainingRecordFile, ComparesTheGradientsOfAStep) {
  Check check;
  record().compare_gradients(1, {parameter("w", at::tensor({5.0F, 6.0F}))}, check);
  EXPECT_EQ(check.values, 2);
  EXPECT_EQ(check.different, 0);
  record().compare_gradients(1, {parameter("w", at::tensor({5.0F, 12.0F}))}, check);
  EXPECT_EQ(check.values, 4);
  EXPECT_EQ(check.different, 1);
  EXPECT_EQ(check.largest_error, 1) << "6 of the largest expected value, 6";
  EXPECT_THAT(check.worst, AllOf(HasSubstr("\"w\""), HasSubstr("step 2")));
}

/// Not one of zeros: an optimizer leaves a parameter without a gradient alone.
TEST_F(TrainingRecordFile, DistinguishesAnAbsentGradientFromZeros) {
  Check check;
  record().compare_gradients(0, {parameter("w")}, check);
  EXPECT_EQ(check.values, 0) << "absent on both sides";
  record().compare_gradients(0, {parameter("w", at::full({2}, 0.0F))}, check);
  EXPECT_EQ(check.values, 2);
  EXPECT_EQ(check.different, 2) << "the record has none here";
  record().compare_gradients(1, {parameter("w")}, check);
  EXPECT_EQ(check.different, 4) << "the record has one here";
}

TEST_F(TrainingRecordFile, NamesAParameterThatItLacks) {
  Check check;
  EXPECT_THAT([&] { record().compare_gradients(0, {parameter("bias")}, check); },
              ThrowsMessage<FormatError>(AllOf(HasSubstr(path()), HasSubstr("\"bias\""))));
}

TEST_F(TrainingRecordFile, ComparesLossesByStepAndMicrobatch) {
  Check check;
  record().compare_losses(1, {{0, 3}, {1, 4}}, check);
  EXPECT_EQ(check.losses, 2);
  EXPECT_EQ(check.losses_different, 0);
  record().compare_losses(0, {{1, 3}}, check);
  EXPECT_EQ(check.losses, 3);
  EXPECT_EQ(check.losses_different, 1);
  EXPECT_EQ(check.largest_loss_error, 0.5) << "3 instead of 2";
}

TEST_F(TrainingRecordFile, ComparesParametersAndBuffersAtTheEnd) {
  Check check;
  const stage::Parameter mean{"mean", 0, at::tensor({9.0F})};
  record().compare_end({parameter("w")}, {mean}, check);
  EXPECT_EQ(check.values, 3);
  EXPECT_EQ(check.different, 0);
  record().compare_end({}, {{"mean", 0, at::tensor({10.0F})}}, check);
  EXPECT_EQ(check.different, 1);
  EXPECT_THAT(check.worst, HasSubstr("\"mean\""));
}

TEST_F(TrainingRecordFile, FindsAFrozenParameterAmongTheBuffers) {
  Check check;
  record().compare_end({}, {{"w", 0, at::tensor({7.0F, 8.0F})}}, check);
  EXPECT_EQ(check.values, 2);
  EXPECT_EQ(check.different, 0);
}

const testing::PlannedModel& mlp() {
  static const testing::PlannedModel planned = testing::planned_model("mlp", {{"inputs", "12"}, {"width", "16"}}, 3);
  return planned;
}

/// A comparison of a run with two stages under this schedule.
void compare_under(const std::string& schedule, const RunOptions& options) {
  const BoundPlan plan(testing::cut_plan(mlp(), {3}, {1, 1}, schedule, 4));
  const BoundModel bound = bind_model(plan, mlp().model);
  RunComparison(bound, *mlp().data, options);
}

TEST(RunComparison, RefusesSchedulesWithoutGradientsOfAStep) {
  RunOptions checks;
  checks.check = true;
  RunOptions expects;
  expects.expected = "record.safetensors";
  for (const RunOptions& options : {checks, expects}) {
    for (const std::string schedule : {"forward", "pipedream", "pipedream-2bw"}) {
      EXPECT_THAT([&] { compare_under(schedule, options); },
                  ThrowsMessage<std::invalid_argument>("--check and --expect compare the gradients of a step; schedule "
                                                       "\"" +
                                                       schedule + "\" has none to compare"));
    }
  }
}

TEST(RunComparison, HasNothingToCompareUnlessAsked) {
  const BoundPlan plan(testing::cut_plan(mlp(), {3}, {1, 1}, "1f1b", 4));
  const BoundModel bound = bind_model(plan, mlp().model);
  RunComparison none(bound, *mlp().data, {});
  EXPECT_FALSE(none.active());
  EXPECT_EQ(none.reference(), nullptr);
  RunOptions options;
  options.check = true;
  RunComparison checks(bound, *mlp().data, options);
  EXPECT_TRUE(checks.active());
  EXPECT_NE(checks.reference(), nullptr);
  for (const std::string schedule : {"forward", "pipedream"}) compare_under(schedule, {});
}

}  // namespace

}  // namespace stagecraft::run
