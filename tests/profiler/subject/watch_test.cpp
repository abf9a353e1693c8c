#include "profiler/subject/watch.h"

#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "costmodel/index.h"
#include "profiler/profile.h"
#include "tests/profiler/small_models.h"

namespace stagecraft::profiler {
namespace {

using ::testing::ElementsAre;

/// A clock that advances by one nanosecond each time it is read.
std::function<std::int64_t()> counter() {
  return [now = std::int64_t{0}]() mutable { return ++now; };
}

std::unique_ptr<Watch> watch_over(Whole& whole, std::function<std::int64_t()> now = counter()) {
  return make_marking_watch(whole.program.leaves(), make_host_marks(std::move(now)));
}

std::vector<std::int64_t> busy(const StepShares& step, Phase phase, std::int64_t layers) {
  std::vector<std::int64_t> out;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const auto it = step.parts.find({layer, phase});
    out.push_back(it == step.parts.end() ? 0 : it->second.busy_ns);
  }
  return out;
}

class WatchOn : public ::testing::TestWithParam<Small> {};

TEST_P(WatchOn, GivesEveryBackwardNodeToALayer) {
  Whole whole(intake::build_model(GetParam().name, GetParam().set));
  const auto watch = watch_over(whole);
  run_step(whole, *watch);
  EXPECT_EQ(watch->unmapped(), 0);
}

TEST_P(WatchOn, GivesEveryLayerAForwardAndWithParametersABackward) {
  Whole whole(intake::build_model(GetParam().name, GetParam().set));
  const auto watch = watch_over(whole);
  run_step(whole, *watch);
  const StepShares step = watch->take().at(0);
  const auto forward = busy(step, Phase::Forward, whole.count());
  const auto backward = busy(step, Phase::Backward, whole.count());
  for (std::size_t layer = 0; layer < forward.size(); ++layer) EXPECT_GT(forward[layer], 0) << layer;
  for (const stage::Parameter& parameter : whole.program.leaves())
    EXPECT_GT(backward[to_index(parameter.layer)], 0) << parameter.name;
}

TEST_P(WatchOn, AddsUpToTheStepToTheNanosecond) {
  Whole whole(intake::build_model(GetParam().name, GetParam().set));
  const auto watch = watch_over(whole, steady_ns);
  for (int step = 0; step < 3; ++step) run_step(whole, *watch, step);
  const std::vector<StepShares> steps = watch->take();
  ASSERT_EQ(steps.size(), 3U);
  for (const StepShares& step : steps) {
    std::int64_t sum = 0;
    for (const auto& [part, time] : step.parts) sum += time.share_ns();
    EXPECT_EQ(sum, step.end_ns - step.begin_ns);
  }
}

INSTANTIATE_TEST_SUITE_P(EveryModel, WatchOn, ::testing::ValuesIn(small_models()),
                         [](const auto& tested) { return tested.param.name; });

TEST(Watch, TakesOneStretchOfEachForward) {
  Whole whole(tiny_mlp());
  const auto watch = watch_over(whole);
  run_step(whole, *watch);
  EXPECT_THAT(busy(watch->take().at(0), Phase::Forward, whole.count()), ElementsAre(1, 1, 1, 1));
}

TEST(Watch, GivesANodesTimeUntilTheNextNodeToItsLayer) {
  Whole whole(tiny_mlp());
  const auto watch = watch_over(whole);
  run_step(whole, *watch);
  // One nanosecond from each node to the next; the first node includes the engine's start. fc1: addmm, the weight's
  // transposition and two accumulations; the image needs no gradient. fc2: the same. relu: one node. Loss: nll and
  // log_softmax.
  EXPECT_THAT(busy(watch->take().at(0), Phase::Backward, whole.count()), ElementsAre(4, 1, 4, 2));
}

TEST(Watch, KeepsStepsApart) {
  Whole whole(tiny_mlp());
  const auto watch = watch_over(whole);
  run_step(whole, *watch, 0);
  run_step(whole, *watch, 1);
  const std::vector<StepShares> steps = watch->take();
  ASSERT_EQ(steps.size(), 2U);
  for (const StepShares& step : steps) EXPECT_THAT(busy(step, Phase::Backward, whole.count()), ElementsAre(4, 1, 4, 2));
  EXPECT_TRUE(watch->take().empty());
}

TEST(Watch, LeavesWorkBetweenStepsOut) {
  Whole whole(tiny_mlp());
  const auto watch = watch_over(whole);
  watch->begin_part({.phase = Phase::Data});
  watch->end_part();
  watch->begin_step(0);
  watch->begin_part({.layer = 2, .phase = Phase::Optimizer});
  watch->end_part();
  watch->end_step();
  const StepShares step = watch->take().at(0);
  EXPECT_EQ(step.data_wait_ns(), 0);
  EXPECT_EQ(step.share_of({2, Phase::Optimizer}), 2);  // the interval and the nanosecond before it
  EXPECT_EQ(step.unattributed_ns(), 1);
}

TEST(Watch, KeepsTiedParametersApart) {
  Whole whole(intake::build_model(
      "gpt", {{"layers", "1"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "16"}, {"sequence", "4"}}));
  std::map<std::string, std::vector<int>> holders;
  for (const stage::Parameter& parameter : whole.program.leaves()) holders[parameter.name].push_back(parameter.layer);
  const auto watch = watch_over(whole);
  run_step(whole, *watch);
  const auto backward = busy(watch->take().at(0), Phase::Backward, whole.count());
  int tied = 0;
  for (const auto& [name, layers] : holders) {
    tied += layers.size() > 1 ? 1 : 0;
    for (const int layer : layers) EXPECT_GT(backward[to_index(layer)], 0) << name;
  }
  EXPECT_EQ(tied, 1);
}

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A fake device that runs each LibTorch operation in one kernel, in order, right after its launch. Everything else
/// (threads, nodes, operations, the clock) is real.
class FakeTracer : public KernelTracer {
 public:
  FakeTracer() {
    current = this;
    callback_ = at::addGlobalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
          // The threads of one operation's kernel may call operations too.
          if (current && !at::in_parallel_region()) current->launch(f.name());
          return nullptr;
        }).scopes({at::RecordScope::FUNCTION}));
  }
  ~FakeTracer() override {
    at::removeCallback(callback_);
    current = nullptr;
  }
  FakeTracer(const FakeTracer&) = delete;
  FakeTracer& operator=(const FakeTracer&) = delete;

  std::string name() const override { return "fake"; }
  void push(std::uint64_t id) override { stack().push_back(id); }
  void pop() override {
    ASSERT_FALSE(stack().empty());
    stack().pop_back();
  }
  std::int64_t now_ns() const override { return steady_ns(); }
  std::uint32_t thread() const override {
    return static_cast<std::uint32_t>(std::hash<std::thread::id>()(std::this_thread::get_id()));
  }
  void start() override { on = true; }
  void stop() override { on = false; }
  KernelTrace take() override {
    const std::lock_guard lock(mutex_);
    if (spoil) spoil(trace_);
    return std::exchange(trace_, {});
  }
  static std::vector<std::uint64_t>& stack() {
    thread_local std::vector<std::uint64_t> ids;
    return ids;
  }

  std::function<void(KernelTrace&)> spoil;
  bool on = true;

 private:
  void launch(const char* what) {
    if (!on) return;
    const std::lock_guard lock(mutex_);
    const auto correlation = ++last_;
    const std::int64_t now = steady_ns();
    const std::int64_t begin = std::max(now + 1, free_);
    free_ = begin + 10;
    trace_.names.emplace_back(what);
    trace_.calls.push_back({correlation, thread(), now, now + 1});
    trace_.activities.push_back({.begin_ns = begin,
                                 .end_ns = free_,
                                 .stream = 7,
                                 .correlation = correlation,
                                 .name = static_cast<std::int32_t>(trace_.names.size()) - 1});
    if (!stack().empty()) trace_.ids.push_back({correlation, stack().back()});
  }
  static inline FakeTracer* current = nullptr;
  std::mutex mutex_;
  KernelTrace trace_;
  std::uint32_t last_ = 0;
  std::int64_t free_ = 0;
  at::CallbackHandle callback_ = 0;
};

class TracingWatchOn : public ::testing::TestWithParam<Small> {};

TEST_P(TracingWatchOn, GivesEachKernelToALayerByBothWays) {
  Whole whole(intake::build_model(GetParam().name, GetParam().set));
  FakeTracer tracer;
  const auto watch = make_tracing_watch(whole.program.leaves(), tracer, c10::kCPU, to_int(whole.count()) - 1);
  for (int step = 0; step < 2; ++step) run_step(whole, *watch, step);
  const std::vector<StepShares> steps = watch->take();
  EXPECT_THAT(distrust(watch->trace().quality), IsEmpty());
  EXPECT_GT(watch->trace().quality.activities, whole.count());
  EXPECT_EQ(watch->unmapped(), 0);
  ASSERT_EQ(steps.size(), 2U);
  for (const StepShares& step : steps) {
    std::int64_t sum = 0;
    for (const auto& [part, time] : step.parts) sum += time.share_ns();
    EXPECT_EQ(sum, step.end_ns - step.begin_ns);
    for (const stage::Parameter& parameter : whole.program.leaves())
      EXPECT_GT(step.share_of({parameter.layer, Phase::Backward}), 0) << parameter.name;
  }
  EXPECT_TRUE(FakeTracer::stack().empty());
}

INSTANTIATE_TEST_SUITE_P(EveryModel, TracingWatchOn, ::testing::ValuesIn(small_models()),
                         [](const auto& tested) { return tested.param.name; });

TEST(TracingWatch, GivesTheLossesOwnGradientToItsLayer) {
  Whole whole(tiny_mlp());
  FakeTracer tracer;
  const auto watch = make_tracing_watch(whole.program.leaves(), tracer, c10::kCPU, 3);
  run_step(whole, *watch, 0);
  (void)watch->take();
  bool found = false;
  const AttributedTrace& trace = watch->trace();
  for (const Attributed& work : trace.activities) {
    if (trace.names[to_index(work.activity.name)] != "aten::ones_like") continue;
    found = true;
    EXPECT_EQ(work.tag, (Tag{3, Phase::Backward, 0, 0}));
  }
  EXPECT_TRUE(found);
}

TEST(TracingWatch, LeavesOutAStepWhoseMarksAreMissing) {
  Whole whole(tiny_mlp());
  FakeTracer tracer;
  tracer.spoil = [](KernelTrace& trace) {
    std::erase_if(trace.ids, [](const ExternalId& external) { return decode_tag(external.id).phase == Phase::Data; });
  };
  const auto watch = make_tracing_watch(whole.program.leaves(), tracer, c10::kCPU, 3);
  run_step(whole, *watch, 0);
  EXPECT_TRUE(watch->take().empty());
}

TEST(TracingWatch, SeesNothingWhilePaused) {
  Whole whole(tiny_mlp());
  FakeTracer tracer;
  const auto watch = make_tracing_watch(whole.program.leaves(), tracer, c10::kCPU, 3);
  watch->pause();
  (void)whole.program.backward(whole.forward(nullptr), {});
  watch->resume();
  run_step(whole, *watch, 5);
  EXPECT_EQ(watch->take().size(), 1U);
  EXPECT_THAT(distrust(watch->trace().quality), IsEmpty());
}

Profile profile_with(FakeTracer& tracer) {
  const model::Model model = tiny_mlp();
  ProfileOptions options;
  options.microbatch_samples = 2;
  options.rule.most_seconds = 0;
  return profile_model(model, *data::make_data_source("synthetic", model, 1), options, {}, &tracer);
}

TEST(ProfileByTracer, IsTrustedWhenEveryKernelHasItsLayer) {
  FakeTracer tracer;
  const Profile profile = profile_with(tracer);
  const ProfileQuality& quality = *profile.graph.quality;
  EXPECT_EQ(quality.clock, "fake");
  EXPECT_TRUE(quality.trusted) << quality.reasons.front();
  EXPECT_GT(quality.work, 0);
  EXPECT_EQ(quality.work_attributed, quality.work);
  EXPECT_EQ(quality.work_attributed_ns, quality.work_ns);
}

TEST(ProfileByTracer, AddsUpToTheUnprofiledStepsToTheNanosecond) {
  FakeTracer tracer;
  const Graph graph = profile_with(tracer).graph;
  const ProfileQuality& quality = *graph.quality;
  std::int64_t sum = quality.data_wait_ns + quality.unattributed_ns;
  for (const Layer& layer : graph.layers) {
    for (const auto* share : {&layer.forward_share, &layer.backward_share, &layer.update_share})
      sum += *share ? (*share)->share_ns : 0;
  }
  EXPECT_EQ(sum, quality.watched_ns);
  EXPECT_TRUE(quality.debiased);
  // Each counted step was scaled to the unwatched median.
  EXPECT_EQ(quality.watched_ns, quality.steps * static_cast<std::int64_t>(graph.iteration->median.value * 1e9));
  EXPECT_EQ(quality.steps, 9);  // a run of ten without its first
}

TEST(ProfileByTracer, DividesTheUpdateByParameters) {
  FakeTracer tracer;
  const Graph graph = profile_with(tracer).graph;
  const auto update = [&](const char* id) {
    return static_cast<double>(graph.layers[to_index(layer_index(graph, id))].update_share->share_ns);
  };
  // fc1 has 4 * 8 + 8 = 40 values, fc2 8 * 3 + 3 = 27; each step rounds to a nanosecond.
  EXPECT_NEAR(update("fc1") / 40, update("fc2") / 27, 2 * 27);
}

TEST(ProfileByTracer, IsNotTrustedWithoutARecord) {
  FakeTracer tracer;
  tracer.spoil = [](KernelTrace& trace) {
    if (!trace.ids.empty()) trace.ids.erase(trace.ids.begin() + static_cast<std::ptrdiff_t>(trace.ids.size() / 2));
    trace.dropped = 1;
  };
  const ProfileQuality quality = *profile_with(tracer).graph.quality;
  EXPECT_FALSE(quality.trusted);
  EXPECT_THAT(quality.reasons, Contains(HasSubstr("records were dropped")));
  EXPECT_THAT(quality.reasons, Contains(HasSubstr("do not belong to a layer")));
  EXPECT_LT(quality.work_attributed, quality.work);
}

}  // namespace

}  // namespace stagecraft::profiler
