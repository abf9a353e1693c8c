#include "executor/stage/moving_statistics.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"
#include "executor/run/run_comparison.h"
#include "executor/run/worker/synchronous_worker.h"
#include "tests/support/models/counting_model.h"
#include "tests/support/models/planned_models.h"

namespace stagecraft::stage {
namespace {

using stagecraft::testing::counting_model;
using stagecraft::testing::cut_plan;
using stagecraft::testing::even_cuts;
using stagecraft::testing::kNoDouble;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

constexpr std::uint64_t kSeed = 1;
constexpr int kSteps = 3;

/// Running statistics by name, one tensor per rank that has them.
using Statistics = std::map<std::string, std::vector<at::Tensor>>;

Statistics after_training(const PlannedModel& planned, const Plan& plan, const OptimizerOptions& optimizer) {
  const BoundPlan bound_plan(plan);
  const run::BoundModel bound = run::bind_model(bound_plan, planned.model);
  const int count = to_int(bound_plan.ranks().size());
  const auto channels = channel::make_local_channels(count, std::chrono::milliseconds(60000));
  Statistics out;
  std::mutex mutex;
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < count; ++rank) {
      threads.emplace_back([&, rank] {
        run::SynchronousWorker worker(bound, rank, *channels[to_index(rank)], *planned.data,
                                      {.optimizer = optimizer, .seed = kSeed});
        for (int step = 0; step < kSteps; ++step) {
          worker.compute(step);
          worker.update_step(step);
        }
        const std::lock_guard lock(mutex);
        worker.visit_stages([&](int, StageProgram& program, Optimizer&) {
          for (const Parameter& buffer : program.buffers()) out[buffer.name].push_back(buffer.value.clone());
        });
      });
    }
  }
  return out;
}

Statistics of_a_single_process(const PlannedModel& planned, const Plan& plan, const OptimizerOptions& optimizer) {
  const BoundPlan bound(plan);
  const run::BoundModel model = run::bind_model(bound, planned.model);
  run::Reference reference(model, *planned.data, optimizer, kSeed);
  for (int step = 0; step < kSteps; ++step) {
    reference.compute(step);
    reference.update();
  }
  Statistics out;
  for (const Parameter& buffer : reference.program().buffers()) out[buffer.name].push_back(buffer.value.clone());
  return out;
}

TEST(MovingStatistics, AreThoseOfASingleProcessBitForBitOnEveryReplica) {
  const PlannedModel planned = planned_model("resnet18", {{"image", "32"}, {"channels", "4"}, {"classes", "10"}}, 2);
  const int layers = to_int(planned.model.layers.size());
  OptimizerOptions optimizer;
  for (const std::vector<int>& replicas :
       std::vector<std::vector<int>>{{1}, {3}, {1, 1}, {2, 1}, {1, 2}, {3, 2}, {1, 1, 1}, {2, 3, 1}}) {
    for (const int microbatches : {1, 5}) {
      Plan plan = cut_plan(planned, even_cuts(layers, to_int(replicas.size())), replicas, "1f1b", microbatches);
      plan.stages[0].recompute = true;  // recomputation must not update them twice
      const Statistics found = after_training(planned, plan, optimizer);
      const Statistics expected = of_a_single_process(planned, plan, optimizer);
      ASSERT_GT(expected.size(), 0U);
      ASSERT_EQ(found.size(), expected.size());
      for (const auto& [name, values] : found) {
        for (const at::Tensor& value : values) EXPECT_TRUE(at::equal(value, expected.at(name).front())) << name;
      }
    }
  }
}

TEST(MovingStatistics, DoNotDependOnTheReplicas) {
  const PlannedModel planned = planned_model("resnet18", {{"image", "32"}, {"channels", "4"}, {"classes", "10"}}, 2);
  OptimizerOptions optimizer;
  optimizer.learning_rate = 0;  // so that weights do not depend on the replicas either
  const Statistics alone = after_training(planned, cut_plan(planned, {}, {1}, "1f1b", 5), optimizer);
  const Statistics three = after_training(planned, cut_plan(planned, {}, {3}, "1f1b", 5), optimizer);
  for (const auto& [name, values] : three) {
    ASSERT_EQ(values.size(), 3U);
    // With one replica the kernel rounds the updated value once; with several, each microbatch's part is rounded first.
    for (const at::Tensor& value : values) EXPECT_TRUE(at::allclose(value, alone.at(name).front(), 1e-5, 1e-7)) << name;
  }
}

TEST(MovingStatistics, KeepEachBufferInItsType) {
  const PlannedModel planned = planned_model(counting_model(), 2);
  const int layers = to_int(planned.model.layers.size());
  for (const std::vector<int>& replicas : std::vector<std::vector<int>>{{1}, {3}, {2, 1}, {3, 2}}) {
    constexpr int kMicrobatches = 5;
    const Plan plan = cut_plan(planned, even_cuts(layers, to_int(replicas.size())), replicas, "1f1b", kMicrobatches);
    const Statistics found = after_training(planned, plan, {});
    const Statistics expected = of_a_single_process(planned, plan, {});
    ASSERT_EQ(found.size(), expected.size());
    std::size_t counts = 0;
    for (const auto& [name, values] : found) {
      for (const at::Tensor& value : values) {
        EXPECT_TRUE(at::equal(value, expected.at(name).front())) << name;
        if (!name.ends_with(".calls")) continue;
        ++counts;
        EXPECT_EQ(value.item<std::int64_t>(), kNoDouble + kSteps * kMicrobatches);
      }
      EXPECT_EQ(values.front().scalar_type(), expected.at(name).front().scalar_type());
    }
    EXPECT_GE(counts, 3U);
  }
}

TEST(MovingStatistics, CountWhatTheyExchange) {
  const model::Model model = counting_model();
  // Per layer: 8 bytes for one int64, 16 for two float64 and 2 for a bfloat16; none for the frozen buffer.
  EXPECT_EQ(moving_values(model, {0}), 8 + 16 + 2);
  const model::Model norm = intake::build_model("resnet18", {{"image", "32"}, {"channels", "4"}, {"classes", "10"}});
  EXPECT_EQ(norm.layers[1].kind, "BatchNorm2d");
  EXPECT_EQ(moving_values(norm, {1}), 2 * 4);  // mean and variance of four channels
}

TEST(MovingStatistics, RefuseADecayThatTheTypeCannotHold) {
  for (const auto& [dtype, decay, word] :
       {std::tuple{at::kLong, 0.5, "int64 decays by 0.5"}, std::tuple{at::kBool, 1.0, "bool decays by 1"}}) {
    model::Model model = counting_model();
    model::ParameterSpec& calls = model.layers[0].parameters[2];
    calls.load = {};
    calls.dtype = dtype;
    calls.decay = decay;
    const StageProgram program(model, {0}, {}, {{.layer = 0}}, kSeed);
    EXPECT_THAT([&] { MovingStatistics(model, program, [](int) { return true; }); },
                ThrowsMessage<std::invalid_argument>(
                    StartsWith("layer \"fc1\": buffer \"fc1.calls\" of " + std::string(word))));
  }
}

}  // namespace
}  // namespace stagecraft::stage
