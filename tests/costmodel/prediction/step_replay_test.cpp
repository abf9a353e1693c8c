#include "costmodel/prediction/step_replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "costmodel/analysis/explain.h"
#include "costmodel/analysis/whatif.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using testing::flat_topology;
using testing::one_layer_a_stage;

TEST(SimulationInput, AddsTheHostsTimeToEachComputation) {
  Graph graph = chain_graph({1}, {2});
  graph.layers[0].update = Timing{3_s, {}, 1};
  const Topology topology = flat_topology(1);
  PredictOptions options;
  options.host_per_action = 0.25_s;
  const SimulationInput input =
      simulation_input(graph, topology, BoundPlan(one_layer_a_stage(graph, topology, {1}, "1f1b", 1)), options);
  EXPECT_EQ(input.stages[0].forward, 1.25_s);
  EXPECT_EQ(input.stages[0].backward, 2.25_s);
  EXPECT_EQ(input.stages[0].update, 3.25_s);
  EXPECT_EQ(input.stages[0].reduce, 0_s);
}

/// By hand, messages of 1 s: the replicas of stage 0 run F0 and F1 0-1, and their messages share the port of stage 1
/// until 3. Stage 1: F0 3-4, B0 4-6, F1 6-7, B1 7-9. The gradients arrive at 7 and 10, B0 of stage 0 is 7-9 and B1
/// 10-12; then its replicas sum 1000 B in 2 * 500 / 1000 = 1 s.
TEST(ReplayStep, SumsTheSharesOfReplicas) {
  const Graph graph = chain_graph({1, 1}, {2, 2}, 1000_B, 1000_B);
  const Topology topology = flat_topology(3, 1000);
  const BoundPlan plan(one_layer_a_stage(graph, topology, {2, 1}, "1f1b", 2));
  const auto replay = std::get<StepReplay>(replay_step(graph, topology, plan, {}));
  EXPECT_EQ(replay.steps, 1);
  EXPECT_EQ(replay.reckoned_microbatches, 0);
  ASSERT_EQ(replay.shares.size(), 2U);
  EXPECT_NEAR(replay.shares[0].forward.value, 2, 1e-12);
  EXPECT_NEAR(replay.shares[0].backward.value, 4, 1e-12);
  EXPECT_NEAR(replay.time.value, 13, 1e-12);
  // From the arrival of the second replica on, for both.
  EXPECT_NEAR(replay.shares[0].reduce.value, 2, 1e-12);
  EXPECT_NEAR(replay.shares[1].forward.value, 2, 1e-12);
  EXPECT_NEAR(replay.shares[1].backward.value, 4, 1e-12);
  EXPECT_EQ(replay.shares[1].reduce, 0_s);
}

TEST(ReplayStep, ExtendsAShorterStep) {
  // One stage repeats itself at once: 3 s for each microbatch, however many.
  const Graph graph = chain_graph({1}, {2});
  const Topology topology = flat_topology(1);
  const BoundPlan plan(one_layer_a_stage(graph, topology, {1}, "1f1b", 1'000'000));
  const auto replay = std::get<StepReplay>(replay_step(graph, topology, plan, {}));
  EXPECT_GT(replay.reckoned_microbatches, 900'000);
  EXPECT_NEAR(replay.time.value, 3e6, 1e-3);
  EXPECT_NEAR(replay.shares[0].forward.value, 1e6, 1e-3);
}

/// Options whose progress is noted in `told`.
PredictOptions noting(std::vector<double>& told) {
  PredictOptions out;
  out.progress = [&told](double done) { told.push_back(done); };
  return out;
}

// Weights 1, 1 and 2 of 4: the parts begin at 0, 1/4 and 2/4.
TEST(ProgressParts, AreOneProgress) {
  std::vector<double> told;
  const PredictOptions options = noting(told);
  ProgressParts parts(options, 4);
  parts.next().progress(0.5);
  parts.next().progress(1);
  parts.next(2).progress(0.5);
  EXPECT_THAT(told, ElementsAre(0, 0.125, 0.25, 0.5, 0.5, 0.75));
}

// The first of 4 expected parts ends at 1/4; then 2 more are left, each of 3/8.
TEST(ProgressParts, ShareWhatIsLeft) {
  std::vector<double> told;
  const PredictOptions options = noting(told);
  ProgressParts parts(options, 4);
  (void)parts.next();
  parts.set_left(2);
  (void)parts.next();
  parts.next().progress(1);
  EXPECT_THAT(told, ElementsAre(0, 0.25, DoubleEq(0.625), 1));
}

TEST(ProgressParts, NeedNobodyWhoListens) {
  const PredictOptions silent;
  ProgressParts parts(silent, 2);
  EXPECT_FALSE(parts.next().progress);
}

/// Three layers on two stages, with links, so that intervals need more predictions.
Scenario small_scenario() {
  Scenario out{testing::chain_graph({1, 1, 1}, {2, 2, 2}, Bytes(500)), testing::flat_topology(2, 1000), {}};
  out.plan = make_plan(out.graph, out.topology, {{0, 0, 1}, {1, 1}}, {.microbatches = 4});
  return out;
}

void expect_one_progress(const std::vector<double>& told, const char* of) {
  SCOPED_TRACE(of);
  ASSERT_GE(told.size(), 3U);
  EXPECT_EQ(told.front(), 0);
  EXPECT_GE(told.back(), 0.5);
  EXPECT_LE(told.back(), 1);
  EXPECT_TRUE(std::ranges::is_sorted(told));
}

TEST(ProgressParts, CoverEveryQuestionThatNeedsSeveralPredictions) {
  const Scenario scenario = small_scenario();
  std::vector<double> told;
  const PredictOptions options = noting(told);
  const BoundPlan plan(scenario.plan);
  (void)predict_with_intervals(scenario.graph, scenario.topology, plan, {}, options);
  expect_one_progress(told, "predict");
  told.clear();
  (void)what_if(scenario, {"compute=2x"}, {}, options);
  expect_one_progress(told, "whatif");
  told.clear();
  (void)predict_scaling(scenario, {1, 2, 4}, ScaledWork::PerCopy, {}, options);
  expect_one_progress(told, "scaling");
  told.clear();
  (void)explain(scenario.graph, scenario.topology, plan, {.predict = options});
  expect_one_progress(told, "explain");
}

}  // namespace
}  // namespace stagecraft
