#include "partitioner/search/local_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>
#include <string>

#include "costmodel/index.h"
#include "tests/partitioner/bounds/bounds.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

constexpr int kDevices = 6;

int below(std::mt19937& random, int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }

/// A random split over at most kDevices: consecutive nodes of the topological order, each stage with some replicas.
Split random_split(std::mt19937& random, int nodes) {
  Split out;
  int stage = 0;
  for (int node = 0; node < nodes; ++node) {
    if (node > 0 && stage + 1 < kDevices && below(random, 3) == 0) ++stage;
    out.stage_of_node.push_back(stage);
  }
  out.replicas.assign(to_index(stage + 1), 1);
  for (int spare = below(random, kDevices - stage); spare > 0; --spare)
    ++out.replicas[to_index(below(random, stage + 1))];
  return out;
}

int devices_of(const Split& split) { return std::accumulate(split.replicas.begin(), split.replicas.end(), 0); }

void expect_valid(const PipelineCosts& costs, const Split& split, int devices) {
  const std::set<int> used(split.stage_of_node.begin(), split.stage_of_node.end());
  EXPECT_EQ(used.size(), split.replicas.size());  // no stage is empty
  EXPECT_EQ(*used.begin(), 0);
  EXPECT_EQ(*used.rbegin(), to_int(split.replicas.size()) - 1);
  for (const auto& [from, to] : costs.dag().edges)
    EXPECT_LE(split.stage_of_node[to_index(from)], split.stage_of_node[to_index(to)]);
  EXPECT_GE(std::ranges::min(split.replicas), 1);
  EXPECT_LE(devices_of(split), devices);
}

/// Layers of 1 + 2 s each, free transfers, two devices, 4 microbatches: with 3 of 4 layers in the first stage the step
/// is (4 + 2 - 1) * 9 s at most, and no less than 4 * 9 = 36 s; halved it is (4 + 2 - 1) * 6 = 30 s. So a layer moves.
TEST(LocalSearch, MovesALayerToTheIdleStage) {
  const PipelineCosts costs(testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}), testing::flat_topology(2),
                            settings_of("1f1b", 4));
  Movable movable;
  movable.stages = movable.replicas = false;
  movable.devices = 2;
  const Split start{{0, 0, 0, 1}, {1, 1}};
  const Split better = improved(costs, start, movable, bound_of_split(costs), kNoStop);
  EXPECT_EQ(better, (Split{{0, 0, 1, 1}, {1, 1}}));
  EXPECT_EQ(costs.lower_bound(better), Seconds(30));
}

TEST(LocalSearch, NeverEndsAboveItsStartAndKeepsToWhatMayMove) {
  int better = 0;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 2 + below(random, 6));
    const PipelineCosts costs(graph, testing::flat_topology(kDevices, 1e6),
                              settings_of(seed % 2 ? "1f1b" : "gpipe", 4));
    const Split start = random_split(random, costs.dag().nodes);
    Movable movable;
    movable.stages = below(random, 2) == 0;
    movable.replicas = below(random, 2) == 0;
    movable.devices = devices_of(start) + below(random, kDevices - devices_of(start) + 1);
    if (below(random, 2) == 0) movable.limit = costs.least_memory(start) + Bytes(below(random, 20'000));
    const SplitValue value = bound_of_split(costs);
    const Split end = improved(costs, start, movable, value, kNoStop);

    expect_valid(costs, end, movable.devices);
    EXPECT_LE(*costs.lower_bound(end), *costs.lower_bound(start));
    if (movable.limit) { EXPECT_LE(costs.least_memory(end), *movable.limit); }
    if (!movable.stages) { EXPECT_EQ(end.replicas.size(), start.replicas.size()); }
    if (!movable.stages && !movable.replicas) { EXPECT_EQ(end.replicas, start.replicas); }
    EXPECT_EQ(improved(costs, start, movable, value, kNoStop), end);
    better += *costs.lower_bound(end) < *costs.lower_bound(start) ? 1 : 0;
  }
  EXPECT_GT(better, 100);
}

TEST(LocalSearch, StopsWhenItIsToldTo) {
  std::mt19937 random(1);
  const PipelineCosts costs(testing::chain_graph({1, 1, 1, 1, 1}, {2, 2, 2, 2, 2}), testing::flat_topology(kDevices),
                            settings_of("1f1b", 4));
  Movable movable;
  movable.devices = kDevices;
  const Split start{{0, 0, 0, 0, 1}, {1, 1}};
  EXPECT_EQ(improved(costs, start, movable, bound_of_split(costs), [] { return true; }), start);
  // The value is asked for the start, and then for no more splits than `stop` lets pass.
  int asked = 0;
  const SplitValue counted = [&](const Split& split, Seconds) {
    ++asked;
    return costs.lower_bound(split);
  };
  (void)improved(costs, start, movable, counted, [&] { return asked >= 3; });
  EXPECT_EQ(asked, 3);
}

TEST(Shaken, GivesValidSplitsWhateverTheSeed) {
  int changed = 0;
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 2 + below(random, 6));
    const PipelineCosts costs(graph, testing::flat_topology(kDevices), settings_of("1f1b", 4));
    const Split start = random_split(random, costs.dag().nodes);
    Movable movable;
    movable.devices = devices_of(start) + below(random, 2);
    movable.replicas = below(random, 2) == 0;
    std::mt19937 same = random;
    const Split end = shaken(costs, start, movable, random);
    expect_valid(costs, end, movable.devices);
    EXPECT_EQ(end.replicas.size(), start.replicas.size());
    if (!movable.replicas) { EXPECT_EQ(end.replicas, start.replicas); }
    EXPECT_EQ(shaken(costs, start, movable, same), end);
    changed += end != start ? 1 : 0;
  }
  EXPECT_GT(changed, 250);
}

TEST(RandomSplit, IsValidWhateverTheSeed) {
  std::set<std::size_t> stages;
  int replicated = 0;
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 2 + below(random, 6));
    const PipelineCosts costs(graph, testing::flat_topology(kDevices), settings_of("1f1b", 4));
    Movable movable;
    movable.devices = 1 + below(random, kDevices);
    movable.replicas = below(random, 2) == 0;
    std::mt19937 same = random;
    const Split split = random_split(costs, movable, random);
    expect_valid(costs, split, movable.devices);
    if (!movable.replicas) { EXPECT_EQ(devices_of(split), to_int(split.replicas.size())); }
    EXPECT_EQ(random_split(costs, movable, same), split);
    stages.insert(split.replicas.size());
    replicated += devices_of(split) > to_int(split.replicas.size()) ? 1 : 0;
  }
  EXPECT_EQ(stages.size(), to_index(kDevices));
  EXPECT_GT(replicated, 100);
}

TEST(Rearranged, GivesValidSplitsWhateverTheSeed) {
  int changed = 0, more = 0, fewer = 0, replicas = 0;
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 2 + below(random, 6));
    const PipelineCosts costs(graph, testing::flat_topology(kDevices), settings_of("1f1b", 4));
    const Split start = random_split(random, costs.dag().nodes);
    Movable movable;
    movable.devices = devices_of(start) + below(random, 2);
    movable.replicas = below(random, 2) == 0;
    movable.stages = below(random, 2) == 0;
    std::mt19937 same = random;
    const Split end = rearranged(costs, start, movable, random);
    expect_valid(costs, end, movable.devices);
    if (!movable.stages) { EXPECT_EQ(end.replicas.size(), start.replicas.size()); }
    if (!movable.stages && !movable.replicas) { EXPECT_EQ(end.replicas, start.replicas); }
    EXPECT_EQ(rearranged(costs, start, movable, same), end);
    changed += end != start ? 1 : 0;
    more += end.replicas.size() > start.replicas.size() ? 1 : 0;
    fewer += end.replicas.size() < start.replicas.size() ? 1 : 0;
    replicas += end.replicas.size() == start.replicas.size() && end.replicas != start.replicas ? 1 : 0;
  }
  EXPECT_GT(changed, 300);
  EXPECT_GT(more, 20);
  EXPECT_GT(fewer, 50);
  EXPECT_GT(replicas, 50);
}

// Of several stages per device, only nodes move.
TEST(Rearranged, KeepsTheStagesOfChunks) {
  const Graph graph = testing::chain_graph({1, 1, 1, 1, 1, 1, 1, 1}, {2, 2, 2, 2, 2, 2, 2, 2});
  const PipelineCosts costs(graph, testing::flat_topology(2), settings_of("interleaved-1f1b", 4));
  const Split start{{0, 0, 1, 1, 2, 2, 3, 3}, {1, 1, 1, 1}, 2};
  Movable movable;
  movable.devices = 2;
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const Split end = rearranged(costs, start, movable, random);
    EXPECT_EQ(end.replicas, start.replicas);
    EXPECT_EQ(end.chunks, 2);
    EXPECT_TRUE(std::ranges::is_sorted(end.stage_of_node));
    EXPECT_EQ(std::set<int>(end.stage_of_node.begin(), end.stage_of_node.end()).size(), 4U);
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
