#include "profiler/subject/watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "costmodel/index.h"
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

}  // namespace
}  // namespace stagecraft::profiler
