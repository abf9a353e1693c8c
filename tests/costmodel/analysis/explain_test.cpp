#include "costmodel/analysis/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "costmodel/index.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using testing::flat_topology;
using testing::one_layer_a_stage;

Explanation explained(const Graph& graph, const Topology& topology, const Plan& plan,
                      const ExplainOptions& options = {}) {
  return std::get<Explanation>(explain(graph, topology, BoundPlan(plan), options));
}

/// The plan with layer i in stage stages[i], one device each.
Plan in_stages(const Graph& graph, const Topology& topology, const std::vector<int>& stages, int microbatches,
               const std::string& schedule = "1f1b") {
  Partition partition{stages, std::vector<int>(to_index(stages.back() + 1), 1)};
  return make_plan(graph, topology, partition, {.microbatches = microbatches, .schedule = schedule});
}

// Three layers of 3 s each (F 1, B 2), two of them in stage 0, no transfers, one microbatch: F 2 + 1, B 2 + 4: 9 s.
// Rank 0 computes 6 and waits 3, rank 1 computes 3 and waits 6. The mean: 4.5 s of each.
TEST(Explain, SplitsTheStepIntoParts) {
  const Graph graph = chain_graph({1, 1, 1}, {2, 2, 2});
  const Topology topology = flat_topology(2);
  const Explanation e = explained(graph, topology, in_stages(graph, topology, {0, 0, 1}, 1));
  EXPECT_EQ(e.prediction.iteration, Seconds(9));
  EXPECT_EQ(e.parts, (StepParts{.compute = Seconds(4.5), .bubble = Seconds(4.5)}));
  EXPECT_EQ(e.positions[0].parts, (StepParts{.compute = Seconds(6), .bubble = Seconds(3)}));
  EXPECT_EQ(e.positions[1].parts, (StepParts{.compute = Seconds(3), .bubble = Seconds(6)}));
  EXPECT_EQ(e.bottleneck, 0);
  EXPECT_DOUBLE_EQ(e.imbalance, 6 / 4.5 - 1);
}

// Two stages of one device each on four, then three replicas of one stage with two microbatches.
TEST(Explain, NamesIdleDevicesAndTheirReason) {
  const Graph graph = chain_graph({1, 1}, {2, 2});
  const Topology topology = flat_topology(4);
  const Explanation unused = explained(graph, topology, in_stages(graph, topology, {0, 1}, 2));
  EXPECT_THAT(explanation_text(unused, 100),
              ::testing::HasSubstr("\n2 of 4 devices are idle: 2,3 are not in any stage\n"));
  const Plan plan = make_plan(graph, topology, Partition{{0, 0}, {3}}, {.microbatches = 2, .schedule = "1f1b"});
  EXPECT_THAT(explanation_text(explained(graph, flat_topology(3), plan), 100),
              ::testing::HasSubstr("\n1 of 3 devices is idle: 2 has no microbatch\n"));
}

// Host time of 0.5 s per action: four computations and two updates. Rank 0 runs F, B and an update of nothing: 1.5 s of
// host time beside 6 s.
TEST(Explain, CountsHostTimeSeparately) {
  const Graph graph = chain_graph({1, 1, 1}, {2, 2, 2});
  const Topology topology = flat_topology(2);
  ExplainOptions options;
  options.predict.host_per_action = Seconds(0.5);
  const Explanation e = explained(graph, topology, in_stages(graph, topology, {0, 0, 1}, 1), options);
  EXPECT_NEAR(e.positions[0].parts.host.value, 1.5, 1e-12);
  EXPECT_NEAR(e.positions[0].parts.compute.value, 6, 1e-12);
  EXPECT_NEAR(e.positions[0].parts.update.value, 0, 1e-12);
}

// Two layers of F 1 and B 2 on two devices, the third on one; two microbatches. Ranks 0 and 1 run F 0-2, rank 2 F 2-3,
// B 3-5, F 5-6, B 6-8, and ranks 0 and 1 run B 5-9 and 8-12: each computes 6 of 12 s, whatever the number of replicas.
TEST(MeanParts, CountsEachReplica) {
  const Graph graph = chain_graph({1, 1, 1}, {2, 2, 2});
  const Topology topology = flat_topology(3);
  const Plan plan = make_plan(graph, topology, {{0, 0, 1}, {2, 1}}, {.microbatches = 2, .schedule = "1f1b"});
  EXPECT_EQ(mean_parts(explained(graph, topology, plan).prediction),
            (StepParts{.compute = Seconds(6), .bubble = Seconds(6)}));
  // One microbatch: rank 0 or 1 has none, ranks compute 6, 0 and 3 of 9 s.
  const Plan one = make_plan(graph, topology, {{0, 0, 1}, {2, 1}}, {.microbatches = 1, .schedule = "1f1b"});
  EXPECT_EQ(mean_parts(explained(graph, topology, one).prediction),
            (StepParts{.compute = Seconds(3), .bubble = Seconds(6)}));
}

// Four stages on two devices, host time and slow links: the idle time of a device counts once.
TEST(MeanParts, AreThoseOfExplainWithHostTimeInTheComputations) {
  const Graph graph = chain_graph({1, 1, 1, 1}, {2, 2, 2, 2});
  const Topology topology = flat_topology(2);
  const Plan plan = make_plan(graph, topology, {{0, 1, 2, 3}, {1, 1, 1, 1}},
                              {.microbatches = 4, .schedule = "interleaved-1f1b", .chunks = 2});
  ExplainOptions options;
  options.predict.host_per_action = Seconds(0.5);
  options.moves = false;
  const Explanation e = explained(graph, topology, plan, options);
  const StepParts parts = mean_parts(e.prediction);
  EXPECT_EQ(parts.host, Seconds(0));
  EXPECT_NEAR(total(parts).value, e.prediction.iteration.value, 1e-12);
  EXPECT_NEAR((parts.compute + parts.update).value, (e.parts.compute + e.parts.host + e.parts.update).value, 1e-12);
  EXPECT_NEAR(parts.bubble.value, e.parts.bubble.value, 1e-12);
  EXPECT_GT(e.parts.host, Seconds(0));
}

// Both ranks on one host whose processors make two of them twice as slow. gpipe, two stages of one layer, F 1 and B 0.5
// x 2 with two microbatches: wherever both compute, half of their time is the host's.
TEST(Explain, CountsTheSlowdownOfASharedHostAsHostTime) {
  Graph graph = chain_graph({1, 1}, {1, 1});
  graph.slowdown = {1, 2};
  const Topology topology = flat_topology(2);
  const Explanation e = explained(graph, topology, in_stages(graph, topology, {0, 1}, 2, "gpipe"));
  // F0 0-1 alone; rank 0's F1 and rank 1's F0 together 1-3; rank 1's F1 3-4, B0 4-5; B1 of rank 1 and B0 of rank 0
  // 5-7; B1 of rank 0 7-8.
  EXPECT_EQ(e.prediction.iteration, Seconds(8));
  EXPECT_EQ(e.positions[0].parts, (StepParts{.compute = Seconds(4), .host = Seconds(2), .bubble = Seconds(2)}));
  EXPECT_EQ(e.positions[1].parts, (StepParts{.compute = Seconds(4), .host = Seconds(2), .bubble = Seconds(2)}));
}

// Four layers of 3 s, three of them in stage 0, 1f1b with many microbatches: the slowest stage takes 9 s per
// microbatch; moving one layer over the border balances both at 6 s.
TEST(Explain, FindsTheBestMove) {
  const Graph graph = chain_graph({1, 1, 1, 1}, {2, 2, 2, 2});
  const Topology topology = flat_topology(2);
  const Explanation e = explained(graph, topology, in_stages(graph, topology, {0, 0, 0, 1}, 8));
  ASSERT_TRUE(e.best_move);
  EXPECT_EQ(e.moves, 1) << "stage 1 would lose its only layer";
  // (M + p - 1)(F + B) of equal stages, closed_forms.h: 9 * 6.
  EXPECT_EQ(*e.best_move, (LayerMove{"l2", 0, 1, Seconds(54)}));
  const Explanation balanced = explained(graph, topology, in_stages(graph, topology, {0, 0, 1, 1}, 8));
  EXPECT_EQ(balanced.moves, 2);
  EXPECT_GT(balanced.best_move->step, balanced.prediction.iteration);
  EXPECT_THAT(explanation_text(balanced, 100), ::testing::HasSubstr("none of the 2 single moves of a layer is faster"));
  ExplainOptions none;
  none.moves = false;
  EXPECT_FALSE(explained(graph, topology, in_stages(graph, topology, {0, 0, 0, 1}, 8), none).best_move);
}

// The move of a layer to stage 1 would be faster, but its parameters do not fit there.
TEST(Explain, MovesOnlyWhatFits) {
  Graph graph = chain_graph({1, 1, 1}, {2, 2, 2});
  graph.layers[1].parameter_bytes = Bytes(1000);  // and as many gradients
  graph.layers[2].parameter_bytes = Bytes(1000);
  Topology topology = flat_topology(2);
  topology.device.memory = Bytes(3000);
  const Explanation e = explained(graph, topology, in_stages(graph, topology, {0, 0, 1}, 4));
  EXPECT_EQ(e.moves, 1);
  EXPECT_FALSE(e.best_move);
  EXPECT_EQ(e.memory[1].room, Bytes(1000));
}

// Random plans: the parts add up to the step, no single move by hand beats the best one.
TEST(Explain, AddsUpAndFindsTheBestOfAllMoves) {
  for (unsigned seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](unsigned count) { return static_cast<int>(random() % count); };
    std::vector<double> forward;
    std::vector<double> backward;
    std::vector<int> stages;
    const int layers = 3 + below(5);
    for (int i = 0; i < layers; ++i) {
      forward.push_back(0.1 + below(100));
      backward.push_back(0.1 + below(100));
      stages.push_back(i == 0 ? 0 : stages.back() + below(2));
    }
    const std::vector<std::string> schedules{"1f1b", "gpipe", "zb-h1", "pipedream", "forward"};
    const std::string& schedule = schedules[to_index(below(5))];
    Graph graph = chain_graph(forward, backward, Bytes(100), Bytes(400));
    if (below(2) == 0) graph.slowdown = {1, 1.3, 1.9};
    const Topology topology = flat_topology(stages.back() + 1, 100);
    const int microbatches = 1 + below(8);
    const Explanation e = explained(graph, topology, in_stages(graph, topology, stages, microbatches, schedule));
    const Seconds step = e.prediction.iteration;
    EXPECT_NEAR(total(e.parts).value, step.value, 1e-9 * step.value);
    for (const PositionParts& of : e.positions) EXPECT_NEAR(total(of.parts).value, step.value, 1e-9 * step.value);
    const double length = (e.path.back().end - e.path.front().start).value;
    EXPECT_NEAR(length, step.value * e.steps, 1e-9 * length);
    double shares = 0;
    for (const PathShare& share : e.path_shares) shares += share.time.value;
    EXPECT_NEAR(shares, length, 1e-9 * length);

    // In a chain only the layers beside a border can move.
    std::optional<Seconds> best;
    for (int i = 0; i + 1 < layers; ++i) {
      if (stages[to_index(i)] == stages[to_index(i + 1)]) continue;
      for (const int moved : {i, i + 1}) {
        std::vector<int> other = stages;
        other[to_index(moved)] = moved == i ? stages[to_index(i + 1)] : stages[to_index(i)];
        if (std::count(stages.begin(), stages.end(), stages[to_index(moved)]) == 1) continue;
        const Seconds time =
            std::get<Prediction>(
                predict(graph, topology, BoundPlan(in_stages(graph, topology, other, microbatches, schedule))))
                .iteration;
        best = best ? std::min(*best, time) : time;
      }
    }
    ASSERT_EQ(e.best_move.has_value(), best.has_value());
    if (best) { EXPECT_NEAR(e.best_move->step.value, best->value, 1e-9 * best->value); }
  }
}

// A step that is too long to be replayed in full has parts but no path.
TEST(Explain, OfALongStepHasNoPath) {
  const Graph graph = chain_graph({1, 1}, {2, 2});
  const Topology topology = flat_topology(2);
  ExplainOptions options;
  options.predict.most_whole = options.predict.most_replayed = 300;
  const Explanation e = explained(graph, topology, in_stages(graph, topology, {0, 1}, 1000), options);
  EXPECT_GT(e.prediction.reckoned_microbatches, 0);
  EXPECT_TRUE(e.path.empty());
  EXPECT_NEAR(total(e.parts).value, 3003, 1e-9 * 3003);  // (M + p - 1)(F + B)
  EXPECT_THAT(explanation_text(e, 80), ::testing::HasSubstr("critical path: not searched"));
}

}  // namespace
}  // namespace stagecraft
