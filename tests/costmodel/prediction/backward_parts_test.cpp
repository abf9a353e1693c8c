#include "costmodel/prediction/backward_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/prediction/predict.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;
using testing::one_layer_a_stage;
using ::testing::StartsWith;

Timing given(double seconds) { return {Seconds(seconds), {}, 0}; }

Prediction predicted(const Graph& graph, const Topology& topology, const Plan& plan) {
  return std::get<Prediction>(predict(graph, topology, BoundPlan(plan)));
}

TEST(BackwardPartsOfALayer, AreTheMeasuredOnes) {
  Layer layer = chain_graph({1}, {4}, 0_B, 8_B).layers[0];
  layer.backward_parts = BackwardParts{given(3), given(2), false};
  EXPECT_EQ(backward_parts(layer), *layer.backward_parts);
}

TEST(BackwardPartsOfALayer, AreHalvesWhereItHasParametersAndNoTimes) {
  EXPECT_EQ(backward_parts(chain_graph({1}, {4}, 0_B, 8_B).layers[0]), (BackwardParts{given(2), given(2)}));
  EXPECT_EQ(backward_parts(chain_graph({1}, {4}).layers[0]), (BackwardParts{given(4), given(0)}));
}

/// "a" without parameters, then "b", "c", "d" with; backwards of 1, 2, 4 and 8 s, split in 1 : 3.
struct Four {
  Graph graph = chain_graph({1, 1, 1, 1}, {1, 2, 4, 8});
  Topology topology = flat_topology(4);

  Four() {
    for (std::size_t i = 1; i < 4; ++i) {
      Layer& layer = graph.layers[i];
      layer.parameter_bytes = 8_B;
      layer.backward_parts =
          BackwardParts{given(layer.backward.median.value / 4), given(layer.backward.median.value * 3 / 4)};
    }
  }
  [[nodiscard]] std::vector<SplitBackwardTimes> times(const std::vector<int>& stage_of_layer, int recompute_every = 0,
                                                      const std::string& schedule = "zb-h1") const {
    PlanSettings settings;
    settings.schedule = schedule;
    settings.recompute = recompute_every > 0;
    settings.recompute_every = recompute_every;
    const std::vector<int> replicas(static_cast<std::size_t>(stage_of_layer.back() + 1), 1);
    return split_backward_times(graph, BoundPlan(make_plan(graph, topology, {stage_of_layer, replicas}, settings)));
  }
};

TEST(SplitBackwardTimes, DoNotSplitAStageThatSendsNoGradient) {
  const Four four;
  // 1 + 2 whole; 4 / 4 + 8 / 4 and the rest.
  EXPECT_THAT(four.times({0, 0, 1, 1}), ElementsAre(SplitBackwardTimes{3_s, 0_s}, SplitBackwardTimes{3_s, 9_s}));
  Four frozen;
  frozen.graph.layers[1].outputs[0].requires_grad = false;
  EXPECT_THAT(frozen.times({0, 0, 1, 1}), ElementsAre(SplitBackwardTimes{3_s, 0_s}, SplitBackwardTimes{12_s, 0_s}));
}

TEST(SplitBackwardTimes, DoNotSplitAStageWithALayerThatIsNotSeparable) {
  Four four;
  four.graph.layers[3].backward_parts->separable = false;
  EXPECT_THAT(four.times({0, 1, 2, 2}), ElementsAre(SplitBackwardTimes{1_s, 0_s}, SplitBackwardTimes{0.5_s, 1.5_s},
                                                    SplitBackwardTimes{12_s, 0_s}));
}

TEST(SplitBackwardTimes, PutABranchThatReceivesNothingIntoTheWeights) {
  Four four;
  // d reads a, in the first stage, and c, in its own, which now reads nothing.
  four.graph.edges = {{0, 1, 0}, {1, 3, 0}, {2, 3, 0}};
  // c is 4 s of weights; d 2 s and 6 s.
  EXPECT_THAT(four.times({0, 0, 1, 1}), ElementsAre(SplitBackwardTimes{3_s, 0_s}, SplitBackwardTimes{2_s, 10_s}));
}

TEST(SplitBackwardTimes, SplitEachSegmentThatIsRecomputed) {
  const Four four;
  // Stage 0: the segment of a is whole, that of b is split.
  EXPECT_THAT(four.times({0, 0, 1, 1}, 1), ElementsAre(SplitBackwardTimes{1.5_s, 1.5_s}, SplitBackwardTimes{3_s, 9_s}));
}

TEST(PredictSplitBackward, EqualsTheClosedFormOfEqualStages) {
  const Graph graph = chain_graph({1, 1, 1}, {2, 2, 2}, 0_B, 8_B);
  const Topology topology = flat_topology(3);
  const Prediction p = predicted(graph, topology, one_layer_a_stage(graph, topology, {1, 1, 1}, "zb-h1", 6));
  // Estimated halves: B = W = 1 s. M (F + B + W) + (p - 1) (F + B - W) = 6 * 3 + 2.
  EXPECT_DOUBLE_EQ(p.iteration.value, 20);
  EXPECT_THAT(p.backward_parts,
              StartsWith("the graph has no weight-gradient times for 3 layers with parameters: half"));
}

TEST(PredictSplitBackward, TakesTheMeasuredTimes) {
  Graph graph = chain_graph({1, 1}, {3, 3}, 0_B, 8_B);
  for (Layer& layer : graph.layers) layer.backward_parts = BackwardParts{given(2), given(1.5)};
  const Topology topology = flat_topology(2);
  const Prediction p = predicted(graph, topology, one_layer_a_stage(graph, topology, {1, 1}, "zb-h1", 2));
  // Stage 0 (whole backwards of 3 s): F 0-1, F 1-2, B 4-7, B 7-10. Stage 1: F 1-2, B 2-4, F 4-5, B 5-7, W 7-8.5, W
  // 8.5-10.
  EXPECT_DOUBLE_EQ(p.iteration.value, 10);
  EXPECT_DOUBLE_EQ(p.stages[1].backward.value, 3.5);
  EXPECT_EQ(p.backward_parts, "");
  graph.layers[0].backward_parts.reset();
  EXPECT_EQ(predicted(graph, topology, one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 2)).backward_parts, "");
}

TEST(PredictSplitBackward, AddsTheRecomputationToTheFirstPart) {
  Graph graph = chain_graph({1, 1}, {2, 2}, 0_B, 8_B);
  const Topology topology = flat_topology(2);
  Plan plan = one_layer_a_stage(graph, topology, {1, 1}, "zb-h1", 1);
  plan.stages[1].recompute = true;
  // F 0-1 and 1-2; stage 1 F again 2-3, B 3-4, W 4-5; stage 0 B 4-6.
  EXPECT_DOUBLE_EQ(predicted(graph, topology, plan).iteration.value, 6);
}

TEST(PredictSplitBackward, LeavesBackwardsWholeThatAListDoesNotSplit) {
  const Graph graph = chain_graph({1, 1}, {2, 2}, 0_B, 8_B);
  const Topology topology = flat_topology(2);
  Plan plan = one_layer_a_stage(graph, topology, {1, 1}, "gpipe", 2);
  plan.schedule = "listed";
  const auto action = [](ActionKind kind, int stage, int microbatch) { return Action{kind, stage, microbatch, -1}; };
  using enum ActionKind;
  plan.listed = {{action(Forward, 0, 0), action(Forward, 0, 1), action(Backward, 0, 0), action(Backward, 0, 1)},
                 {action(Forward, 1, 0), action(Backward, 1, 0), action(WeightGradient, 1, 0), action(Forward, 1, 1),
                  action(Backward, 1, 1)}};
  // Stage 1: F 1-2, B 2-3, W 3-4, F 4-5, whole B 5-7; stage 0: B 3-5, B 7-9.
  EXPECT_DOUBLE_EQ(predicted(graph, topology, plan).iteration.value, 9);
}

}  // namespace
}  // namespace stagecraft
