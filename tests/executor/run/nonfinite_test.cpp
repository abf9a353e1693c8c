#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <mutex>

#include "costmodel/index.h"
#include "executor/checkpoint/checkpoint.h"
#include "executor/run/run.h"
#include "executor/stage/gradients/finite.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/run_command.h"

namespace stagecraft::run {
namespace {

namespace fs = std::filesystem;

using stagecraft::testing::cut_plan;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using std::chrono::milliseconds;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// Data whose first input is infinite in microbatch 1 of step `step`.
class BadData : public data::DataSource {
 public:
  BadData(const data::DataSource& data, std::int64_t step) : data_(data), step_(step) {}
  std::vector<at::Tensor> batch(std::int64_t step, int microbatch, int microbatches, std::int64_t samples,
                                std::span<const int> inputs) const override {
    std::vector<at::Tensor> out = data_.batch(step, microbatch, microbatches, samples, inputs);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (step == step_ && microbatch == 1 && inputs[i] == 0) out[i].fill_(kInfinity);
    }
    return out;
  }

 private:
  const data::DataSource& data_;
  std::int64_t step_;
};

class Nonfinite : public ::testing::Test {
 protected:
  [[nodiscard]] std::string folder() const { return (files_.path() / "checkpoints").string(); }
  RunOptions options(std::int64_t steps, stage::OnNonfinite what = stage::OnNonfinite::Stop) {
    RunOptions out;
    out.steps = steps;
    out.on_nonfinite = what;
    out.checkpoint.folder = folder();
    out.checkpoint.resume = true;
    out.checkpoint.every = 1;
    out.checkpoint.data = "synthetic";
    out.checkpoint.tell = [this](const std::string& text) {
      const std::lock_guard lock(mutex_);
      reported_ += text + "\n";
    };
    return out;
  }
  RunResult run(const Plan& plan, const data::DataSource& data, const RunOptions& options) const {
    return run_local(plan, planned_.model, data, options, milliseconds(60000));
  }
  [[nodiscard]] std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& entry : fs::directory_iterator(folder())) out.push_back(entry.path().filename().string());
    std::ranges::sort(out);
    return out;
  }

  // With batch norm, because an infinite activation spoils its statistics.
  PlannedModel planned_ = planned_model("convnet", {{"channels", "4"}}, 2);
  int half_ = to_int(planned_.model.layers.size()) / 2;
  testing::CommandFolder files_;
  std::mutex mutex_;
  std::string reported_;
};

TEST_F(Nonfinite, LossEndsTheRunWithStepRankAndCheckpoint) {
  const BadData bad(*planned_.data, 2);
  for (const Plan& plan : {cut_plan(planned_, {half_}, {1, 1}, "1f1b", 3), cut_plan(planned_, {}, {1}, "gpipe", 3),
                           cut_plan(planned_, {half_}, {1, 1}, "pipedream", 3)}) {
    fs::remove_all(folder());
    RunOptions wanted = options(5);
    if (plan.schedule == "pipedream") wanted.checkpoint.folder = "";
    const std::string last = std::to_string(plan.stages.size() - 1);
    const auto message = [&](const std::string& good) {
      return "rank " + last + ", step 3: the loss of microbatch 1 is not finite" + good +
             "; try a lower --learning-rate or --clip-norm, look for NaN in the data, or continue with --on-nonfinite "
             "warn or skip";
    };
    // The second checkpoint may still be in progress.
    const auto good = [&](int step) {
      return message("; " + folder() + "/step-" + std::to_string(step) + " is the last good checkpoint");
    };
    const bool saves = plan.schedule != "pipedream";
    EXPECT_THAT([&] { (void)run(plan, bad, wanted); },
                ThrowsMessage<std::runtime_error>(saves ? AnyOf(good(1), good(2)) : AnyOf(message(""), message(""))))
        << plan.schedule;
    if (saves) { EXPECT_THAT(names(), Contains("step-1")); }
  }
}

/// A finite loss whose gradient overflows: the square root of 0 has an infinite slope.
model::Model steep_at_zero() {
  model::Model model = intake::build_model("mlp", {{"inputs", "4"}, {"width", "8"}, {"layers", "2"}, {"classes", "3"}});
  model::LayerSpec& first = model.layers.front();
  first.forward = [inner = first.forward](const model::LayerCall& call) {
    std::vector<at::Tensor> out = inner(call);
    if (call.step == 1) out[0] = out[0].add(call.parameters[0].mul(0).sum().sqrt());
    return out;
  };
  return model;
}

TEST_F(Nonfinite, GradientEndsTheRunBeforeTheUpdate) {
  planned_ = planned_model(steep_at_zero(), 2);
  const Plan plan = cut_plan(planned_, {2}, {1, 1}, "1f1b", 2);
  const std::string name = planned_.model.layers.front().parameters.front().name;
  EXPECT_THAT(
      [&] { (void)run(plan, *planned_.data, options(3)); },
      ThrowsMessage<std::runtime_error>(HasSubstr("rank 0, step 2: the gradient of \"" + name + "\" is not finite; ")));
  // It may still be in progress.
  EXPECT_THAT(names(), AnyOf(ElementsAre("step-1"), ElementsAre("step-1.partial")));
}

TEST_F(Nonfinite, StepIsSkippedOnAllRanks) {
  const BadData bad(*planned_.data, 1);
  for (const std::vector<int>& replicas : std::vector<std::vector<int>>{{1, 1}, {2, 1}, {1}}) {
    fs::remove_all(folder());
    const Plan plan =
        cut_plan(planned_, replicas.size() > 1 ? std::vector<int>{half_} : std::vector<int>{}, replicas, "1f1b", 2);
    reported_.clear();
    RunOptions wanted = options(2, stage::OnNonfinite::Skip);
    wanted.optimizer.name = "adam";
    const RunResult result = run(plan, bad, wanted);
    EXPECT_EQ(result.nonfinite_steps, 1);
    EXPECT_TRUE(std::isnan(result.measurement.losses[1]) || std::isinf(result.measurement.losses[1]));
    EXPECT_THAT(reported_, HasSubstr("step 2: the loss of microbatch 1 is not finite"));
    // Parameters, optimizer state and statistics after step 2 are those after step 1.
    const auto file = [&](int step) {
      std::vector<std::string> paths;
      const std::string path = checkpoint::checkpoint_path(folder(), step);
      for (const format::CheckpointFile& part : checkpoint::check_checkpoint(path).files)
        paths.push_back(path + "/" + part.name);
      return files::TensorFiles(paths);
    };
    const files::TensorFiles before = file(1), after = file(2);
    EXPECT_EQ(before.names(), after.names());
    for (const std::string& name : before.names()) EXPECT_TRUE(before.read(name).equal(after.read(name))) << name;
  }
}

TEST_F(Nonfinite, ValuesEvictNoCheckpointThatIsFinite) {
  const BadData bad(*planned_.data, 2);
  const Plan plan = cut_plan(planned_, {half_}, {1, 1}, "1f1b", 2);
  const RunResult result = run(plan, bad, options(6, stage::OnNonfinite::Warn));
  EXPECT_EQ(result.nonfinite_steps, 4);  // on the last stage: parameters stay non-finite once they are
  EXPECT_THAT(names(), ElementsAre("step-1", "step-2", "step-6"));
  EXPECT_TRUE(checkpoint::check_checkpoint(folder() + "/step-2").finite);
  EXPECT_FALSE(checkpoint::check_checkpoint(folder() + "/step-6").finite);
  EXPECT_THAT(reported_, HasSubstr(folder() + "/step-3 contains infinities or NaNs; earlier checkpoints are kept"));
  reported_.clear();
  const RunResult again = run(plan, *planned_.data, options(4));
  EXPECT_EQ(again.first_step, 2);
  EXPECT_THAT(reported_, HasSubstr(folder() + "/step-6 is skipped: it contains infinities or NaNs\n"));
  EXPECT_THAT(reported_, HasSubstr("resuming from " + folder() + "/step-2"));
  EXPECT_THAT(names(), ElementsAre("step-3", "step-4"));
}

TEST_F(Nonfinite, KeepsAsManyCheckpointsAsAsked) {
  const Plan plan = cut_plan(planned_, {half_}, {1, 1}, "1f1b", 2);
  RunOptions three = options(5);
  three.checkpoint.keep = 3;
  (void)run(plan, *planned_.data, three);
  EXPECT_THAT(names(), ElementsAre("step-3", "step-4", "step-5"));
  RunOptions one = options(6);
  one.checkpoint.keep = 1;
  (void)run(plan, *planned_.data, one);
  EXPECT_THAT(names(), ElementsAre("step-6"));
}

TEST_F(Nonfinite, SkipNeedsAStepThatAllRanksShare) {
  const Plan plan = cut_plan(planned_, {half_}, {1, 1}, "pipedream", 2);
  EXPECT_THAT([&] { (void)run(plan, *planned_.data, options(2, stage::OnNonfinite::Skip)); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("schedule \"pipedream\" is asynchronous, so ranks cannot skip a step together")));
}

}  // namespace
}  // namespace stagecraft::run
