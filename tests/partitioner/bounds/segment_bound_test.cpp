#include "partitioner/bounds/segment_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "partitioner/candidate.h"
#include "partitioner/cost_model.h"
#include "partitioner/strategies/optimal.h"
#include "tests/partitioner/bounds/bounds.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

SegmentBound bound_of(const Graph& graph, const Topology& topology, const PlanSettings& settings) {
  return SegmentBound::of(PipelineCosts(graph, topology, settings)).value();
}

/// Two layers of 1 + 2 s, messages of 1 s each way, 4 microbatches. On one device 4 (3 + 3) = 24 s. On two, the second
/// waits for 1 + 1 s, computes for 4 * 3 s, and its last gradient takes 1 + 2 s: 17 s.
TEST(SegmentBound, CountsWhatComesBeforeAndAfterTheBusiestDevice) {
  Graph graph = testing::chain_graph({1, 1}, {2, 2}, Bytes(1'000'000'000));
  graph.layers.front().replicable = false;
  const SegmentBound bound = bound_of(graph, testing::flat_topology(2), settings_of("interleaved-1f1b", 4));
  EXPECT_EQ(bound.refutes(Seconds(16.99), kNoStop), true);
  EXPECT_EQ(bound.refutes(Seconds(17), kNoStop), false);
  EXPECT_EQ(bound.refutes(Seconds(17), [] { return true; }), std::nullopt);
}

/// Two layers of 1 + 1 s, messages of 3 s, 20 microbatches. On one device 80 s. On two, the first message leaves after
/// 1 s, the last of 20 arrives 60 s later, and its microbatch still takes 1 + 1 + 3 + 1 s: 67 s.
TEST(SegmentBound, CountsTheMessagesThroughAPort) {
  Graph graph = testing::chain_graph({1, 1}, {1, 1}, Bytes(3'000'000'000));
  graph.layers.front().replicable = false;
  const SegmentBound bound = bound_of(graph, testing::flat_topology(2), settings_of("interleaved-1f1b", 20));
  EXPECT_EQ(bound.refutes(Seconds(66.99), kNoStop), true);
  EXPECT_EQ(bound.refutes(Seconds(67), kNoStop), false);
}

/// Two layers of 1 + 2 s and 4 GB of parameters each, 8 microbatches, links of 1 GB/s, without latency or messages. On
/// one replica each, 8 * 3 = 24 s after the other layer's forward and before its backward: 27 s. On two, a device
/// computes 4 * 6 s and sums 8 GB in 2 (2 - 1) 8 / 2 = 8 s: 32 s.
TEST(SegmentBound, SumsGradientsOfReplicas) {
  Graph graph = testing::chain_graph({1, 1}, {2, 2}, Bytes(0));
  for (Layer& layer : graph.layers) layer.parameter_bytes = Bytes(4'000'000'000);
  const SegmentBound bound = bound_of(graph, testing::flat_topology(2), settings_of("interleaved-1f1b", 8));
  EXPECT_EQ(bound.refutes(Seconds(26.99), kNoStop), true);
  EXPECT_EQ(bound.refutes(Seconds(27), kNoStop), false);
  for (Layer& layer : graph.layers) layer.parameter_bytes = Bytes(500'000'000);  // 1 s instead of 8 s
  const SegmentBound less = bound_of(graph, testing::flat_topology(2), settings_of("interleaved-1f1b", 8));
  EXPECT_EQ(less.refutes(Seconds(24.99), kNoStop), true);
  EXPECT_EQ(less.refutes(Seconds(25), kNoStop), false);
}

/// One microbatch of four layers of 1 + 1 s, each message longer than all of them: none is sent, 8 s.
TEST(SegmentBound, SendsNoMessagesWhereOneDeviceIsFaster) {
  const Graph graph = testing::chain_graph({1, 1, 1, 1}, {1, 1, 1, 1}, Bytes(9'000'000'000));
  const SegmentBound bound = bound_of(graph, testing::flat_topology(4), settings_of("interleaved-1f1b", 1));
  EXPECT_EQ(bound.refutes(Seconds(7.99), kNoStop), true);
  EXPECT_EQ(bound.refutes(Seconds(8), kNoStop), false);
}

/// Eight layers of 1 + 1 s in hosts of two devices, 20 microbatches; messages take 0.1 s in a host and 20 s between
/// hosts. Two devices take 20 * 16 / 2 = 160 s at least; between hosts, 20 messages take 400 s.
TEST(SegmentBound, CountsWhatTheDevicesOfAHostCompute) {
  Graph graph = testing::chain_graph({1, 1, 1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1, 1, 1}, Bytes(100'000'000));
  graph.layers.front().replicable = false;
  Topology topology = testing::flat_topology(2);
  topology.levels.push_back({"hosts", 4, {BytesPerSecond(5e6), Seconds(0), {}, {}}});
  const SegmentBound bound = bound_of(graph, topology, settings_of("interleaved-1f1b", 20));
  EXPECT_EQ(bound.refutes(Seconds(159.9), kNoStop), true);
  EXPECT_EQ(bound.refutes(Seconds(160), kNoStop), false);
}

TEST(SegmentBound, IsForStagesOfEqualReplicasThatWait) {
  const Graph graph = testing::chain_graph({1}, {2});
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "pipedream"}) {
    const PipelineCosts costs(graph, testing::flat_topology(2), settings_of(schedule, 4));
    EXPECT_FALSE(SegmentBound::of(costs)) << schedule;
  }
  const PipelineCosts costs(graph, testing::flat_topology(2), settings_of("interleaved-1f1b", 4));
  EXPECT_TRUE(SegmentBound::of(costs));
}

Topology random_topology(std::mt19937& random) {
  Topology out =
      testing::flat_topology(2 + static_cast<int>(random() % 3), 1e5 * (1 + static_cast<double>(random() % 500)),
                             0.0005 * static_cast<double>(random() % 3));
  if (random() % 2 == 0) {
    const double bandwidth = 1e5 * (1 + static_cast<double>(random() % 200));
    out.levels.push_back({"rack", 2, {BytesPerSecond(bandwidth), Seconds(0.001), {}, {}}});
  }
  if (random() % 4 == 0)
    out.levels.front().link.send_receive = Curve{{{Bytes(2000), Seconds(0.001)}, {Bytes(9000), Seconds(0.004)}}};
  return out;
}

PlanSettings random_settings(std::mt19937& random) {
  const char* const whole[] = {"interleaved-1f1b", "interleaved-1f1b", "looped-bfs"};
  const char* const split[] = {"interleaved-zb", "zb-v", "dualpipev"};
  const auto& schedules = random() % 5 == 0 ? split : whole;
  PlanSettings out = settings_of(schedules[random() % std::size(schedules)], 1 + static_cast<int>(random() % 8));
  out.recompute = random() % 4 == 0;
  if (out.recompute && random() % 2 == 0) out.recompute_every = 1 + static_cast<int>(random() % 3);
  if (random() % 4 == 0) out.gradient_bucket_bytes = Bytes(50'000);
  if (random() % 8 == 0) out.sharding = static_cast<StateSharding>(1 + random() % 3);
  return out;
}

/// The predicted step of stages on these devices, in turn; absent if the schedule cannot run them.
std::optional<Seconds> step_of(const Graph& graph, const Topology& topology, const PlanSettings& settings,
                               const Partition& partition, int chunks, const std::vector<int>& order) {
  if (!runs_chunks(schedule_by_name(settings.schedule), chunks)) return std::nullopt;
  const CostModel model = simulated_costs();
  const std::size_t positions = partition.replicas.size() / static_cast<std::size_t>(chunks);
  Candidate candidate;
  candidate.partition = partition;
  candidate.chunks = chunks;
  for (std::size_t s = 0; s < partition.replicas.size(); ++s) {
    const auto position = position_of(static_cast<int>(s), static_cast<int>(positions), placement_of(settings));
    const auto first = order.begin() + position * partition.replicas.front();
    candidate.devices.emplace_back(first, first + partition.replicas.front());
  }
  Constraints constraints;
  constraints.plan = settings;
  try {
    return predicted_plan("any", graph, topology, candidate, model, constraints).prediction.iteration;
  } catch (const std::invalid_argument&) {
  } catch (const std::runtime_error&) {}
  return std::nullopt;
}

/// No split with any number of stages per device and of replicas, on any devices, has a predicted step that the bound
/// refutes.
TEST(SegmentBound, NeverExceedsTheBestOfAllPlans) {
  int compared = 0;
  int chunked = 0;
  int replicated = 0;
  double tightness = 0;
  for (unsigned seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 2 + static_cast<int>(random() % 4));
    const Topology topology = random_topology(random);
    const PlanSettings settings = random_settings(random);
    SCOPED_TRACE(settings.schedule);
    std::vector<int> order(static_cast<std::size_t>(device_count(topology)));
    std::iota(order.begin(), order.end(), 0);
    if (random() % 2 == 0) std::ranges::shuffle(order, random);
    std::optional<Seconds> shortest;
    bool with_chunks = false;
    bool with_replicas = false;
    testing::each_partition(graph, static_cast<int>(graph.layers.size()), [&](Partition partition) {
      if (std::ranges::any_of(partition.replicas, [](int r) { return r > 1; })) return;
      const int stages = static_cast<int>(partition.replicas.size());
      for (int chunks = 1; chunks <= stages; ++chunks) {
        for (int replicas = 1; stages % chunks == 0 && stages / chunks * replicas <= static_cast<int>(order.size());
             ++replicas) {
          partition.replicas.assign(partition.replicas.size(), replicas);
          const auto step = step_of(graph, topology, settings, partition, chunks, order);
          if (!step || (shortest && *step >= *shortest)) continue;
          shortest = step;
          with_chunks = chunks > 1;
          with_replicas = replicas > 1;
        }
      }
    });
    if (!shortest || *shortest <= Seconds(0)) continue;
    ++compared;
    chunked += with_chunks ? 1 : 0;
    replicated += with_replicas ? 1 : 0;
    const SegmentBound bound = bound_of(graph, topology, settings);
    ASSERT_EQ(bound.refutes(*shortest * (1 + 1e-9), kNoStop), false) << shortest->value;
    tightness += largest_refuted(1e-4, [&](Seconds time) { return bound.refutes(time, kNoStop); }) / shortest->value;
  }
  EXPECT_GT(compared, 2500);
  EXPECT_GT(replicated, 50);
  EXPECT_GT(chunked, 50) << "several stages per device are the best in some cases";
  EXPECT_GT(tightness / compared, 0.75);
}

/// Nor does a plan that was found for a larger graph.
TEST(SegmentBound, NeverExceedsPlansOfLargerGraphs) {
  for (unsigned seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 8 + static_cast<int>(random() % 12));
    const Topology topology = random_topology(random);
    Constraints constraints;
    constraints.plan = random_settings(random);
    constraints.plan.microbatches = 4 * (1 + static_cast<int>(random() % 6));
    constraints.options["time-limit"] = 0.1;
    const auto result = optimal_strategy().plan(graph, topology, simulated_costs(), constraints);
    const Seconds step = std::get<Ranking>(result).plans.front().prediction.iteration;
    ASSERT_EQ(bound_of(graph, topology, constraints.plan).refutes(step * (1 + 1e-9), kNoStop), false) << step.value;
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
