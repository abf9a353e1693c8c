#include "partitioner/exact/equal_shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

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

Seconds slowest_of(const PipelineCosts& costs, const Split& split) {
  std::vector<Seconds> times(split.replicas.size());
  for (int v = 0; v < costs.dag().nodes; ++v) times[to_index(split.stage_of_node[to_index(v)])] += costs.node(v).least;
  return std::ranges::max(times);
}

/// Four layers of 1 + 1 s, each saves 100 B and has no parameters. Two stages of two layers take 4 s at most, but under
/// 1f1b the first one holds two microbatches: 400 B. With 300 B it has one layer, and the other three take 6 s.
TEST(EqualShares, MovesLayersToTheEndWhereMemoryBinds) {
  Graph graph = testing::chain_graph({1, 1, 1, 1}, {1, 1, 1, 1});
  for (Layer& layer : graph.layers) {
    layer.saved_bytes = 100_B;
    layer.workspace_bytes = 0_B;
  }
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
  Graph graph = testing::chain_graph({1, 1}, {1, 1});
  for (Layer& layer : graph.layers) {
    layer.saved_bytes = 100_B;
    layer.workspace_bytes = 0_B;
  }
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
