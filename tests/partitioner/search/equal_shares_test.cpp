#include "partitioner/search/equal_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "partitioner/candidate.h"
#include "partitioner/cost_model.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

/// Stage of each layer, "0012".
std::string text_of(const Split& split) {
  std::string out;
  for (const int stage : split.stage_of_node) out += std::to_string(stage);
  return out;
}

/// Layers of 1 + 1 s that each save 100 B for a microbatch.
Graph saving_chain(std::size_t layers) {
  const std::vector<double> times(layers, 1.0);
  Graph out = testing::chain_graph(times, times);
  for (Layer& layer : out.layers) {
    layer.saved_bytes = 100_B;
    layer.workspace_bytes = 0_B;
  }
  return out;
}

Seconds slowest_of(const PipelineCosts& costs, const Split& split) {
  std::vector<Seconds> times(split.replicas.size());
  for (int v = 0; v < costs.dag().nodes; ++v) times[to_index(split.stage_of_node[to_index(v)])] += costs.node(v).least;
  return std::ranges::max(times);
}

/// Four layers of 1 + 1 s, each saves 100 B and has no parameters. Two stages of two layers take 4 s at most, but under
/// 1f1b the first one holds two microbatches: 400 B. With 300 B it has one layer, and the other three take 6 s.
TEST(EqualShares, MovesLayersToTheEndWhereMemoryBinds) {
  const Graph graph = saving_chain(4);
  PlanSettings settings;
  settings.microbatches = 8;
  const PipelineCosts costs(graph, testing::flat_topology(2), settings);
  const EqualShares shares(costs);
  const EqualShape two{2, 1, 1};
  EXPECT_EQ(text_of(shares.splits(two, {}).front()), "0011");
  EXPECT_EQ(text_of(shares.splits(two, {400_B}).front()), "0011");
  const std::vector<Split> tight = shares.splits(two, {399_B});
  ASSERT_EQ(tight.size(), 1U);
  EXPECT_EQ(text_of(tight.front()), "0111");
  EXPECT_TRUE(shares.splits(two, {299_B}).empty()) << "the last stage holds three layers";
  EXPECT_FALSE(shares.is_possible(two, {299_B}));
  EXPECT_TRUE(shares.is_possible(two, {300_B}));
  // All of a microbatch, 8 s, and 7 more of the slowest stage.
  EXPECT_NEAR(shares.estimate(two, {400_B})->value, 8 + 7 * 4, 0.01);
  EXPECT_NEAR(shares.estimate(two, {300_B})->value, 8 + 7 * 6, 0.01);
  // Two replicas compute four microbatches each, and then more stages than layers.
  EXPECT_NEAR(shares.estimate({1, 2, 1}, {})->value, 8 + 3 * 8, 0.01);
  EXPECT_FALSE(shares.estimate({5, 1, 1}, {}));
  EXPECT_TRUE(shares.splits({5, 1, 1}, {}).empty());
}

/// Under gpipe both stages hold all eight microbatches.
TEST(EqualShares, KnowsWhatAScheduleHolds) {
  const Graph graph = saving_chain(2);
  PlanSettings settings;
  settings.microbatches = 8;
  settings.schedule = "gpipe";
  const PipelineCosts costs(graph, testing::flat_topology(2), settings);
  EXPECT_TRUE(EqualShares(costs).is_possible({2, 1, 1}, {800_B}));
  EXPECT_FALSE(EqualShares(costs).is_possible({2, 1, 1}, {799_B}));
  EXPECT_TRUE(EqualShares(costs).is_possible({2, 2, 1}, {400_B})) << "four on each of two replicas";
}

/// Of all partitions of small graphs into stages of equal shares, none that fits in memory has a faster slowest stage.
TEST(EqualShares, FindsTheFastestSlowestStage) {
  int compared = 0;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 3 + static_cast<int>(random() % 4));
    PlanSettings settings;
    settings.schedule = random() % 2 == 0 ? "1f1b" : "gpipe";
    settings.microbatches = 1 + static_cast<int>(random() % 6);
    const Topology topology = testing::flat_topology(8);
    const PipelineCosts costs(graph, topology, settings);
    const EqualShares shares(costs);
    const int stages = 1 + static_cast<int>(random() % 4);
    const int replicas = 1 + static_cast<int>(random() % 2) * (settings.microbatches > 1 ? 1 : 0);
    std::vector<Split> all;
    testing::each_partition(graph, 8, [&](const Partition& partition) {
      const Split split = costs.split_of(partition, 1);
      if (split.replicas == std::vector<int>(to_index(stages), replicas)) all.push_back(split);
    });
    if (all.empty()) continue;
    const auto bytes_of = [&](const Split& split) {
      const Plan plan = make_plan(graph, topology, costs.partition(split), settings);
      return simulated_costs().memory(graph, topology, BoundPlan(plan)).peak;
    };
    const Bytes limit = bytes_of(all[random() % all.size()]);
    const std::vector<Split> found = shares.splits({stages, replicas, 1}, {costs.countable(limit)});
    ASSERT_FALSE(found.empty());
    Seconds fastest{1e100};
    for (const Split& split : all) {
      if (bytes_of(split) <= limit) fastest = std::min(fastest, slowest_of(costs, split));
    }
    Seconds best{1e100};
    for (const Split& split : found) {
      EXPECT_EQ(split.replicas, std::vector<int>(to_index(stages), replicas));
      EXPECT_NE(std::ranges::find(all, split), all.end());
      best = std::min(best, slowest_of(costs, split));
    }
    EXPECT_LE(best.value, fastest.value * (1 + 1e-9));
    ++compared;
  }
  EXPECT_GT(compared, 200);
}

/// Four layers of 1 + 1 s that each save 100 B for a microbatch. Two stages on each of two devices hold 3 and 2
/// microbatches, and 2 and 1: 500 B on the first device. Less is too little, although both together need only 800 B.
TEST(EqualShares, BoundsTheBusiestDeviceOfSeveralStages) {
  const Graph graph = saving_chain(4);
  PlanSettings settings;
  settings.microbatches = 8;
  settings.schedule = "interleaved-1f1b";
  const PipelineCosts costs(graph, testing::flat_topology(2), settings);
  const auto go_on = [] { return false; };
  Split split;
  split.replicas = {1, 1, 1, 1};
  split.chunks = 2;
  const std::vector<int> held = costs.held_together(split);
  EXPECT_EQ(held[0] + held[2], 5) << "2 (2 - 1) + (2 - 1) 2 before the first backward, and one more";
  EXPECT_EQ(held[1] + held[3], 3);
  const EqualShares shares(costs);
  EXPECT_EQ(shares.least_busiest(2, 1, 2, 500_B, go_on), Seconds(4));
  EXPECT_FALSE(shares.least_busiest(2, 1, 2, 499_B, go_on)) << "the first device needs 500 B, both together 800 B";
  // With one stage each, the first holds three microbatches.
  EXPECT_EQ(shares.least_busiest(2, 1, 1, 600_B, go_on), Seconds(4));
  EXPECT_EQ(shares.least_busiest(2, 1, 1, 599_B, go_on), Seconds(6));
  EXPECT_FALSE(shares.least_busiest(2, 1, 1, 299_B, go_on));
  EXPECT_EQ(shares.least_busiest(2, 1, 1, 299_B, [] { return true; }), Seconds(0)) << "says nothing if it was stopped";
}

/// No plan that fits in memory computes less on its busiest device than the bound says.
TEST(EqualShares, BoundTheBusiestDeviceOfAllPlans) {
  int compared = 0;
  int tight = 0;
  int excluded = 0;
  for (unsigned seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 3 + static_cast<int>(random() % 4));
    PlanSettings settings;
    settings.schedule = "interleaved-1f1b";
    const int positions = 1 + static_cast<int>(random() % 3);
    const int chunks = 1 + static_cast<int>(random() % 3);
    const int replicas = 1 + static_cast<int>(random() % 2);
    if (chunks == 2 && random() % 2 == 0) settings.schedule = random() % 2 == 0 ? "zb-v" : "v-half";
    settings.microbatches = positions * replicas * (1 + static_cast<int>(random() % 4));
    settings.recompute = random() % 3 == 0;
    Topology topology = testing::flat_topology(positions * replicas);
    if (random() % 3 == 0) topology.device.kind = DeviceKind::Gpu;
    const PipelineCosts costs(graph, topology, settings);
    struct Fitted {
      Bytes bytes;
      Seconds busiest;
    };
    std::vector<Fitted> all;
    testing::each_partition(graph, positions * chunks, [&](Partition partition) {
      if (partition.replicas != std::vector<int>(to_index(positions * chunks), 1)) return;
      partition.replicas.assign(partition.replicas.size(), replicas);
      Candidate candidate;
      candidate.partition = partition;
      candidate.chunks = chunks;
      const BoundPlan plan(plan_of_candidate(graph, topology, candidate, settings));
      std::vector<Seconds> times(to_index(positions));
      const Split split = costs.split_of(partition, chunks);
      for (int v = 0; v < costs.dag().nodes; ++v)
        times[to_index(costs.position_of(split, split.stage_of_node[to_index(v)]))] += costs.node(v).least;
      all.push_back({simulated_costs().memory(graph, topology, plan).peak, std::ranges::max(times)});
    });
    if (all.empty()) continue;
    Bytes limit = all[random() % all.size()].bytes;
    if (random() % 4 == 0) limit = Bytes(limit.value * 2 / 3);
    Seconds least{1e100};
    for (const Fitted& plan : all) {
      if (plan.bytes <= limit) least = std::min(least, plan.busiest);
    }
    const auto bound =
        EqualShares(costs).least_busiest(positions, replicas, chunks, costs.countable(limit), [] { return false; });
    excluded += bound ? 0 : 1;
    if (least >= Seconds(1e100)) continue;
    ASSERT_TRUE(bound);
    EXPECT_LE(bound->value, least.value * (1 + 1e-9));
    ++compared;
    tight += bound->value > 0.95 * least.value ? 1 : 0;
  }
  EXPECT_GT(compared, 200);
  EXPECT_GT(tight, compared / 3);
  EXPECT_GT(excluded, 10);
}

/// With more than a thousand layers, neighbours form groups, and the slowest stage is still close to an equal share.
TEST(EqualShares, DividesLongChainsEvenly) {
  std::mt19937 random(1);
  std::vector<double> times(3000);
  for (double& time : times) time = 0.5 + static_cast<double>(random() % 1000) / 1000;
  const double all = 2 * std::accumulate(times.begin(), times.end(), 0.0);
  const PipelineCosts costs(testing::chain_graph(times, times), testing::flat_topology(8), {});
  const EqualShares shares(costs);
  for (const int stages : {2, 7, 8}) {
    const std::vector<Split> splits = shares.splits({stages, 1, 1}, {});
    ASSERT_FALSE(splits.empty());
    EXPECT_LE(slowest_of(costs, splits.front()).value, 1.02 * all / stages);
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
