#include "costmodel/prediction/transfer_costs.h"

#include <gtest/gtest.h>

#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using testing::flat_topology;
using testing::one_layer_a_stage;

/// Stage 0 sends stage 1 tensors of 1000 and 500 B; the second has no gradient.
Plan two_tensors(const Topology& topology) {
  Graph graph = chain_graph({1, 1}, {1, 1}, 1000_B);
  graph.layers[0].outputs.push_back({500_B, {}, "", false});
  graph.edges.push_back({0, 1, 1});
  return one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 1);
}

TEST(TransferCosts, AddUpTensorByTensor) {
  // 0.5 s + 1000 B at 1000 B/s and 0.5 s + 500 B at 1000 B/s.
  const Topology topology = flat_topology(2, 1000, 0.5);
  const BoundPlan plan(two_tensors(topology));
  const TransferCosts costs(plan, topology, true, false);
  EXPECT_DOUBLE_EQ(costs(0, false, 0, 1).latency.value, 1);
  EXPECT_DOUBLE_EQ(costs(0, false, 0, 1).transmission.value, 1.5);
  EXPECT_DOUBLE_EQ(costs(0, true, 1, 0).latency.value, 0.5);
  EXPECT_DOUBLE_EQ(costs(0, true, 1, 0).transmission.value, 1);
  const TransferCosts free(plan, topology, true, true);
  EXPECT_EQ(free(0, false, 0, 1).latency + free(0, false, 0, 1).transmission, 0_s);
}

TEST(TransferCosts, HaveNoLatencyBeyondAMeasuredTime) {
  // Measured 0.25 s for 1000 B or less, although the link states a latency of 0.5 s.
  Topology topology = flat_topology(2, 1000, 0.5);
  topology.levels[0].link.send_receive.points = {{1000_B, 0.25_s}};
  const TransferCosts costs(BoundPlan(two_tensors(topology)), topology, true, false);
  EXPECT_DOUBLE_EQ(costs(0, true, 1, 0).latency.value, 0.25);
  EXPECT_DOUBLE_EQ(costs(0, true, 1, 0).transmission.value, 0);
}

TEST(TransferCosts, HaveTwoPortsForEachGroupOfALevel) {
  // Devices 0 and 1 on one server, 2 and 3 on another: ports 0 to 7 of the devices, 8 to 11 of the servers.
  Topology topology = flat_topology(2, 1000);
  topology.levels.push_back({"rack", 2, Link{BytesPerSecond(100), 0_s, {}, {}}});
  const Graph graph = chain_graph({1, 1, 1}, {1, 1, 1}, 1000_B);
  const BoundPlan plan(one_layer_a_stage(graph, topology, {1, 1, 1}, "1f1b", 1));
  const TransferCosts costs(plan, topology, false, false);
  EXPECT_EQ(costs.ports(), 12);
  const Transfer inside = costs(0, false, 0, 1);
  EXPECT_EQ(inside.egress, 0);
  EXPECT_EQ(inside.ingress, 3);
  EXPECT_DOUBLE_EQ(inside.transmission.value, 1);
  const Transfer across = costs(1, false, 1, 2);
  EXPECT_EQ(across.egress, 8);
  EXPECT_EQ(across.ingress, 11);
  EXPECT_DOUBLE_EQ(across.transmission.value, 10);
}

TEST(TransferCosts, KnowTheHostOfEachRank) {
  Topology topology = flat_topology(2);
  topology.levels.push_back({"rack", 2, topology.levels.front().link});
  const Graph graph = chain_graph({1, 1, 1}, {1, 1, 1});
  const BoundPlan plan(one_layer_a_stage(graph, topology, {1, 1, 1}, "1f1b", 1));
  EXPECT_EQ(hosts_of(plan, topology), (std::vector<int>{0, 0, 1}));
}

}  // namespace
}  // namespace stagecraft
