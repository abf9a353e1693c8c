#include "partitioner/costs/heaviest_path.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>

#include "costmodel/index.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::ElementsAre;

/// 0 -> 1 -> 3 and 0 -> 2 -> 3, with 1, 5, 3 and 1 s. By node 1: 1 + 5 + 1 = 7 s; by node 2, with arcs of 1 + 1 and 1 s
/// : 1 + 2 + 3 + 1 + 1 = 8 s.
TEST(HeaviestPath, AddsNodesAndArcs) {
  const std::vector<Seconds> weights{1_s, 5_s, 3_s, 1_s};
  std::vector<std::vector<Arc>> incoming(4);
  incoming[1] = {{0, 10, 0_s, 0_s}};
  incoming[2] = {{0, 20, 1_s, 1_s}};
  incoming[3] = {{1, 13, 0_s, 0_s}, {2, 23, 0_s, 1_s}};
  const HeaviestPath path = heaviest_path(weights, incoming);
  EXPECT_THAT(path.nodes, ElementsAre(0, 2, 3));
  EXPECT_THAT(path.arcs, ElementsAre(20, 23));
}

TEST(HeaviestPath, TakesTheFirstOfEqualWays) {
  std::vector<std::vector<Arc>> incoming(3);
  incoming[2] = {{0, 7, 0_s, 0_s}, {1, 8, 0_s, 0_s}};
  EXPECT_EQ(heaviest_path({1_s, 1_s, 0_s}, incoming), (HeaviestPath{{0}, {}}));  // nodes 0, 1 and 2 end equally late
  EXPECT_EQ(heaviest_path({1_s, 1_s, 1_s}, incoming), (HeaviestPath{{0, 2}, {7}}));
}

/// Of all paths, by going through them.
Seconds longest(const std::vector<Seconds>& weights, const std::vector<std::vector<Arc>>& incoming, int to) {
  Seconds before;
  for (const Arc& arc : incoming[to_index(to)])
    before = std::max(before, longest(weights, incoming, arc.from) + arc.forward + arc.back);
  return before + weights[to_index(to)];
}

TEST(HeaviestPath, IsTheHeaviestOfAll) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto seconds = [&] { return Seconds(static_cast<double>(random() % 10)); };
    const int nodes = 1 + static_cast<int>(random() % 8);
    std::vector<Seconds> weights;
    std::vector<std::vector<Arc>> incoming(to_index(nodes));
    for (int v = 0; v < nodes; ++v) {
      weights.push_back(seconds());
      for (int from = 0; from < v; ++from) {
        if (random() % 2 == 0) incoming[to_index(v)].push_back({from, from * nodes + v, seconds(), seconds()});
      }
    }
    Seconds most;
    for (int v = 0; v < nodes; ++v) most = std::max(most, longest(weights, incoming, v));
    const HeaviestPath path = heaviest_path(weights, incoming);
    ASSERT_EQ(path.arcs.size() + 1, path.nodes.size());
    Seconds sum = weights[to_index(path.nodes.front())];
    for (std::size_t i = 0; i < path.arcs.size(); ++i) {
      const int to = path.nodes[i + 1];
      EXPECT_EQ(path.arcs[i], path.nodes[i] * nodes + to);
      const auto arc = std::ranges::find(incoming[to_index(to)], path.arcs[i], &Arc::number);
      ASSERT_NE(arc, incoming[to_index(to)].end());
      sum += arc->forward + arc->back + weights[to_index(to)];
    }
    EXPECT_EQ(sum, most);
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
