#include "costmodel/prediction/stage_costs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

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

TEST(StageCosts, MultiplyLayersByTheClosure) {
  // The layers take 1 + 2 and 3 + 4 s and an update of 2 s, 12 s in all; the iteration of 24 s makes that twice as
  // much.
  Graph graph = chain_graph({1, 3}, {2, 4});
  graph.layers[1].update = Timing{2_s, {}, 1};
  graph.iteration = Timing{24_s, {}, 1};
  EXPECT_DOUBLE_EQ(closure_factor(graph), 2);
  EXPECT_DOUBLE_EQ(closure_factor(graph.layers, std::nullopt), 1);
  const Topology topology = flat_topology(2);
  Plan plan = one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 1);
  plan.stages[1].recompute = true;
  const auto costs = stage_costs(graph, topology, BoundPlan(plan));
  ASSERT_EQ(costs.size(), 2U);
  EXPECT_DOUBLE_EQ(costs[0].forward.value, 2);
  EXPECT_DOUBLE_EQ(costs[0].backward.value, 4);
  EXPECT_DOUBLE_EQ(costs[0].update.value, 0);
  EXPECT_DOUBLE_EQ(costs[1].forward.value, 6);
  EXPECT_DOUBLE_EQ(costs[1].backward.value, 8 + 6);
  EXPECT_DOUBLE_EQ(costs[1].update.value, 4);
}

TEST(StageCosts, SumEachSharedParameterOverItsOwnHolders) {
  // Stages 0 and 1 share 1000 B, stages 1 and 2 share 2000 B. A ring of two moves half of it twice:
  // 2 (0.5 + 500 / 1000) = 2 s and 2 (0.5 + 1000 / 1000) = 3 s. Stage 1 waits for both, one after the other.
  Graph graph = chain_graph({1, 1, 1}, {1, 1, 1}, 0_B, 5000_B);
  graph.layers[0].tied = {{"a", 1000_B}};
  graph.layers[1].tied = {{"a", 1000_B}, {"b", 2000_B}};
  graph.layers[2].tied = {{"b", 2000_B}};
  const Topology topology = flat_topology(3, 1000, 0.5);
  const BoundPlan plan(one_layer_a_stage(graph, topology, {1, 1, 1}, "1f1b", 1));
  const auto costs = stage_costs(graph, topology, plan);
  EXPECT_DOUBLE_EQ(costs[0].tied.value, 2);
  EXPECT_DOUBLE_EQ(costs[1].tied.value, 5);
  EXPECT_DOUBLE_EQ(costs[2].tied.value, 3);
  for (const StageCost& cost : costs) EXPECT_EQ(cost.reduce, 0_s);  // nobody else has the rest
  // All three meet: the last backward ends when all is done but the sums of stage 1.
  const auto prediction = std::get<Prediction>(predict(graph, topology, plan));
  EXPECT_NEAR(prediction.stages[1].reduce.value, 5, 1e-12);
}

TEST(StageCosts, SumTheOtherParametersOverTheReplicas) {
  // Two replicas of stage 0 sum 4000 B without the 1000 B that stage 1 has too: 2 (0.5 + 2000 / 1000) = 5 s. The
  // shared ones are summed by three: 4 (0.5 + 1000 / 3000) = 10/3 s.
  Graph graph = chain_graph({1, 1}, {1, 1}, 0_B, 5000_B);
  graph.layers[0].tied = graph.layers[1].tied = {{"a", 1000_B}};
  const Topology topology = flat_topology(3, 1000, 0.5);
  const auto costs = stage_costs(graph, topology, BoundPlan(one_layer_a_stage(graph, topology, {2, 1}, "1f1b", 2)));
  EXPECT_DOUBLE_EQ(costs[0].reduce.value, 5);
  EXPECT_NEAR(costs[0].tied.value, 10.0 / 3, 1e-12);
  EXPECT_DOUBLE_EQ(costs[1].reduce.value, 0);
  EXPECT_NEAR(costs[1].tied.value, 10.0 / 3, 1e-12);
}

TEST(StageCosts, SumAndUpdateATiedParameterOfOneStageOnce) {
  // 5000 B in each of two layers, of which they share 1000 B. Two replicas sum 8000 B: 2 (0.5 + 4000 / 1000) = 9 s, and
  // the shared 1000 B: 2 (0.5 + 500 / 1000) = 2 s. The second layer updates 4/5 of what it holds.
  Graph graph = chain_graph({1, 1}, {1, 1}, 0_B, 5000_B);
  graph.layers[0].tied = graph.layers[1].tied = {{"a", 1000_B}};
  for (Layer& layer : graph.layers) layer.update = Timing{10_s, {}, 1, {}};
  const Topology topology = flat_topology(2, 1000, 0.5);
  Plan plan = make_plan(graph, topology, {{0, 0}, {2}}, {});
  StageCost cost = stage_costs(graph, topology, BoundPlan(plan)).front();
  EXPECT_DOUBLE_EQ(cost.reduce.value, 9);
  EXPECT_DOUBLE_EQ(cost.tied.value, 2);
  EXPECT_DOUBLE_EQ(cost.update.value, 10 + 8);
  plan.gradient_bucket_bytes = Bytes(1000000);
  cost = stage_costs(graph, topology, BoundPlan(plan)).front();
  ASSERT_EQ(cost.buckets.size(), 1U);
  EXPECT_DOUBLE_EQ(cost.buckets[0].time.value, 9) << "in buckets as without";
  EXPECT_DOUBLE_EQ(cost.tied.value, 2);
}

TEST(StageCosts, DivideTheUpdateAmongReplicasThatGatherTheParameters) {
  // By hand, as above. 8000 bytes without "a" make equal parts, the 1000 of "a" belong to rank 1, which updates 5000 of
  // 9000 bytes: 10 of 18 s. Collectives of two ranks take 0.5 s and half the bytes at 1000 B/s: a reduce-scatter of
  // 8000 bytes 4.5 s, one of 1000 bytes 1 s, and the all-gathers as long.
  Graph graph = chain_graph({1, 1}, {1, 1}, 0_B, 5000_B);
  graph.layers[0].tied = graph.layers[1].tied = {{"a", 1000_B}};
  for (Layer& layer : graph.layers) layer.update = Timing{10_s, {}, 1, {}};
  const Topology topology = flat_topology(2, 1000, 0.5);
  Plan plan = make_plan(graph, topology, {{0, 0}, {2}}, {.sharding = StateSharding::Optimizer});
  StageCost cost = stage_costs(graph, topology, BoundPlan(plan)).front();
  EXPECT_DOUBLE_EQ(cost.reduce.value, 4.5);
  EXPECT_DOUBLE_EQ(cost.tied.value, 1);
  EXPECT_DOUBLE_EQ(cost.update.value, 10 + 4.5 + 1);
  plan.gradient_bucket_bytes = Bytes(1000000);
  cost = stage_costs(graph, topology, BoundPlan(plan)).front();
  ASSERT_EQ(cost.buckets.size(), 1U);
  EXPECT_DOUBLE_EQ(cost.buckets[0].time.value, 4.5);
  EXPECT_DOUBLE_EQ(cost.update.value, 10 + 4.5 + 1);
}

TEST(StageCosts, AddTheCopyOfAnUpdateThatKeepsOlderVersions) {
  // Three stages of pipedream: the last updates in place. The optimizer keeps one value per parameter, so an update
  // passes over the parameters five times (2 parameter, 1 gradient, 2 state), a copy twice: 10 s + 4 s.
  Graph graph = chain_graph({1, 1, 1}, {1, 1, 1});
  graph.optimizer_state_values = 1;
  for (Layer& layer : graph.layers) layer.update = Timing{10_s, {}, 1};
  const Topology topology = flat_topology(3);
  const auto updates = [&](const std::string& schedule) {
    std::vector<double> out;
    const BoundPlan plan(one_layer_a_stage(graph, topology, {1, 1, 1}, schedule, 4));
    for (const StageCost& cost : stage_costs(graph, topology, plan)) out.push_back(cost.update.value);
    return out;
  };
  EXPECT_EQ(updates("1f1b"), (std::vector<double>{10, 10, 10}));
  EXPECT_EQ(updates("pipedream"), (std::vector<double>{14, 14, 10}));
  EXPECT_EQ(updates("pipedream-2bw"), (std::vector<double>{14, 14, 14})) << "the step before is always needed";
}

TEST(StageCosts, SpareTheAccumulationOfBackwardsThatCreateGradients) {
  // A backward of 4 s, of which 2 s add to gradients. Of 4 microbatches one creates them: 4 - 2 / 4 = 3.5 s. Two
  // replicas add to one buffer from the first microbatch on; each of pipedream's updates has one gradient.
  Graph graph = chain_graph({1, 1}, {4, 4});
  for (Layer& layer : graph.layers) layer.accumulation = Timing{2_s, {}, 9};
  const Topology topology = flat_topology(3);
  const auto backwards = [&](const std::vector<int>& replicas, const std::string& schedule) {
    std::vector<double> out;
    const BoundPlan plan(one_layer_a_stage(graph, topology, replicas, schedule, 4));
    for (const StageCost& cost : stage_costs(graph, topology, plan)) out.push_back(cost.backward.value);
    return out;
  };
  EXPECT_EQ(backwards({1, 1}, "1f1b"), (std::vector<double>{3.5, 3.5}));
  EXPECT_EQ(backwards({2, 1}, "1f1b"), (std::vector<double>{4, 3.5}));
  EXPECT_EQ(backwards({2, 1}, "pipedream"), (std::vector<double>{2, 2}));
  EXPECT_EQ(backwards({2, 1}, "pipedream-2bw"), (std::vector<double>{3, 3.5})) << "each replica has two of a step";
}

TEST(StageCosts, SpareTheAccumulationOfWeightGradients) {
  // As above. Stage 0 returns no gradient and keeps its backward whole; the parts of stage 1's take 3 and 2 s.
  Graph graph = chain_graph({1, 1}, {4, 4}, 8_B, 8_B);
  for (Layer& layer : graph.layers) {
    layer.accumulation = Timing{2_s, {}, 9};
    layer.backward_parts = BackwardParts{{3_s, {}, 9}, {2_s, {}, 9}};
  }
  const Topology topology = flat_topology(2);
  const BoundPlan plan(one_layer_a_stage(graph, topology, {1, 1}, "zb-h1", 4));
  const auto costs = stage_costs(graph, topology, plan);
  EXPECT_DOUBLE_EQ(costs[0].backward.value, 3.5);
  EXPECT_DOUBLE_EQ(costs[0].weight_gradient.value, 0);
  EXPECT_DOUBLE_EQ(costs[1].backward.value, 3);
  EXPECT_DOUBLE_EQ(costs[1].weight_gradient.value, 1.5);
  EXPECT_DOUBLE_EQ(costs[1].whole_backward.value().value, 3.5);
}

TEST(StageCosts, DivideNoGradientThatIsUpdatedAlone) {
  // Without optimizer state, an update passes five times over the parameters, and without division four times. The copy
  // of stage 0 is two thirds of the measured update.
  Graph graph = chain_graph({1, 1}, {4, 4});
  for (Layer& layer : graph.layers) {
    layer.accumulation = Timing{2_s, {}, 9};
    layer.update = Timing{15_s, {}, 9};
  }
  const Topology topology = flat_topology(3);
  const auto updates = [&](const std::vector<int>& replicas) {
    std::vector<double> out;
    const BoundPlan plan(one_layer_a_stage(graph, topology, replicas, "pipedream", 4));
    for (const StageCost& cost : stage_costs(graph, topology, plan)) out.push_back(cost.update.value);
    return out;
  };
  EXPECT_EQ(updates({1, 1}), (std::vector<double>{12 + 10, 12}));
  EXPECT_EQ(updates({1, 2}), (std::vector<double>{12 + 10, 15})) << "the mean of two gradients";
}

TEST(StageCosts, SlowAStageThatHoldsManyMicrobatches) {
  // Each layer saves half of what the model does. Four microbatches of the model take 1.3 times as long.
  Graph graph = chain_graph({1, 1}, {2, 2}, 100_B);
  graph.in_flight_slowdown = InFlightSlowdown{4, 1.3};
  const Topology topology = flat_topology(2);
  const auto forwards = [&](const std::string& schedule, int microbatches, bool recompute = false) {
    Plan plan = one_layer_a_stage(graph, topology, {1, 1}, schedule, microbatches);
    plan.stages[0].recompute = recompute;
    std::vector<double> out;
    for (const StageCost& cost : stage_costs(graph, topology, BoundPlan(plan))) out.push_back(cost.forward.value);
    return out;
  };
  EXPECT_EQ(forwards("gpipe", 8), (std::vector<double>{1.3, 1.3})) << "half of eight are four models";
  EXPECT_EQ(forwards("gpipe", 100), (std::vector<double>{1.3, 1.3})) << "and more are not slower";
  const std::vector<double> two_models = forwards("gpipe", 4);
  EXPECT_NEAR(two_models[0], 1 + 0.3 / 3, 1e-12) << "a third of the way from one model to four";
  EXPECT_EQ(forwards("1f1b", 8), (std::vector<double>{1, 1})) << "stage 0 holds two halves, one model";
  EXPECT_EQ(forwards("gpipe", 8, true), (std::vector<double>{1, 1.3})) << "it keeps no activations";
}

TEST(StageCosts, SlowARankWhoseStagesTogetherHoldManyMicrobatches) {
  // Each layer saves a quarter of what the model does; four microbatches of the model take 1.3 times as long. Of
  // interleaved-1f1b with two positions and two chunks, the first rank runs 2 (2 - 1) + 2 forwards before its first
  // backward, the second 2; with the next forward they hold 5 and 3 quarters of a model.
  Graph graph = chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}, 100_B);
  graph.in_flight_slowdown = InFlightSlowdown{4, 1.3};
  const Topology topology = flat_topology(2);
  Plan plan = one_layer_a_stage(graph, flat_topology(4), {1, 1, 1, 1}, "interleaved-1f1b", 4);
  plan.chunks = 2;
  for (std::size_t stage = 0; stage < 4; ++stage) plan.stages[stage].devices = {to_int(stage % 2)};
  const std::vector<StageCost> costs = stage_costs(graph, topology, BoundPlan(plan));
  const double first = 1 + 0.3 * (5.0 / 4 - 1) / 3;
  EXPECT_DOUBLE_EQ(costs[0].forward.value, first);
  EXPECT_DOUBLE_EQ(costs[2].backward.value, 2 * first);
  EXPECT_EQ(costs[1].forward.value, 1);
  EXPECT_EQ(costs[3].forward.value, 1);
}

}  // namespace

}  // namespace stagecraft
