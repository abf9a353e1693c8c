#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "costmodel/index.h"
#include "executor/run/binding/bound_model.h"
#include "executor/run/run.h"
#include "tests/executor/channel/channel_suite.h"
#include "tests/support/models/planned_models.h"
#include "tests/support/models/random_plans.h"

// Training over UCX has the bits of training over the local channel, for random plans. Half of those that can divide
// the optimizer's state among replicas, which training over the local channel does not do here.

namespace stagecraft::channel {
namespace {

using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;

const PlannedModel& small_mlp() {
  static const PlannedModel planned = planned_model("mlp", {{"inputs", "12"}, {"width", "16"}, {"layers", "8"}}, 3);
  return planned;
}

/// Its gradients are reduced in segments, and its activations are long messages.
const PlannedModel& large_mlp() {
  static const PlannedModel planned = planned_model("mlp", {{"inputs", "12"}, {"width", "400"}, {"layers", "8"}}, 64);
  return planned;
}

struct Drawn {
  testing::RandomPlan random;
  run::RunResult expected;
};

run::RunOptions options() {
  run::RunOptions out;
  out.steps = 3;
  out.optimizer.learning_rate = 0.01;
  return out;
}

/// The plans of these seeds and how they train over the local channel, by number of ranks.
std::map<int, std::vector<Drawn>> draw(const PlannedModel& mlp, unsigned first, unsigned end) {
  std::map<int, std::vector<Drawn>> out;
  for (unsigned seed = first; seed < end; ++seed) {
    std::mt19937 random(seed);
    Drawn drawn{testing::random_plan(mlp, random), {}};
    drawn.random.what += ", seed " + std::to_string(seed);
    drawn.expected = run::run_local(drawn.random.plan, mlp.model, *mlp.data, options(), kLong);
    if (seed % 2 == 0 && !BoundPlan(drawn.random.plan).asynchronous()) {
      drawn.random.plan.sharding = seed % 4 == 0 ? StateSharding::Gradients : StateSharding::Optimizer;
      drawn.random.what += ", with divided state";
    }
    out[to_int(BoundPlan(drawn.random.plan).ranks().size())].push_back(std::move(drawn));
  }
  return out;
}

/// Trains all plans of as many ranks over the same channels, one after the other.
void expect_same_bits(const std::string& channels, const PlannedModel& mlp, unsigned first, unsigned end) {
  for (const auto& [ranks, plans] : draw(mlp, first, end)) {
    std::vector<run::RunResult> results(plans.size());
    run_on_ranks(channels, ranks, kLong, [&, &plans = plans](Channel& channel) {
      for (std::size_t i = 0; i < plans.size(); ++i) {
        const BoundPlan plan(plans[i].random.plan);
        const run::BoundModel bound = run::bind_model(plan, mlp.model);
        run::RunResult run_result =
            run::run_rank(bound, *mlp.data, options(), channel.rank(), channel, [] { return 0.0; }, nullptr);
        if (channel.rank() == 0) results[i] = std::move(run_result);
        channel.barrier();
      }
    });
    for (std::size_t i = 0; i < plans.size(); ++i) {
      EXPECT_FALSE(results[i].measurement.losses.empty());
      EXPECT_EQ(results[i].measurement.losses, plans[i].expected.measurement.losses) << plans[i].random.what;
    }
  }
}

class UcxRun : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, UcxRun, ::testing::Range(0U, 10U));

TEST_P(UcxRun, HasTheBitsOfTheLocalChannel) {
  expect_same_bits("ucx", small_mlp(), 100 * GetParam(), 100 * (GetParam() + 1));
}

TEST(UcxRunOfLargeLayers, HasTheBitsOfTheLocalChannel) { expect_same_bits("ucx", large_mlp(), 1000, 1020); }

TEST(UcxRunOverTcp, HasTheBitsOfTheLocalChannel) {
  expect_same_bits("ucx_tcp", small_mlp(), 1000, 1040);
  expect_same_bits("ucx_tcp", large_mlp(), 1000, 1010);
}

}  // namespace
}  // namespace stagecraft::channel
