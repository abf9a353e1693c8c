#include "profiler/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "profiler/profile.h"
#include "tests/profiler/small_models.h"

namespace stagecraft::profiler {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::ThrowsMessage;

/// Gives every step 100 ns, of which 60 ns are the backward of layer 1; every third one 40 ns.
class FakeWatch : public Watch {
 public:
  void begin(int) override {}
  void end(int) override {}
  void begin_step(int step) override {
    EXPECT_FALSE(paused_);
    steps.push_back(step);
  }
  void begin_backward() override {}
  void end_backward() override {}
  void begin_part(Tag) override {}
  void end_part() override {}
  void end_step() override {}
  std::vector<StepShares> take() override {
    std::vector<StepShares> out;
    for (; taken_ < steps.size() && !is_blind; ++taken_) {
      StepShares& step = out.emplace_back();
      step.end_ns = 100;
      step.parts[{1, Phase::Backward}] = {.active_ns = (taken_ + 1) % 3 == 0 ? 40 : 60};
      step.parts[{0, Phase::Optimizer}] = {.active_ns = 20};
    }
    return out;
  }
  const AttributedTrace& trace() const override { return trace_; }
  std::int64_t unmapped() const override { return 7; }
  void pause() override { paused_ = true; }
  void resume() override { paused_ = false; }

  std::vector<int> steps;  ///< numbers of the watched steps
  bool is_blind = false;

 private:
  std::size_t taken_ = 0;
  bool paused_ = false;
  AttributedTrace trace_{{}, {}, {.activities = 3}};
};

/// A tiny model of two samples, sampled until there are `least` unwatched steps.
class SampleSteps : public ::testing::Test {
 protected:
  SampleSteps() : source_(data::make_data_source("synthetic", model_, 1)), layers_(model_.layers.size()) {
    options_.microbatch_samples = 2;
    for (Layer& layer : layers_) layer.parameters = 5;
  }
  SampledSteps sample(WatchClock clock, std::size_t least) {
    FedSubject fed(model_, *source_, options_, clock == WatchClock::Host);
    device::YardstickMeter yardstick("none", 1, [] { return std::vector<device::FixedWork>{}; }, [] { return 0.0; });
    return sample_steps(fed, watch_, layers_, {clock, "the fake", {.fewest = 1000, .least = least, .most_seconds = 0}},
                        yardstick, [&](std::size_t steps, double) { told_.push_back(steps); });
  }

  model::Model model_ = tiny_mlp();
  std::unique_ptr<data::DataSource> source_;
  ProfileOptions options_;
  std::vector<Layer> layers_;
  FakeWatch watch_;
  std::vector<std::size_t> told_;
};

TEST_F(SampleSteps, AlternatesBetweenSingleStepsUnderAHostClock) {
  const SampledSteps sampled = sample(WatchClock::Host, 4);
  EXPECT_EQ(sampled.stop, Stop::Time);
  EXPECT_THAT(sampled.plain, SizeIs(4));
  EXPECT_THAT(sampled.steps, SizeIs(4));
  EXPECT_THAT(sampled.loads.loading, SizeIs(4));
  EXPECT_THAT(sampled.loads.uploading, IsEmpty()) << "on a CPU";
  EXPECT_EQ(sampled.unmapped, 7);
  EXPECT_THAT(told_, ElementsAre(1, 2, 3, 4));
  // The steps of the update are those of single layers.
  EXPECT_EQ(sampled.steps[0].share_of({0, Phase::Optimizer}), 20);
}

TEST_F(SampleSteps, PairsEverySecondStepWithOneThatCreatesGradients) {
  const SampledSteps sampled = sample(WatchClock::Host, 4);
  EXPECT_THAT(watch_.steps, ElementsAre(1, 2, 3, 4, 5, 6)) << "the third and the sixth create gradients";
  ASSERT_THAT(sampled.accumulating, SizeIs(model_.layers.size()));
  EXPECT_THAT(sampled.accumulating[1], ElementsAre(20e-9, 20e-9));  // 60 ns - 40 ns
  EXPECT_THAT(sampled.accumulating[0], ElementsAre(0, 0));
}

TEST_F(SampleSteps, TakesTenInARowUnderADevicesClockAndLeavesOutTheFirst) {
  const SampledSteps sampled = sample(WatchClock::Tracer, 10);
  EXPECT_THAT(told_, ElementsAre(9, 18));
  EXPECT_THAT(watch_.steps, SizeIs(20));
  EXPECT_THAT(sampled.plain, SizeIs(18));
  EXPECT_THAT(sampled.steps, SizeIs(18));
  EXPECT_THAT(sampled.accumulating, Each(IsEmpty()));
  EXPECT_EQ(sampled.seen.activities, 2 * 3) << "both rows";
  // One update for all: four layers with as many parameters get a quarter each.
  for (std::int64_t layer = 0; layer < 4; ++layer)
    EXPECT_EQ(sampled.steps[0].share_of({layer, Phase::Optimizer}), 5) << layer;
}

TEST_F(SampleSteps, RefusesAWatchThatSeesNothing) {
  watch_.is_blind = true;
  EXPECT_THAT([&] { (void)sample(WatchClock::Tracer, 1); },
              ThrowsMessage<DeviceError>(HasSubstr("no step of the model was found in what the fake recorded; measure "
                                                   "with --clock events")));
}

TEST(BatchLoader, TimesEachLoadOnce) {
  const model::Model model = tiny_mlp();
  const auto source = data::make_data_source("synthetic", model, 1);
  BatchLoader loader(*source, {0, 1}, 2, c10::Device(c10::kCPU));
  const std::vector<at::Tensor> batch = loader.load(3);
  const std::vector<at::Tensor> again = loader.load_on_host(3);
  ASSERT_THAT(batch, SizeIs(2));
  for (std::size_t i = 0; i < batch.size(); ++i) EXPECT_TRUE(batch[i].equal(again[i])) << i;
  EXPECT_THAT(loader.take().loading, SizeIs(2));
  EXPECT_THAT(loader.take().loading, IsEmpty());
}

}  // namespace
}  // namespace stagecraft::profiler
