#include "profiler/sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "profiler/profile.h"
#include "tests/profiler/small_models.h"

namespace stagecraft::profiler {
namespace {

using ::testing::Contains;
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

/// Layers with these numbers of parameters; 0: absent.
std::vector<Layer> layers_of(const std::vector<std::int64_t>& parameters) {
  std::vector<Layer> out(parameters.size());
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (parameters[i] > 0) out[i].parameters = parameters[i];
  }
  return out;
}

/// Two layers in a step of 100 ns: forward 30 + 10, backward 20 + 5 and update 5 are 70, the wait for data 12, the rest
/// 18.
StepShares hundred_nanoseconds() {
  StepShares step;
  step.begin_ns = 1000;
  step.end_ns = 1100;
  step.parts[{0, Phase::Forward}] = {.busy_ns = 30, .active_ns = 30, .gap_ns = 10, .activities = 2};
  step.parts[{1, Phase::Backward}] = {
      .busy_ns = 24, .active_ns = 20, .gap_ns = 5, .activities = 3, .accumulating_ns = 7, .accumulating_gap_ns = 2};
  step.parts[{1, Phase::Optimizer}] = {.busy_ns = 5, .active_ns = 5, .activities = 1};
  step.parts[{0, Phase::Data}] = {.gap_ns = 12};
  step.parts[{0, Phase::None}] = {.active_ns = 8, .gap_ns = 10};
  step.gaps = {.host_wait_ns = 7, .kernel_wait_ns = 3};
  return step;
}

TEST(LayerSamples, HoldEachPartOfEachStepInSeconds) {
  LayerSamples samples(2);
  samples.add(hundred_nanoseconds());
  samples.add(StepShares{});
  EXPECT_THAT(samples.forward[0], ElementsAre(40e-9, 0));
  EXPECT_THAT(samples.forward[1], ElementsAre(0, 0));
  EXPECT_THAT(samples.backward[0], ElementsAre(0, 0));
  EXPECT_THAT(samples.backward[1], ElementsAre(25e-9, 0));
  EXPECT_THAT(samples.accumulation[0], ElementsAre(0, 0));
  EXPECT_THAT(samples.accumulation[1], ElementsAre(9e-9, 0));
  EXPECT_THAT(samples.update[1], ElementsAre(5e-9, 0));
  EXPECT_THAT(samples.sums, ElementsAre(70e-9, 0));
  EXPECT_THAT(samples.parts(),
              ElementsAre(samples.forward[0], samples.forward[1], ElementsAre(0, 0), samples.backward[1]));
}

TEST(DivideUpdate, FollowsTheParameterCounts) {
  StepShares step;
  step.parts[{0, Phase::Optimizer}] = {.busy_ns = 10, .active_ns = 7, .gap_ns = 4, .activities = 3};
  step.parts[{0, Phase::Forward}] = {.busy_ns = 1};
  divide_update(step, layers_of({2, 0, 1}));
  // Two thirds of 10, 7 and 4 are 6.7, 4.7 and 2.7, rounded down; the last layer gets the rest.
  EXPECT_EQ(step.parts, (std::map<LayerPhase, PartTime>{
                            {{0, Phase::Forward}, {.busy_ns = 1}},
                            {{0, Phase::Optimizer}, {.busy_ns = 6, .active_ns = 4, .gap_ns = 2, .activities = 3}},
                            {{2, Phase::Optimizer}, {.busy_ns = 4, .active_ns = 3, .gap_ns = 2, .activities = 3}}}));
}

TEST(DivideUpdate, LeavesLayerZeroNothingWithoutParameters) {
  StepShares step;
  step.parts[{0, Phase::Optimizer}] = {.busy_ns = 10, .active_ns = 7, .gap_ns = 4};
  divide_update(step, layers_of({0, 5}));
  EXPECT_EQ(step.parts,
            (std::map<LayerPhase, PartTime>{{{1, Phase::Optimizer}, {.busy_ns = 10, .active_ns = 7, .gap_ns = 4}}}));
}

TEST(DivideUpdate, LeavesAStepWithoutAnUpdateAlone) {
  StepShares step;
  step.parts[{0, Phase::Forward}] = {.busy_ns = 1};
  const StepShares before = step;
  divide_update(step, layers_of({2, 1}));
  EXPECT_EQ(step, before);
}

TEST(DivideUpdate, LosesNoNanosecond) {
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto up_to = [&](std::int64_t most) { return std::uniform_int_distribution<std::int64_t>(0, most)(random); };
    std::vector<std::int64_t> parameters(to_index(up_to(20)) + 1);
    for (std::int64_t& count : parameters) count = up_to(3) == 0 ? 0 : up_to(100'000'000);
    parameters.back() += 1;
    const PartTime whole{.busy_ns = up_to(1'000'000'000), .active_ns = up_to(1'000'000'000), .gap_ns = up_to(1000)};
    StepShares step;
    step.parts[{0, Phase::Optimizer}] = whole;
    divide_update(step, layers_of(parameters));
    PartTime sum;
    for (const auto& [part, time] : step.parts) {
      EXPECT_GE(time.busy_ns, 0);
      EXPECT_GE(time.active_ns, 0);
      EXPECT_GE(time.gap_ns, 0);
      sum.busy_ns += time.busy_ns;
      sum.active_ns += time.active_ns;
      sum.gap_ns += time.gap_ns;
    }
    EXPECT_EQ(sum, whole);
  }
}

TEST(AddShares, SumsOverSteps) {
  std::vector<Layer> layers(2);
  ProfileQuality quality;
  add_shares(layers, quality, hundred_nanoseconds());
  add_shares(layers, quality, hundred_nanoseconds());
  EXPECT_EQ(layers[0].forward_share, (LayerShare{.busy_ns = 60, .share_ns = 80, .activities = 4, .isolated = {}}));
  EXPECT_EQ(layers[0].backward_share, std::nullopt);
  EXPECT_EQ(layers[0].update_share, std::nullopt);
  EXPECT_EQ(layers[1].forward_share, std::nullopt);
  EXPECT_EQ(layers[1].backward_share, (LayerShare{.busy_ns = 48, .share_ns = 50, .activities = 6, .isolated = {}}));
  EXPECT_EQ(layers[1].update_share, (LayerShare{.busy_ns = 10, .share_ns = 10, .activities = 2, .isolated = {}}));
  EXPECT_EQ(quality.steps, 2);
  EXPECT_EQ(quality.data_wait_ns, 24);
  EXPECT_EQ(quality.unattributed_ns, 36);
  EXPECT_EQ(quality.watched_ns, 80 + 50 + 10 + 24 + 36);
}

TEST(AddShares, CountsWaitsOfADeviceOnly) {
  std::vector<Layer> layers(2);
  ProfileQuality host, device;
  device.debiased = true;
  add_shares(layers, host, hundred_nanoseconds());
  add_shares(layers, device, hundred_nanoseconds());
  EXPECT_EQ(host.host_wait_ns, 0);
  EXPECT_EQ(host.kernel_wait_ns, 0);
  EXPECT_EQ(device.host_wait_ns, 7);
  EXPECT_EQ(device.kernel_wait_ns, 3);
}

TEST(CopyTraceQuality, AddsUpBadTimeStamps) {
  const TraceQuality trace{.activities = 10,
                           .attributed = 9,
                           .busy_ns = 800,
                           .attributed_ns = 700,
                           .dropped = 1,
                           .zero_times = 2,
                           .reversed_times = 3,
                           .before_launch = 4,
                           .disagreements = 5};
  ProfileQuality quality;
  copy_trace_quality(quality, trace);
  EXPECT_EQ(quality.work, 10);
  EXPECT_EQ(quality.work_attributed, 9);
  EXPECT_EQ(quality.work_ns, 800);
  EXPECT_EQ(quality.work_attributed_ns, 700);
  EXPECT_EQ(quality.dropped, 1);
  EXPECT_EQ(quality.bad_timestamps, 2 + 3 + 4);
  EXPECT_EQ(quality.disagreements, 5);
  EXPECT_EQ(quality.reasons, distrust(trace));
}

TEST(Judge, TrustsWithoutAReasonNotTo) {
  ProfileQuality quality;
  quality.trusted = false;
  judge(quality, 0, 0.01);
  EXPECT_TRUE(quality.trusted);
  EXPECT_THAT(quality.reasons, IsEmpty());
}

TEST(Judge, NamesEachReason) {
  ProfileQuality quality;
  quality.reasons = {"3 records were dropped"};
  judge(quality, 2, 0.25);
  EXPECT_FALSE(quality.trusted);
  EXPECT_THAT(quality.reasons,
              ElementsAre("3 records were dropped", "2 backward nodes could not be assigned to a layer",
                          "the device is busy 25.000000 % longer in a profiled step than an unprofiled step lasts: "
                          "tracing slows it down"));
}

TEST(Judge, DistrustsATraceWithReasonsOfItsOwn) {
  ProfileQuality quality;
  quality.reasons = {"3 records were dropped"};
  judge(quality, 0, 0);
  EXPECT_FALSE(quality.trusted);
}

TEST(JudgeOthers, DistrustsWhatOtherProgramsSlowedDown) {
  // In 10 s on two processors this process used 10 s; all programs used 20 s.
  const device::ProcessorReport crowded{1, 1, 10_s, 10_s, 20_s, 2};
  ProfileQuality quality;
  quality.trusted = true;
  judge_others(quality, crowded, "the profile");
  EXPECT_FALSE(quality.trusted);
  EXPECT_THAT(quality.reasons,
              ElementsAre("other programs kept 1.0 of 2 processors busy, the profile 1.0: measure on a "
                          "quiet machine"));
  const device::ProcessorReport quiet{1, 1, 10_s, 10_s, 10_s, 2};
  ProfileQuality trusted;
  trusted.trusted = true;
  judge_others(trusted, quiet, "the profile");
  EXPECT_TRUE(trusted.trusted);
}

/// An input and two layers, of which the first one has parameters.
Graph input_and_two_layers() {
  Graph graph;
  graph.layers.resize(3);
  graph.layers[0].kind = kInputKind;
  graph.layers[1].parameter_bytes = Bytes(8);
  graph.quality = ProfileQuality{};
  return graph;
}

/// 10 s, of which layer 0 works 2 s forward, `backward` seconds backward and 1 s in the update, and layer 1 3 s
/// forward.
StepShares ten_seconds(std::int64_t backward) {
  constexpr std::int64_t second = 1'000'000'000;
  StepShares step;
  step.end_ns = 10 * second;
  step.work_ns = (6 + backward) * second;
  step.parts[{0, Phase::Forward}] = {.active_ns = 2 * second};
  step.parts[{0, Phase::Backward}] = {.active_ns = backward * second, .accumulating_ns = second};
  step.parts[{0, Phase::Optimizer}] = {.active_ns = second};
  step.parts[{1, Phase::Forward}] = {.active_ns = 3 * second};
  step.parts[{0, Phase::None}] = {.gap_ns = (4 - backward) * second};
  return step;
}

SampledSteps three_steps(WatchClock clock) {
  SampledSteps sampled;
  sampled.clock = clock;
  sampled.plain = {9, 10, 11};
  sampled.steps = {ten_seconds(1), ten_seconds(2), ten_seconds(3)};
  sampled.accumulating = {{0.5, 0.25, 0.75}, {1, 1, 1}};
  sampled.loads.loading = {0.1, 0.2, 0.3};
  return sampled;
}

TEST(SummarizeSteps, GivesTheMediansOfEachLayerAndTheirSum) {
  Graph graph = input_and_two_layers();
  const StepSums sums = summarize_steps(graph, three_steps(WatchClock::Host), {});
  EXPECT_EQ(graph.iteration->median, 10_s);
  const Layer& first = graph.layers[1];
  EXPECT_EQ(first.forward.median, 2_s);
  EXPECT_EQ(first.backward.median, 2_s);
  EXPECT_EQ(first.update->median, 1_s);
  EXPECT_EQ(first.accumulation->median, Seconds(0.5));
  EXPECT_EQ(first.backward_share->share_ns, (1 + 2 + 3) * std::int64_t{1'000'000'000});
  const Layer& second = graph.layers[2];
  EXPECT_EQ(second.forward.median, 3_s);
  EXPECT_EQ(second.backward.median, 0_s);
  EXPECT_FALSE(second.update);
  EXPECT_FALSE(second.accumulation) << "has no parameters";
  EXPECT_EQ(sums.sum, 2_s + 2_s + 1_s + 3_s);
  EXPECT_EQ(sums.watched, 8_s);
  EXPECT_EQ(graph.quality->steps, 3);
  EXPECT_EQ(graph.quality->watched.median, 10_s);
  EXPECT_FALSE(graph.quality->debiased);
  EXPECT_TRUE(graph.quality->trusted);
}

TEST(SummarizeSteps, GivesTheFirstInputTheTimeOfLoading) {
  Graph host = input_and_two_layers();
  (void)summarize_steps(host, three_steps(WatchClock::Host), {});
  EXPECT_EQ(host.layers[0].forward.median, Seconds(0.2));
  EXPECT_FALSE(host.layers[0].loading);
  Graph device = input_and_two_layers();
  SampledSteps sampled = three_steps(WatchClock::Events);
  sampled.loads.uploading = {0.03, 0.01, 0.02};
  (void)summarize_steps(device, sampled, {});
  EXPECT_EQ(device.layers[0].forward.median, Seconds(0.02));
  EXPECT_EQ(device.layers[0].loading->median, Seconds(0.2));
}

TEST(SummarizeSteps, ScalesADevicesStepsToTheUntracedOnes) {
  // Watched steps take 10 s, of which the device works 7, 8 and 9 s; untraced ones take 5 s, so everything is halved.
  Graph graph = input_and_two_layers();
  const StepSums sums = summarize_steps(graph, three_steps(WatchClock::Events), {5, 5, 5});
  EXPECT_EQ(graph.iteration->median, 5_s);
  EXPECT_EQ(graph.layers[1].forward.median, 1_s);
  EXPECT_EQ(graph.layers[2].forward.median, Seconds(1.5));
  EXPECT_EQ(sums.sum, 4_s);
  EXPECT_TRUE(graph.quality->debiased);
  EXPECT_FALSE(graph.quality->trusted) << "the device is busy longer than an unwatched step";
}

TEST(SummarizeSteps, TakesAccumulationFromATraceInEveryStep) {
  Graph graph = input_and_two_layers();
  SampledSteps sampled = three_steps(WatchClock::Tracer);
  sampled.accumulating = {{}, {}};
  sampled.unmapped = 2;
  (void)summarize_steps(graph, sampled, {});
  EXPECT_EQ(graph.layers[1].accumulation->median, 1_s);
  EXPECT_EQ(graph.layers[1].accumulation->count, 3);
  EXPECT_THAT(graph.quality->reasons, Contains("2 backward nodes could not be assigned to a layer"));
}

TEST(SummarizeSteps, LeavesOutAccumulationWithTooFewPairs) {
  Graph graph = input_and_two_layers();
  SampledSteps sampled = three_steps(WatchClock::Host);
  sampled.accumulating = {{0.5, 0.25}, {1, 1}};
  (void)summarize_steps(graph, sampled, {});
  EXPECT_FALSE(graph.layers[1].accumulation);
}

}  // namespace
}  // namespace stagecraft::profiler
