#include "partitioner/cost_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "costmodel/bound_plan.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

// Two stages of one layer with 40 bytes of parameters and 8 of output, one microbatch. In the backward both hold
// parameters, their output and a workspace of 8, as it is unknown, and gradients of 40 where 8 + 8 were; besides, the
// first holds a gradient and the second the value that it received. The bound adds 2 %, the message twice, and 39 % of
// activations and workspace, 16 and 24.
TEST(SimulatedCosts, FindTheStageThatNeedsTheMost) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2}, 8_B, 40_B);
  const Plan plan = testing::one_layer_a_stage(graph, testing::flat_topology(2), {1, 1}, "gpipe", 1);
  const BoundPlan bound(plan);
  const auto predicted = predict(graph, testing::flat_topology(2), bound);
  const auto& stages = std::get<Prediction>(predicted).stages;
  EXPECT_EQ(stages[0].memory.total, 88_B);
  EXPECT_EQ(stages[0].memory_bound, 112_B);
  EXPECT_EQ(stages[1].memory.total, 88_B);
  EXPECT_EQ(stages[1].memory_bound, 115_B);
  const PlanMemory memory = simulated_costs().memory(graph, testing::flat_topology(2), bound);
  ASSERT_EQ(memory.stages.size(), 2U);
  EXPECT_EQ(memory.stages[0].memory.total, 88_B);
  EXPECT_EQ(memory.stages[0].bound, 112_B);
  EXPECT_EQ(memory.stages[1].memory.total, 88_B);
  EXPECT_EQ(memory.stages[1].bound, 115_B);
  EXPECT_EQ(memory.peak, 115_B);
}

/// A chain and a plan for it on up to eight devices.
struct Case {
  Graph graph;
  Topology topology;
  Plan plan;
};

Case random_case(std::mt19937& random) {
  const std::vector<std::string> schedules{"gpipe", "1f1b", "pipedream", "forward"};
  const int layers = 1 + static_cast<int>(random() % 5);
  std::vector<double> forward;
  std::vector<double> backward;
  for (int i = 0; i < layers; ++i) {
    forward.push_back(static_cast<double>(1 + random() % 5));
    backward.push_back(static_cast<double>(1 + random() % 9));
  }
  Case out;
  out.graph = testing::chain_graph(forward, backward, Bytes(8));
  for (Layer& layer : out.graph.layers) {
    layer.parameter_bytes = Bytes(4 * static_cast<std::int64_t>(random() % 100));
    layer.outputs[0].bytes = Bytes(8 * static_cast<std::int64_t>(1 + random() % 100));
    if (random() % 2 == 0) layer.saved_bytes = Bytes(static_cast<std::int64_t>(random() % 1000));
    if (random() % 2 == 0) layer.workspace_bytes = Bytes(static_cast<std::int64_t>(random() % 1000));
  }
  out.topology = testing::flat_topology(8);
  PlanSettings settings;
  settings.schedule = schedules[random() % schedules.size()];
  settings.microbatches = 1 + static_cast<int>(random() % 6);
  settings.recompute = random() % 3 == 0;
  if (settings.recompute) settings.recompute_every = static_cast<int>(random() % 3);
  Partition partition;
  int left = 8;
  for (int i = 0; i < layers; ++i) {
    if (i == 0 || random() % 2 == 0) {
      const int replicas = left > layers - i ? 1 + static_cast<int>(random() % 2) : 1;
      partition.replicas.push_back(replicas);
      left -= replicas;
    }
    partition.stage_of_layer.push_back(static_cast<int>(partition.replicas.size()) - 1);
  }
  out.plan = make_plan(out.graph, out.topology, partition, settings);
  return out;
}

// The memory computed without times equals that of a prediction, on processors and on GPUs, which need more.
TEST(SimulatedCosts, MemoryIsThatOfThePrediction) {
  const CostModel costs = simulated_costs();
  for (unsigned seed = 1; seed <= 150; ++seed) {
    std::mt19937 random(seed);
    Case one = random_case(random);
    if (seed % 2 == 0) one.topology.device.kind = DeviceKind::Gpu;
    const BoundPlan plan(one.plan);
    const auto predicted = costs.predict(one.graph, one.topology, plan);
    const PlanMemory memory = costs.memory(one.graph, one.topology, plan);
    const auto& stages = std::get<Prediction>(predicted).stages;
    ASSERT_EQ(memory.stages.size(), stages.size()) << "seed " << seed;
    Bytes most;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      EXPECT_EQ(memory.stages[s], (StageMemory{stages[s].memory, stages[s].memory_bound})) << "seed " << seed;
      most = std::max(most, stages[s].memory_bound);
    }
    EXPECT_EQ(memory.peak, most) << "seed " << seed << " " << one.plan.schedule;
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
