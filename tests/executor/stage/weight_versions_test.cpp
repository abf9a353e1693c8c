#include "executor/stage/weight_versions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "costmodel/index.h"
#include "tests/support/models/scaling_model.h"

// Tests with the stage h = a x, where a begins at 2. If the gradient of h is 1, that of a is x.

namespace stagecraft::stage {
namespace {

using stagecraft::testing::crossing;
using stagecraft::testing::scaling_model;
using ::testing::ElementsAre;

struct Versioned {
  explicit Versioned(Weights weights, const OptimizerOptions& options = {.learning_rate = 0.5})
      : optimizer(options, {program.parameters().front().value}), versions(weights, program, optimizer) {}
  /// Begins a microbatch of value `x`; returns h.
  double forward(int microbatch, int step, double x) {
    versions.begin(microbatch, step);
    flights[microbatch] = program.forward({}, {crossing(x)}, step, microbatch);
    return flights[microbatch].sent.front().item<double>();
  }
  void backward(int microbatch) {
    versions.resume(microbatch);
    (void)program.backward(std::move(flights[microbatch]), {crossing(1)});
    versions.collect(microbatch);
  }
  [[nodiscard]] double a() { return program.parameters().front().value.item<double>(); }
  [[nodiscard]] double waiting() { return versions.waiting().front().item<double>(); }

  model::Model model = scaling_model();
  StageProgram program{model, {0}, {}, {{.layer = 0}}, 1};
  Optimizer optimizer;
  WeightVersions versions;
  std::map<int, Flight> flights;
};

TEST(WeightVersions, FirstVersionIsTheProgramsParameters) {
  Versioned v(Weights::Newest);
  const void* const memory = v.program.parameters().front().value.const_data_ptr();
  EXPECT_EQ(v.versions.updates(), 0);
  EXPECT_EQ(v.forward(0, 0, 1), 2);
  EXPECT_EQ(v.program.parameters().front().value.const_data_ptr(), memory) << "no copy of it";
}

TEST(WeightVersions, UpdateAppliesTheMeanOfWhatWaitsAndCounts) {
  Versioned v(Weights::Newest);
  (void)v.forward(0, 0, 3);
  (void)v.forward(1, 0, 5);
  v.backward(0);
  v.backward(1);
  EXPECT_EQ(v.waiting(), 3 + 5);
  v.versions.update(2, 1);
  EXPECT_EQ(v.versions.updates(), 1);
  EXPECT_EQ(v.a(), 2 - 0.5 * 4);
  EXPECT_FALSE(v.versions.waiting().front().defined()) << "applied once";
  v.versions.update(1, 1);
  EXPECT_EQ(v.a(), 0) << "an update of nothing changes nothing";
  EXPECT_EQ(v.versions.updates(), 2);
}

TEST(WeightVersions, RateFactorScalesTheUpdate) {
  Versioned v(Weights::Newest);
  (void)v.forward(0, 0, 3);
  v.backward(0);
  v.versions.update(1, 0.25);
  EXPECT_EQ(v.a(), 2 - 0.25 * 0.5 * 3);
}

TEST(WeightVersions, NewestGivesAMicrobatchWhatTheLastUpdateLeft) {
  Versioned v(Weights::Newest);
  EXPECT_EQ(v.forward(0, 0, 1), 2);
  EXPECT_EQ(v.forward(1, 0, 1), 2);
  v.backward(0);
  v.versions.update(1, 1);
  EXPECT_EQ(v.forward(2, 0, 1), 1.5);
}

TEST(WeightVersions, GivesBackTheVersionOfTheMicrobatch) {
  Versioned v(Weights::Newest);
  (void)v.forward(0, 0, 1);
  (void)v.forward(1, 0, 1);
  v.backward(0);
  v.versions.update(1, 1);
  (void)v.forward(2, 0, 1);
  v.versions.resume(1);
  EXPECT_EQ(v.a(), 2);
  v.versions.resume(2);
  EXPECT_EQ(v.a(), 1.5);
}

TEST(WeightVersions, GradientsOfAnOldVersionJoinTheNewest) {
  Versioned v(Weights::Newest);
  (void)v.forward(0, 0, 1);
  (void)v.forward(1, 0, 3);
  v.backward(0);
  v.versions.update(1, 1);  // 1.5
  v.backward(1);            // computed with 2
  v.versions.update(1, 1);
  EXPECT_EQ(v.a(), 1.5 - 0.5 * 3);
}

TEST(WeightVersions, CollectTakesTheGradientOffTheVersion) {
  Versioned v(Weights::Newest);
  (void)v.forward(0, 0, 3);
  v.backward(0);
  EXPECT_FALSE(v.program.parameters().front().value.grad().defined());
  (void)v.forward(1, 0, 5);
  v.backward(1);
  EXPECT_EQ(v.waiting(), 3 + 5) << "the first one counts once";
}

TEST(WeightVersions, StepBeforeLagsOneUpdateFromTheSecondStepOn) {
  Versioned v(Weights::StepBefore);
  const std::vector<double> expected{2, 2, 1.5, 1, 0.5};  // each update subtracts x / 2 = 0.5
  for (int step = 0; step < 5; ++step) {
    EXPECT_EQ(v.forward(step, step, 1), expected[to_index(step)]) << "step " << step;
    v.backward(step);
    v.versions.update(1, 1);
  }
}

TEST(WeightVersions, MomentumStaysFromVersionToVersion) {
  Versioned v(Weights::Newest, {.learning_rate = 0.5, .momentum = 0.5});
  for (int microbatch = 0; microbatch < 2; ++microbatch) {
    (void)v.forward(microbatch, 0, 1);
    v.backward(microbatch);
    v.versions.update(1, 1);
  }
  // Momentum is 1, then 0.5 * 1 + 1.
  EXPECT_EQ(v.a(), 2 - 0.5 * 1 - 0.5 * 1.5);
}

TEST(WeightVersions, UnusedVersionIsReleased) {
  for (const Weights weights : {Weights::Newest, Weights::StepBefore}) {
    Versioned v(weights);
    const c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> first(
        v.program.parameters().front().value.getIntrusivePtr());
    (void)v.forward(0, 0, 1);
    for (int update = 0; update < 2; ++update) v.versions.update(1, 1);
    EXPECT_FALSE(first.expired()) << "in use by a microbatch";
    v.backward(0);  // leaves the program bound to its version until the next update or microbatch
    v.versions.update(1, 1);
    EXPECT_TRUE(first.expired());
  }
}

TEST(WeightVersions, CopiesOnlyAVersionThatIsStillNeeded) {
  Versioned v(Weights::Newest);
  const auto memory = [&] { return v.program.parameters().front().value.const_data_ptr(); };
  const void* const first = memory();
  (void)v.forward(0, 0, 3);
  v.backward(0);
  v.versions.update(1, 1);
  EXPECT_EQ(memory(), first) << "nothing in flight";
  (void)v.forward(1, 0, 3);
  (void)v.forward(2, 0, 3);
  v.backward(1);
  v.versions.update(1, 1);
  EXPECT_NE(memory(), first) << "microbatch 2 is in flight";
  v.versions.resume(2);
  EXPECT_EQ(memory(), first);

  Versioned late(Weights::StepBefore);
  const void* const before = late.program.parameters().front().value.const_data_ptr();
  late.versions.update(1, 1);
  EXPECT_NE(late.program.parameters().front().value.const_data_ptr(), before) << "the next step uses it";
}

TEST(WeightVersions, RandomPipelineOfDelaysEqualsItsDefinition) {
  // Microbatches begin and end in order, with up to three in flight, and each ends with an update. The gradient of h is
  // 1 and x is an integer, so a after n updates is 2 - (sum of the first n x) / 2.
  constexpr unsigned kSeed = 20;
  SCOPED_TRACE("seed " + std::to_string(kSeed));
  std::mt19937 random(kSeed);
  Versioned v(Weights::Newest);
  std::vector<double> values{2};  // by update
  std::vector<double> x;
  int begun = 0;
  while (v.versions.updates() < 60) {
    const int under_way = begun - v.versions.updates();
    if (under_way == 0 || (under_way < 3 && random() % 2 == 0)) {
      x.push_back(static_cast<double>(random() % 8));
      EXPECT_EQ(v.forward(begun, 0, x.back()), values.back() * x.back()) << "microbatch " << begun;
      ++begun;
    } else {
      const int ended = v.versions.updates();
      v.backward(ended);
      v.versions.update(1, 1);
      values.push_back(values.back() - x[to_index(ended)] / 2);
      EXPECT_EQ(v.a(), values.back()) << "update " << ended;
    }
  }
}

}  // namespace
}  // namespace stagecraft::stage
