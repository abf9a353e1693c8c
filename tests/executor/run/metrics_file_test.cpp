#include "executor/run/metrics_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <limits>

#include "costmodel/errors.h"
#include "costmodel/format/files/outputs.h"
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

}  // namespace
}  // namespace stagecraft::run
