#include "partitioner/choices/improve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "partitioner/candidate.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::ElementsAre;
using ::testing::Le;

Constraints of_microbatches(int microbatches) {
  Constraints out;
  out.plan.microbatches = microbatches;
  out.plan.schedule = "gpipe";
  return out;
}

RankedPlan improve(const Graph& graph, const Topology& topology, const Partition& partition,
                   const Constraints& constraints, const ImproveOptions& options = {}) {
  return improved_plan("test", graph, topology, simulated_costs(), constraints,
                       given_candidate(graph, partition, {}, {}, {}), options);
}

std::vector<std::size_t> layers_of(const Plan& plan) {
  std::vector<std::size_t> out;
  for (const Stage& stage : plan.stages) out.push_back(stage.layers.size());
  return out;
}

// Four layers of 3 s, four microbatches, two stages as asked: 1 + 3 layers take (3 + 4 * 9) = 39 s, 2 + 2 (4 + 1) * 6.
TEST(ImprovedPlan, MovesLayersBetweenNeighbours) {
  const Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2});
  Constraints two = of_microbatches(4);
  two.stages = 2;
  two.replicas = {1, 1};
  const Partition lopsided{{0, 1, 1, 1}, {1, 1}};
  const RankedPlan found = improve(graph, testing::flat_topology(2), lopsided, two);
  EXPECT_DOUBLE_EQ(found.prediction.iteration.value, 30);
  EXPECT_THAT(layers_of(found.plan), ElementsAre(2, 2));
  EXPECT_TRUE(found.prediction.timeline.spans.empty());
}

// The same on as many stages and replicas as are best: all layers on both devices, 2 * 12 s.
TEST(ImprovedPlan, JoinsStagesAndAddsReplicas) {
  const Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2});
  const RankedPlan found = improve(graph, testing::flat_topology(2), {{0, 1, 1, 1}, {1, 1}}, of_microbatches(4));
  EXPECT_DOUBLE_EQ(found.prediction.iteration.value, 24);
  EXPECT_EQ(found.plan.stages.size(), 1U);
}

// Stages of 6 and 3 s that stay, four microbatches, three devices: two replicas of the first take 2 * 6 s of work.
TEST(ImprovedPlan, KeepsGivenStagesAndAddsReplicas) {
  const Graph graph = testing::chain_graph({2, 1}, {4, 2});
  ImproveOptions options;
  options.layers = false;
  const RankedPlan found = improve(graph, testing::flat_topology(3), {{0, 1}, {1, 1}}, of_microbatches(4), options);
  EXPECT_THAT(layers_of(found.plan), ElementsAre(1, 1));
  EXPECT_EQ(found.plan.stages[0].devices.size(), 2U);
  EXPECT_EQ(found.plan.stages[1].devices.size(), 1U);
}

TEST(ImprovedPlan, KeepsLayersWhereTheUserWantsThem) {
  const Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2});
  Constraints two = of_microbatches(4);
  two.stages = 2;
  two.replicas = {1, 1};
  ImproveOptions options;
  options.hand = stage_constraints(graph, {}, {"l1..l3"});
  EXPECT_THAT(layers_of(improve(graph, testing::flat_topology(2), {{0, 1, 1, 1}, {1, 1}}, two, options).plan),
              ElementsAre(1, 3));
  options.hand = stage_constraints(graph, {"l1=1"}, {});
  EXPECT_THAT(layers_of(improve(graph, testing::flat_topology(2), {{0, 1, 1, 1}, {1, 1}}, two, options).plan),
              ElementsAre(1, 3));
}

// What does not fit gets smaller first: three layers that save 100 B each, four microbatches, 850 B: two of them need
// 800 B, three 1200 B.
TEST(ImprovedPlan, MakesAPlanFit) {
  Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2});
  for (Layer& layer : graph.layers) {
    layer.saved_bytes = 100_B;
    layer.workspace_bytes = 0_B;
  }
  Constraints two = of_microbatches(4);
  two.stages = 2;
  two.replicas = {1, 1};
  two.memory_limit = 850_B;
  const RankedPlan found = improve(graph, testing::flat_topology(2), {{0, 1, 1, 1}, {1, 1}}, two);
  EXPECT_TRUE(found.fits);
  EXPECT_THAT(layers_of(found.plan), ElementsAre(2, 2));
}

/// Two layers of 1 + 2 s, of which a microbatch saves 300 and 100 B, each in a stage of its own.
Graph uneven_memory() {
  Graph graph = testing::chain_graph({1, 1}, {2, 2});
  for (Layer& layer : graph.layers) layer.workspace_bytes = 0_B;
  graph.layers[0].saved_bytes = 300_B;
  graph.layers[1].saved_bytes = 100_B;
  return graph;
}

// Under gpipe all four microbatches are saved: 1200 and 400 B. Their forwards end after 4 and 5 s. Backwards of the
// second stage then end at 7, 9, 11 and 13 s, and those of the first, of 3 s with recomputation, at 10, 13, 16 and 19
// s. If the second recomputes too, at 20 s; if neither does, at 15 s.
TEST(ImprovedPlan, RecomputesOnlyWhereMemoryIsShort) {
  Constraints constraints = of_microbatches(4);
  constraints.stages = 2;
  constraints.replicas = {1, 1};
  ImproveOptions options;
  options.layers = false;
  options.recomputation = true;
  for (const bool recompute : {false, true}) {
    constraints.plan.recompute = recompute;
    constraints.memory_limit = 700_B;
    const RankedPlan tight =
        improve(uneven_memory(), testing::flat_topology(2), {{0, 1}, {1, 1}}, constraints, options);
    EXPECT_TRUE(tight.fits);
    EXPECT_DOUBLE_EQ(tight.prediction.iteration.value, 19);
    EXPECT_TRUE(tight.plan.stages[0].recompute);
    EXPECT_FALSE(tight.plan.stages[1].recompute);
    constraints.memory_limit.reset();
    const RankedPlan ample =
        improve(uneven_memory(), testing::flat_topology(2), {{0, 1}, {1, 1}}, constraints, options);
    EXPECT_DOUBLE_EQ(ample.prediction.iteration.value, 15);
    options.recomputation = false;
    const RankedPlan kept = improve(uneven_memory(), testing::flat_topology(2), {{0, 1}, {1, 1}}, constraints, options);
    EXPECT_DOUBLE_EQ(kept.prediction.iteration.value, recompute ? 20 : 15);
    options.recomputation = true;
  }
}

/// With stages and replicas that stay: no better than the best of all ways to recompute, no worse than the best where
/// all stages recompute alike.
TEST(ImprovedPlan, IsBetweenTheBestRecomputationAndTheBestUniformOne) {
  const CostModel costs = simulated_costs();
  const StageRecomputation ways[] = {{}, {true, 0}, {true, 1}};
  int mixed = 0;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
    std::vector<double> times;
    for (int i = 0; i < 6; ++i) times.push_back(1 + up_to(8));
    Graph graph = testing::chain_graph(times, times, 10_B);
    for (Layer& layer : graph.layers) layer.saved_bytes = Bytes(10 + up_to(990));
    const Topology topology = testing::flat_topology(3, 1000);
    Constraints constraints = of_microbatches(1 + up_to(4));
    if (up_to(1) == 0) constraints.plan.schedule = "1f1b";
    constraints.stages = 3;
    constraints.replicas = {1, 1, 1};
    constraints.memory_limit = Bytes(500 + up_to(3000));
    Candidate candidate = given_candidate(graph, {{0, 0, 1, 1, 2, 2}, {1, 1, 1}}, {}, {}, {});
    std::optional<Seconds> best;
    std::optional<Seconds> uniform;
    for (int code = 0; code < 27; ++code) {
      candidate.recomputation = {ways[code % 3], ways[code / 3 % 3], ways[code / 9]};
      const RankedPlan ranked = predicted_plan("any", graph, topology, candidate, costs, constraints);
      if (!ranked.fits) continue;
      best = std::min(best.value_or(ranked.prediction.iteration), ranked.prediction.iteration);
      if (code % 13 == 0)
        uniform = std::min(uniform.value_or(ranked.prediction.iteration), ranked.prediction.iteration);
    }
    candidate.recomputation.clear();
    ImproveOptions options;
    options.layers = false;
    options.recomputation = true;
    const RankedPlan found = improved_plan("test", graph, topology, costs, constraints, candidate, options);
    validate(found.plan, graph, topology);
    ASSERT_TRUE(best || !found.fits);
    if (uniform) {
      ASSERT_TRUE(found.fits);
      EXPECT_LE(found.prediction.iteration.value, uniform->value * (1 + 1e-9));
    }
    if (found.fits) { EXPECT_GE(found.prediction.iteration.value, best->value * (1 - 1e-9)); }
    const auto& stages = found.plan.stages;
    mixed += found.fits && (stages[0].recompute != stages[1].recompute || stages[1].recompute != stages[2].recompute);
  }
  EXPECT_GT(mixed, 50);
}

TEST(ImprovedPlan, ImprovesTheRequestedObjective) {
  const Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2});
  ImproveOptions cost;
  cost.goal.objective = Objective::Cost;
  // Two stages: 2 * 30 s of devices; one device or two replicas: 48 s, of which the replicas' step is shorter.
  const RankedPlan found = improve(graph, testing::flat_topology(2), {{0, 0, 1, 1}, {1, 1}}, of_microbatches(4), cost);
  EXPECT_DOUBLE_EQ(device_time(merits(found)).value, 48);
}

// On random chains: never worse than the start, valid, and a second time nothing changes.
TEST(ImprovedPlan, IsNeverWorseAndStays) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    std::mt19937 random(seed);
    std::vector<double> times;
    const int layers = 3 + static_cast<int>(random() % 5);
    for (int i = 0; i < layers; ++i) times.push_back(1 + static_cast<double>(random() % 9));
    const Graph graph = testing::chain_graph(times, times, Bytes(static_cast<std::int64_t>(random() % 900)));
    Topology topology = testing::flat_topology(2, 1000);
    topology.levels.push_back({"cluster", 2, {BytesPerSecond(100), 0_s, {}, {}}});
    Partition partition;
    partition.replicas = {1, 1};
    const int cut = 1 + static_cast<int>(random() % static_cast<unsigned>(layers - 1));
    for (int i = 0; i < layers; ++i) partition.stage_of_layer.push_back(i < cut ? 0 : 1);
    const Constraints constraints = of_microbatches(4);
    const Candidate start = given_candidate(graph, partition, {}, {}, {});
    const RankedPlan before = predicted_plan("test", graph, topology, start, simulated_costs(), constraints);
    const RankedPlan once = improved_plan("test", graph, topology, simulated_costs(), constraints, start, {});
    EXPECT_THAT(once.prediction.iteration.value, Le(before.prediction.iteration.value)) << "seed " << seed;
    validate(once.plan, graph, topology);
    std::vector<std::vector<int>> devices;
    for (const Stage& stage : once.plan.stages) devices.push_back(stage.devices);
    const Candidate again = given_candidate(graph, partition_of(graph, once.plan), devices, {}, {});
    EXPECT_DOUBLE_EQ(
        improved_plan("test", graph, topology, simulated_costs(), constraints, again, {}).prediction.iteration.value,
        once.prediction.iteration.value)
        << "seed " << seed;
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
