#include "partitioner/bounds/trip_bound.h"

#include <gtest/gtest.h>

#include <random>

#include "costmodel/index.h"
#include "partitioner/candidate.h"
#include "partitioner/cost_model.h"
#include "tests/partitioner/bounds/bounds.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

/// Two layers of 1 + 2 s, messages of 1 s each way, 4 microbatches, no use in replicas (10 GB of parameters at 1 GB/s).
/// One stage: 4 (3 + 3) = 24 s. Two stages hold 2 and 1 microbatches at once: the first needs two round trips of
/// 3 + 2 + 3 s and 3 s for the microbatch between them, 19 s; the second 1 + 1 + 4 * 3 + 1 + 2 = 17 s.
TEST(TripBound, CountsMessagesAndRoundTrips) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2}, Bytes(1'000'000'000), Bytes(10'000'000'000));
  const PipelineCosts costs(graph, testing::flat_topology(2), settings_of("1f1b", 4));
  const auto bound = TripBound::of(costs, {}, 100);
  EXPECT_EQ(bound->refutes(Seconds(18.99), 2, kNoStop), true);
  EXPECT_EQ(bound->refutes(Seconds(19), 2, kNoStop), false);
  ASSERT_EQ(bound->splits().size(), 1U);
  EXPECT_EQ(bound->splits().front(), (Split{{0, 1}, {1, 1}}));
  EXPECT_EQ(bound->refutes(Seconds(23.99), 1, kNoStop), true);
  EXPECT_EQ(bound->refutes(Seconds(24), 1, kNoStop), false);
}

/// With messages of 5 s the round trips count: two of 3 + 10 + 3 s and 3 s are 35 s, above 24 s on one device.
TEST(TripBound, LimitsWhatIsInFlight) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2}, Bytes(5'000'000'000), Bytes(100'000'000'000));
  const PipelineCosts costs(graph, testing::flat_topology(2), settings_of("1f1b", 4));
  const auto bound = TripBound::of(costs, {}, 100);
  EXPECT_EQ(bound->refutes(Seconds(23.99), 2, kNoStop), true);
  EXPECT_EQ(bound->refutes(Seconds(24), 2, kNoStop), false);
  EXPECT_EQ(bound->splits().front(), (Split{{0, 0}, {1}}));
}

/// Hosts of one device, joined by links five times as slow as those inside a host: the messages of devices in order
/// take 5 s as in LimitsWhatIsInFlight, those of any devices perhaps 1 s as in CountsMessagesAndRoundTrips.
TEST(TripBound, KnowsTheLinksOfDevicesInOrder) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2}, Bytes(1'000'000'000), Bytes(100'000'000'000));
  Topology topology = testing::flat_topology(1);
  topology.levels.push_back({"hosts", 2, {BytesPerSecond(0.2e9), Seconds(0), {}, {}}});
  const PipelineCosts costs(graph, topology, settings_of("1f1b", 4));
  const auto bound = TripBound::of(costs, {}, 100);
  ASSERT_TRUE(bound->knows_order());
  EXPECT_EQ(bound->refutes(Seconds(19), 2, kNoStop), false);
  EXPECT_EQ(bound->refutes(Seconds(23.99), 2, kNoStop, /*in_order=*/true), true);
  EXPECT_EQ(bound->refutes(Seconds(24), 2, kNoStop, /*in_order=*/true), false);
  EXPECT_EQ(bound->splits(), (std::vector{Split{{0, 0}, {1}}}));
}

/// Eight messages of 3 s leave the host of the first stage, after a forward and before the second stage's forward and
/// backward, the message back and the first stage's backward: 1 + 8 * 3 + 2 + 3 + 1 = 31 s. One stage: 8 * 4 = 32 s.
TEST(TripBound, CountsTheMessagesAtThePortOfAHost) {
  const Graph graph = testing::chain_graph({1, 1}, {1, 1}, Bytes(3'000'000'000), Bytes(100'000'000'000));
  Topology topology = testing::flat_topology(1);
  topology.levels.push_back({"hosts", 2, {BytesPerSecond(1e9), Seconds(0), {}, {}}});
  for (const char* schedule : {"gpipe", "1f1b"}) {
    const PipelineCosts costs(graph, topology, settings_of(schedule, 8));
    const auto bound = TripBound::of(costs, {}, 100);
    EXPECT_EQ(bound->refutes(Seconds(30.99), 2, kNoStop, /*in_order=*/true), true);
    EXPECT_EQ(bound->refutes(Seconds(32), 2, kNoStop, /*in_order=*/true), false);
  }
  const PipelineCosts costs(graph, topology, settings_of("gpipe", 8));
  EXPECT_EQ(TripBound::of(costs, {}, 100)->refutes(Seconds(31), 2, kNoStop, /*in_order=*/true), false);
}

/// 1e9 bytes of parameters, two replicas in hosts of three devices. In the host, their sum takes 1 s; over the border
/// of hosts, at 0.1 GB/s, 10 s. A stage of one layer of 1 + 2 s computes two of 4 microbatches on each: 6 s.
TEST(TripBound, KnowsTheDevicesThatSumGradients) {
  const Graph graph = testing::chain_graph({1}, {2}, Bytes(1), Bytes(1'000'000'000));
  Topology topology = testing::flat_topology(1);
  topology.levels.push_back({"hosts", 2, {BytesPerSecond(1e8), Seconds(0), {}, {}}});
  const PipelineCosts costs(graph, topology, settings_of("1f1b", 4));
  const auto bound = TripBound::of(costs, {}, 100);
  EXPECT_EQ(bound->refutes(Seconds(11.99), 2, kNoStop, /*in_order=*/true), true);  // one device: 12 s
  EXPECT_EQ(bound->refutes(Seconds(12), 2, kNoStop, /*in_order=*/true), false);
}

TEST(TripBound, KnowsNoOrderWhereAllLinksAreEqual) {
  const PipelineCosts costs(testing::chain_graph({1, 1}, {2, 2}), testing::flat_topology(2), settings_of("1f1b", 4));
  EXPECT_FALSE(TripBound::of(costs, {}, 100)->knows_order());
}

TEST(TripBound, IsNotForStepsThatOverlap) {
  const Graph graph = testing::chain_graph({1}, {2});
  const PipelineCosts costs(graph, testing::flat_topology(2), settings_of("pipedream", 4));
  EXPECT_EQ(TripBound::of(costs, {}, 100), nullptr);
}

/// Keeps the edges from inputs, and joins the other layers to a chain.
void make_chain(Graph& graph) {
  std::erase_if(graph.edges, [&](const Edge& edge) { return !is_input(graph.layers[to_index(edge.source)]); });
  int last = -1;
  for (int i = 0; i < to_int(graph.layers.size()); ++i) {
    if (is_input(graph.layers[to_index(i)])) continue;
    if (last >= 0) graph.edges.push_back({last, i, {}});
    last = i;
  }
}

/// Layers without work, which the bound leaves out.
void idle_some(Graph& graph, std::mt19937& random) {
  for (Layer& layer : graph.layers) {
    if (is_input(layer) || random() % 3 != 0) continue;
    layer.forward.median = layer.backward.median = Seconds(0);
    layer.update.reset();
    layer.parameter_bytes = Bytes(0);
    layer.tied.clear();
    layer.backward_parts.reset();
  }
}

/// No split with any replicas that fits in memory has a predicted step that the bound refutes.
TEST(TripBound, NeverExceedsTheBestOfAllPlans) {
  const CostModel model = simulated_costs();
  int compared = 0;
  int in_order = 0;
  for (unsigned seed = 1; seed <= 2500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Graph graph = testing::branching_graph(random, 2 + static_cast<int>(random() % 4));
    if (seed % 3 == 0) make_chain(graph);
    if (random() % 2 == 0) idle_some(graph, random);
    Topology topology =
        testing::flat_topology(2 + static_cast<int>(random() % 3), 1e5 * (1 + static_cast<double>(random() % 500)),
                               0.0005 * static_cast<double>(random() % 3));
    if (random() % 4 == 0 || seed % 3 == 0) {
      topology.levels.front().count = 1 + static_cast<int>(random() % 3);
      for (unsigned levels = 1 + random() % 2; levels > 0; --levels) {
        topology.levels.push_back(
            {"rack", 2, {BytesPerSecond(1e5 * (1 + static_cast<double>(random() % 30))), Seconds(0.001), {}, {}}});
      }
    }
    const char* const schedules[] = {"1f1b", "1f1b", "1f1b", "gpipe", "zb-h1", "forward"};
    Constraints constraints;
    constraints.plan = settings_of(schedules[random() % std::size(schedules)], 1 + static_cast<int>(random() % 8));
    if (constraints.plan.schedule != "forward" && random() % 4 == 0) constraints.plan.recompute = true;
    if (random() % 6 == 0) constraints.plan.gradient_bucket_bytes = Bytes(50'000);
    if (random() % 3 == 0) constraints.memory_limit = Bytes(100'000 + static_cast<std::int64_t>(random() % 900'000));
    if (random() % 4 == 0) constraints.plan.sharding = static_cast<StateSharding>(1 + random() % 3);
    SCOPED_TRACE(constraints.plan.schedule);
    const PipelineCosts costs(graph, topology, constraints.plan);
    const auto bound = TripBound::of(costs, constraints.memory_limit, 1000);
    if (!bound) continue;  // no layer has work
    const int devices = 1 + static_cast<int>(random() % 4);
    std::optional<Seconds> shortest;
    testing::each_partition(graph, std::min(devices, device_count(topology)), [&](const Partition& partition) {
      Candidate candidate;
      candidate.partition = partition;
      for (const int replicas : partition.replicas) {
        if (replicas > constraints.plan.microbatches) return;
      }
      try {
        const RankedPlan ranked = predicted_plan("any", graph, topology, candidate, model, constraints);
        if (ranked.fits)
          shortest = std::min(shortest.value_or(ranked.prediction.iteration), ranked.prediction.iteration);
      } catch (const std::invalid_argument&) {
      } catch (const std::runtime_error&) {}
    });
    if (!shortest) continue;
    ++compared;
    ASSERT_EQ(bound->refutes(*shortest * (1 + 1e-9), devices, kNoStop), false) << shortest->value;
    // With divided parameters, replicas may have unequal shares in a suggested split, which then cannot run.
    for (const Split& split : bound->splits()) EXPECT_EQ(costs.lower_bound(split).has_value(), costs.can_run(split));
    if (!bound->knows_order()) continue;
    ++in_order;
    ASSERT_EQ(bound->refutes(*shortest * (1 + 1e-9), devices, kNoStop, /*in_order=*/true), false) << shortest->value;
  }
  EXPECT_GT(compared, 1500);
  EXPECT_GT(in_order, 500);
}

}  // namespace
}  // namespace stagecraft::partitioner
