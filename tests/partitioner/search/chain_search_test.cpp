#include "partitioner/search/chain_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

using Key = std::tuple<std::vector<int>, std::vector<int>>;

PlanSettings random_settings(std::mt19937& random) {
  static constexpr const char* schedules[] = {"1f1b", "gpipe", "zb-h1", "pipedream", "forward"};
  PlanSettings out;
  out.schedule = schedules[random() % std::size(schedules)];
  out.microbatches = 1 + static_cast<int>(random() % 6);
  out.recompute = out.schedule != "forward" && random() % 3 == 0;
  return out;
}

bool has_idle_replicas(const PipelineCosts& costs, const Split& split) {
  return costs.waits() && std::ranges::any_of(split.replicas, [&](int r) { return r > costs.microbatches(); });
}

/// Two layers of 3 s, 4 microbatches, two devices: one of them needs 24 s, two replicas 12 s. Two stages: 12 s for the
/// second, after 3 s of the first.
TEST(ChainSearch, RefutesWhatNoSplitReaches) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  PlanSettings settings;
  const PipelineCosts costs(graph, testing::flat_topology(2), settings);
  const Lattice lattice = *Lattice::of(reversed(costs.dag()), 10);
  ChainSearch any(costs, lattice, {}, {});
  EXPECT_EQ(any.refutes(11.9_s), true);
  EXPECT_EQ(any.refutes(12_s), false);
  ChainSearch two(costs, lattice, {.stages = 2, .replicas = {}, .chunks = 1, .limit = {}}, {});
  EXPECT_EQ(two.refutes(14.9_s), true);
  EXPECT_EQ(two.refutes(15_s), false);
  ChainSearch stopped(costs, lattice, {}, [] { return true; });
  EXPECT_EQ(stopped.refutes(12_s), false);  // too short to be asked
  EXPECT_FALSE(stopped.visit_splits(12_s, [](const Split&) { return 12_s; }));
}

TEST(ChainSearch, EnumeratesEverySplitOnceWithoutABound) {
  for (unsigned seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 2 + static_cast<int>(random() % 4));
    const Topology topology = testing::flat_topology(1 + static_cast<int>(random() % 4), 1e7);
    const PipelineCosts costs(graph, topology, random_settings(random));
    const Lattice lattice = *Lattice::of(reversed(costs.dag()), 1000);
    SearchSpace space;
    if (random() % 2 == 0) space.stages = 1 + static_cast<int>(random() % 3);
    if (space.stages && random() % 2 == 0) {
      for (int s = 0; s < *space.stages; ++s) space.replicas.push_back(1 + static_cast<int>(random() % 2));
    }
    std::set<Key> all;
    testing::each_partition(graph, device_count(topology), [&](const Partition& partition) {
      const Split split = costs.split_of(partition, 1);
      if (space.stages && static_cast<int>(split.replicas.size()) != *space.stages) return;
      if (!space.replicas.empty() && split.replicas != space.replicas) return;
      if (space.replicas.empty() && has_idle_replicas(costs, split)) return;
      all.emplace(split.stage_of_node, split.replicas);
    });
    ChainSearch search(costs, lattice, space, {});
    std::set<Key> found;
    if (search.refutes(1e6_s) == false) {
      EXPECT_TRUE(search.visit_splits(1e6_s, [&](const Split& split) {
        EXPECT_TRUE(found.emplace(split.stage_of_node, split.replicas).second);
        return 1e6_s;
      }));
    }
    EXPECT_EQ(found, all);
  }
}

/// Whatever the time: a split that the search leaves out has a larger bound.
TEST(ChainSearch, LeavesOutNoSplitWithinTheTime) {
  int within = 0;
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 2 + static_cast<int>(random() % 4));
    Topology topology = testing::flat_topology(1 + static_cast<int>(random() % 2),
                                               1e6 * (1 + static_cast<double>(random() % 50)), 0.0002);
    if (random() % 2 == 0) topology.levels.push_back({"rack", 2, {BytesPerSecond(1e6), Seconds(0.001), {}, {}}});
    const PipelineCosts costs(graph, topology, random_settings(random));
    const Lattice lattice = *Lattice::of(reversed(costs.dag()), 1000);
    std::vector<std::pair<Seconds, Key>> all;
    testing::each_partition(graph, device_count(topology), [&](const Partition& partition) {
      const Split split = costs.split_of(partition, 1);
      if (has_idle_replicas(costs, split)) return;
      if (const auto bound = costs.lower_bound(split))
        all.emplace_back(*bound, Key(split.stage_of_node, split.replicas));
    });
    ChainSearch search(costs, lattice, {}, {});
    for (int i = 0; i < 4; ++i) {
      const Seconds time = all[random() % all.size()].first;
      ASSERT_EQ(search.refutes(time), false);
      std::set<Key> found;
      ASSERT_TRUE(search.visit_splits(time, [&](const Split& split) {
        found.emplace(split.stage_of_node, split.replicas);
        return time;
      }));
      for (const auto& [bound, key] : all) {
        if (bound > time) continue;
        ++within;
        EXPECT_TRUE(found.contains(key));
      }
    }
  }
  EXPECT_GT(within, 3000);
}

}  // namespace
}  // namespace stagecraft::partitioner
