#include "executor/run/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/files/outputs.h"
#include "costmodel/index.h"
#include "tests/support/run_command.h"

namespace stagecraft::run {
namespace {

using format::kMetricsKind;
using format::metrics_line;
using format::StepMetrics;
using ::testing::ThrowsMessage;

/// 8 samples in half a second.
StepMetrics line(std::int64_t step, double loss) {
  return {.step = step, .loss = loss, .step_time = Seconds(0.5), .step_samples = 8};
}

const std::string kFirst = R"({"step":1,"loss":2.5,"step_s":0.5,"samples_per_s":16})"
                           "\n";
const std::string kSecond = R"({"step":2,"loss":0.1,"step_s":0.5,"samples_per_s":16})"
                            "\n";

class MetricsFileTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path() const { return (folder_.path() / "metrics.jsonl").string(); }
  testing::CommandFolder folder_;
};

TEST(MetricsLine, HasAKeyForEachValueThatIsThere) {
  StepMetrics all = line(12, 2.5);
  all.epoch = 0.25;
  all.learning_rate = 0.01;
  all.gradient_norm = 1.5;
  all.loss_scale = 1024;
  EXPECT_EQ(metrics_line(all),
            R"({"step":12,"epoch":0.25,"loss":2.5,"learning_rate":0.01,"step_s":0.5,"samples_per_s":16,)"
            R"("gradient_norm":1.5,"loss_scale":1024})"
            "\n");
  EXPECT_EQ(metrics_line(line(1, 2.5)), kFirst);
}

TEST(MetricsLine, HasAValidationsKeys) {
  StepMetrics tokens = line(2, 0.1);
  // 3 of 8 right.
  tokens.validation = {
      .loss = 2.25, .samples = 4, .predictions = 8, .correct = 3, .perplexity = 9.5, .time = Seconds(2)};
  std::string expected = kSecond;
  expected.insert(expected.find('}'),
                  R"(,"validation_loss":2.25,"validation_accuracy":0.375,"validation_perplexity":9.5,)"
                  R"("validation_s":2)");
  EXPECT_EQ(metrics_line(tokens), expected);
  StepMetrics other = line(2, 0.1);
  other.validation = {.loss = std::numeric_limits<double>::quiet_NaN(), .samples = 4, .time = Seconds(2)};
  expected = kSecond;
  expected.insert(expected.find('}'), R"(,"validation_loss":null,"validation_s":2)");
  EXPECT_EQ(metrics_line(other), expected);
}

TEST(MetricsLine, IsJsonForALossThatIsNotANumber) {
  for (const double loss : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_EQ(metrics_line(line(1, loss)), R"({"step":1,"loss":null,"step_s":0.5,"samples_per_s":16})"
                                           "\n");
  }
}

TEST(MetricsLine, IsKnownByItsBeginning) {
  StepMetrics with_epoch = line(1, 2);
  with_epoch.epoch = 0.5;
  for (const StepMetrics& metrics : {line(1, 2), line(123456, 1e-30), with_epoch})
    EXPECT_EQ(format::text_kind(metrics_line(metrics)), kMetricsKind);
}

TEST_F(MetricsFileTest, HasEachLineWhenAddReturns) {
  MetricsFile file(path(), false);
  file.add(line(1, 2.5));
  EXPECT_EQ(folder_.read("metrics.jsonl"), kFirst);
  file.add(line(2, 0.1));
  EXPECT_EQ(folder_.read("metrics.jsonl"), kFirst + kSecond);
}

TEST_F(MetricsFileTest, IsReplacedOrContinued) {
  folder_.write("metrics.jsonl", kSecond);
  MetricsFile(path(), false).add(line(1, 2.5));
  EXPECT_EQ(folder_.read("metrics.jsonl"), kFirst);
  MetricsFile(path(), true).add(line(2, 0.1));
  EXPECT_EQ(folder_.read("metrics.jsonl"), kFirst + kSecond);
}

TEST_F(MetricsFileTest, IsContinuedOnANewLineAfterOneThatWasCutOff) {
  folder_.write("metrics.jsonl", kFirst + "{\"step\":2,\"lo");
  MetricsFile(path(), true).add(line(2, 0.1));
  EXPECT_EQ(folder_.read("metrics.jsonl"), kFirst + "{\"step\":2,\"lo\n" + kSecond);
  folder_.write("metrics.jsonl", "");
  MetricsFile(path(), true).add(line(1, 2.5));
  EXPECT_EQ(folder_.read("metrics.jsonl"), kFirst);
}

TEST_F(MetricsFileTest, NamesAPathThatCannotBeWritten) {
  const std::string wrong = (folder_.path() / "none/metrics.jsonl").string();
  EXPECT_THAT([&] { const MetricsFile file(wrong, true); },
              ThrowsMessage<FormatError>(wrong + ": cannot write: No such file or directory"));
  if (std::filesystem::exists("/dev/full")) {
    MetricsFile full("/dev/full", false);
    EXPECT_THAT([&] { full.add(line(1, 1)); },
                ThrowsMessage<FormatError>("/dev/full: cannot write: No space left on device"));
  }
}

TEST(SpeedText, ShowsPredictionAndMeasurement) {
  // 16 / 0.0197 = 812.2; 19.7 / 18.9 = 1.042.
  EXPECT_EQ(speed_text(16, Seconds(19.7e-3), Seconds(18.9e-3)),
            "812 samples/s, 19.7 ms per step (predicted 18.9 ms, +4 %)");
  EXPECT_EQ(speed_text(4, Seconds(1), Seconds(2)), "4.0 samples/s, 1.00 s per step (predicted 2.00 s, -50 %)");
  EXPECT_EQ(speed_text(5, Seconds(2), std::nullopt), "2.5 samples/s, 2.00 s per step");
}

/// 2 microbatches of 4 samples.
Plan small_plan() {
  Plan out;
  out.microbatches = 2;
  out.microbatch_samples = 4;
  return out;
}

/// What a reporter prints for steps `first` to `steps` (from 1) of these lengths.
std::string reported(const ReportOptions& options, const std::vector<double>& lengths, std::int64_t first,
                     std::int64_t steps) {
  ::testing::internal::CaptureStderr();
  StepReporter reporter(small_plan(), options);
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t step = first - 1 + static_cast<std::int64_t>(i);
    reporter(
        {.step = step, .steps = steps, .loss = 1.0 / static_cast<double>(step + 1), .step_time = Seconds(lengths[i])});
  }
  return ::testing::internal::GetCapturedStderr();
}

TEST(StepReporter, PrintsEveryNthStepWithTheMeanTimeSinceTheLineBefore) {
  // Steps 2 and 3 take 2 and 4 s: 8 / 3 = 2.7 samples/s. The mean without the first two is 4, then (4 + 1 + 1) / 3 = 2.
  EXPECT_EQ(reported({.every = 3}, {3, 2, 4, 1, 1, 1}, 1, 7),
            "step 1/7 loss 1.0000 2.7 samples/s, 3.00 s per step\n"
            "step 3/7 loss 0.3333 2.7 samples/s, 3.00 s per step, 16 s left\n"
            "step 6/7 loss 0.1667 8.0 samples/s, 1.00 s per step, 2 s left\n");
}

TEST(StepReporter, PrintsTheLastStepAndTheFirstOneOfAResumedRun) {
  EXPECT_EQ(reported({.every = 100, .epoch_samples = 16}, {1, 1, 1}, 3, 5),
            "step 3/5 epoch 1.50 loss 0.3333 8.0 samples/s, 1.00 s per step\n"
            "step 5/5 epoch 2.50 loss 0.2000 8.0 samples/s, 1.00 s per step\n");
}

TEST(StepReporter, PrintsATenthOfTheStepsOrAfterTenSeconds) {
  const auto lines = [](double length, std::int64_t steps) {
    const std::string text = reported({}, std::vector(to_index(steps), length), 1, steps);
    return std::ranges::count(text, '\n');
  };
  EXPECT_EQ(lines(0.01, 1000), 1 + 10);
  // Every fifth of 50 steps of 2 s, which is every 10 s too.
  EXPECT_EQ(lines(2, 50), 1 + 10);
  // Every fifth of 200 steps, after 10 s; those of every 20th step are among them.
  EXPECT_EQ(lines(2, 200), 1 + 40);
}

TEST(StepReporter, PrintsRateNormAndLossScale) {
  const StepReporter reporter(small_plan(), {.rate = true});
  EXPECT_EQ(
      reporter.text({.step = 0,
                     .steps = 1,
                     .loss = 2,
                     .step_time = Seconds(1),
                     .loss_scale = 1024,
                     .learning_rate = 0.0125,
                     .gradient_norm = 3.25},
                    Seconds(1)),
      "step 1/1 loss 2.0000 8.0 samples/s, 1.00 s per step, learning rate 0.0125, gradient norm 3.25, loss scale 1024");
}

TEST(StepReporter, ReportsEveryValidation) {
  ::testing::internal::CaptureStderr();
  StepReporter reporter(small_plan(), {.every = 100});
  for (std::int64_t step = 0; step < 3; ++step) {
    Progress progress{.step = step, .steps = 9, .loss = 2, .step_time = Seconds(1)};
    if (step == 1) {
      progress.validation = {
          .loss = 1.5, .samples = 2, .predictions = 8, .correct = 3, .perplexity = 4.25, .time = Seconds(1)};
    }
    reporter(progress);
  }
  EXPECT_EQ(::testing::internal::GetCapturedStderr(),
            "step 1/9 loss 2.0000 8.0 samples/s, 1.00 s per step\n"
            "step 2/9 loss 2.0000 8.0 samples/s, 1.00 s per step, validation loss 1.5000 accuracy 0.3750 perplexity "
            "4.25\n");
}

TEST(StepReporter, WritesEventFilesForTensorBoard) {
  const testing::CommandFolder folder;
  const std::string place = (folder.path() / "board" / "a").string();
  const auto files = [&] {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(place))
      out.push_back(format::read_text(entry.path().string()));
    return out;
  };
  ::testing::internal::CaptureStderr();
  StepReporter reporter(small_plan(), {.every = 2, .tensorboard = place});
  reporter({.step = 0, .steps = 3, .loss = 2, .step_time = Seconds(1)});
  EXPECT_FALSE(std::filesystem::exists(place)) << "no line yet";
  reporter({.step = 1, .steps = 3, .loss = 2, .step_time = Seconds(1), .learning_rate = 0.5});
  ASSERT_EQ(files().size(), 1U);
  const std::string begun = files().front();
  EXPECT_THAT(begun, ::testing::HasSubstr("brain.Event:2"));
  EXPECT_THAT(begun, ::testing::HasSubstr("train/learning_rate"));
  EXPECT_THAT(begun, ::testing::HasSubstr("train/samples_per_s"));
  reporter({.step = 2, .steps = 3, .loss = 2, .step_time = Seconds(1), .validation = format::ModelEvaluation{}});
  ASSERT_EQ(files().size(), 1U);
  EXPECT_THAT(files().front(), ::testing::StartsWith(begun));
  EXPECT_THAT(files().front(), ::testing::HasSubstr("validation/loss"));
  // Another run writes another file.
  StepReporter(small_plan(), {.tensorboard = place})({.step = 2, .steps = 3, .loss = 2, .step_time = Seconds(1)});
  EXPECT_EQ(files().size(), 2U);
  (void)::testing::internal::GetCapturedStderr();
}

TEST(ClosingText, TakesTheStepsAfterTheFirstTwo) {
  Measurement measurement;
  measurement.losses = {3, 2.5, 2, 1.75};
  measurement.microbatches = 4;
  measurement.microbatch_samples = 2;
  // Steps of 10, 5, 1 and 1 s: 8 samples in the median of 1 s.
  measurement.timeline.steps = {{0, Seconds(0), Seconds(10)},
                                {1, Seconds(10), Seconds(15)},
                                {2, Seconds(15), Seconds(16)},
                                {3, Seconds(16), Seconds(17)}};
  EXPECT_EQ(closing_text(measurement, Seconds(0.5)),
            "loss 3.0000 to 1.7500 in 4 steps; 8.0 samples/s, 1.00 s per step (predicted 500 ms, +100 %)");
  // Samples of 100 tokens and 1e12 operations on two devices of 20e12 per second: 8e12 of 40e12.
  measurement.timeline.ranks = 2;
  EXPECT_EQ(closing_text(measurement, {}, {100, Flops(1e12), FlopsPerSecond(40e12), "device (float32)"}),
            "loss 3.0000 to 1.7500 in 4 steps; 8.0 samples/s, 800 tokens/s, 1.00 s per step\n"
            "4.00 TFLOP/s per device, 20.0 % of the peak of device (float32)");
}

}  // namespace

}  // namespace stagecraft::run
