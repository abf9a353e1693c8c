#include "partitioner/search/downsets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

/// Layers without edges. Layer i has a forward of 1 s, a backward of i s, 10^i bytes of output and 2 * 10^i bytes of
/// parameters, so that sums identify their members.
Graph layers(int count) {
  Graph graph;
  std::int64_t bytes = 1;
  for (int i = 0; i < count; ++i, bytes *= 10) {
    Layer layer;
    layer.id = layer.name = "l" + std::to_string(i);
    layer.kind = "Linear";
    layer.forward.median = 1_s;
    layer.backward.median = Seconds(i);
    layer.outputs = {{Bytes(bytes), {}, "", true}};
    layer.parameter_bytes = Bytes(2 * bytes);
    graph.layers.push_back(layer);
  }
  return graph;
}

Graph joined(Graph graph, const std::vector<std::pair<int, int>>& edges) {
  for (const auto& [from, to] : edges) graph.edges.push_back({from, to, std::nullopt});
  return graph;
}

Downsets downsets(const Graph& graph) { return std::get<Downsets>(pipedream_downsets(graph, 1'000'000)); }

/// The layers in set `set`.
std::set<int> members(const Downsets& sets, int set) {
  std::set<int> out;
  for (int node = 0; node < static_cast<int>(sets.layer_of_node.size()); ++node) {
    if (sets.has(set, node)) out.insert(sets.layer_of_node[static_cast<std::size_t>(node)]);
  }
  return out;
}

// One source with n branches and a join: 2^n + 1 sets with the source, and the join.
Graph fan(int branches) {
  Graph graph = layers(branches + 2);
  for (int i = 1; i <= branches; ++i) graph = joined(std::move(graph), {{0, i}, {i, branches + 1}});
  return graph;
}

TEST(Downsets, OfAChainAreItsBeginnings) {
  const Downsets sets = downsets(joined(layers(3), {{0, 1}, {1, 2}}));
  ASSERT_EQ(sets.count(), 4);
  EXPECT_EQ(members(sets, 0), std::set<int>());
  EXPECT_EQ(members(sets, 2), (std::set<int>{0, 1}));
  EXPECT_EQ(sets.compute[2], 3_s);      // 1 + 0, 1 + 1
  EXPECT_EQ(sets.activation[2], 11_B);  // 1 + 10
  EXPECT_EQ(sets.parameter[3], 222_B);  // 2 (1 + 10 + 100)
  EXPECT_EQ(sets.boundary[2], 10_B);    // only layer 1 is read after the cut
}

TEST(Downsets, AreAllSubsetsOfParallelBranchesBetweenSourceAndJoin) {
  const auto grown = pipedream_downsets(fan(5), 1000);
  EXPECT_EQ(std::get<Downsets>(grown).count(), 1 + 32 + 1);
}

TEST(Downsets, ComeAfterTheirSubsets) {
  const auto grown = pipedream_downsets(fan(6), 1000);
  const Downsets& sets = std::get<Downsets>(grown);
  for (int i = 0; i < sets.count(); ++i) {
    for (int j = 0; j < i; ++j) EXPECT_FALSE(sets.contains(j, i)) << i << " stands behind " << j;
    EXPECT_TRUE(sets.contains(sets.count() - 1, i));
  }
}

// Layer 2 reads 0 past 1: both outputs cross the cut after {0, 1}.
TEST(Downsets, SendWhatIsReadPastTheCut) {
  const Downsets sets = downsets(joined(layers(3), {{0, 1}, {1, 2}, {0, 2}}));
  ASSERT_EQ(members(sets, 2), (std::set<int>{0, 1}));
  EXPECT_EQ(sets.boundary[2], 11_B);
  EXPECT_EQ(sets.boundary[1], 1_B);
}

TEST(Downsets, LeaveOutInputsAndSinksCalledGetitem) {
  Graph graph = joined(layers(4), {{0, 1}, {1, 2}, {1, 3}});
  graph.layers[0].kind = kInputKind;
  graph.layers[3].name = "__getitem__(0)";
  const Downsets sets = downsets(graph);
  ASSERT_EQ(sets.count(), 3);
  EXPECT_EQ(members(sets, 2), (std::set<int>{1, 2}));
}

TEST(Downsets, GrowFromTheFirstSourceAlone) {
  // Layer 2, a second source, is added with its reader 3; layer 4, which the first source does not reach, is never
  // added.
  const Downsets sets = downsets(joined(layers(5), {{0, 1}, {1, 3}, {2, 3}}));
  ASSERT_EQ(sets.count(), 4);
  EXPECT_EQ(members(sets, 2), (std::set<int>{0, 1}));
  EXPECT_EQ(members(sets, 3), (std::set<int>{0, 1, 2, 3}));
}

TEST(Downsets, AreRefusedWhereTheyAreMoreThanAsked) {
  EXPECT_TRUE(std::holds_alternative<Downsets>(pipedream_downsets(fan(5), 33)));
  EXPECT_THAT(std::get<Infeasible>(pipedream_downsets(fan(5), 32)).reason,
              AllOf(HasSubstr("7 layers"), HasSubstr("32")));
  Graph inputs = layers(2);
  for (Layer& layer : inputs.layers) layer.kind = kInputKind;
  EXPECT_THAT(std::get<Infeasible>(pipedream_downsets(inputs, 9)).reason, HasSubstr("no layers"));
}

/// Every layer but the first reads an earlier one or several.
Graph random_graph(std::mt19937& random) {
  const int count = 2 + static_cast<int>(random() % 8);
  Graph graph = layers(count);
  for (int i = 1; i < count; ++i) {
    std::set<int> sources;
    for (unsigned n = 1 + random() % 2; n > 0; --n)
      sources.insert(static_cast<int>(random() % static_cast<unsigned>(i)));
    for (const int source : sources) graph.edges.push_back({source, i, std::nullopt});
  }
  return graph;
}

// Of all subsets of the layers, the down-sets are those that contain the sources of each of their layers.
TEST(Downsets, AreAllSubsetsThatHoldTheirSourcesWhereThereIsOneSource) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const Graph graph = random_graph(random);
    std::set<std::set<int>> wanted;
    for (unsigned bits = 0; bits < 1u << graph.layers.size(); ++bits) {
      const auto has = [&](int layer) { return (bits >> layer & 1) != 0; };
      bool closed = true;
      for (const Edge& edge : graph.edges) closed = closed && (!has(edge.destination) || has(edge.source));
      std::set<int> set;
      for (int i = 0; i < static_cast<int>(graph.layers.size()); ++i) {
        if (has(i)) set.insert(i);
      }
      if (closed) wanted.insert(set);
    }
    const Downsets sets = downsets(graph);
    std::set<std::set<int>> found;
    for (int s = 0; s < sets.count(); ++s) {
      const std::set<int> all = members(sets, s);
      EXPECT_TRUE(found.insert(all).second) << "seed " << seed;
      Seconds compute;
      Bytes bytes;
      for (const int layer : all) {
        compute += graph.layers[static_cast<std::size_t>(layer)].forward.median +
                   graph.layers[static_cast<std::size_t>(layer)].backward.median;
        bytes += graph.layers[static_cast<std::size_t>(layer)].parameter_bytes;
      }
      const auto at = static_cast<std::size_t>(s);
      EXPECT_EQ(sets.compute[at], compute) << "seed " << seed;
      EXPECT_EQ(sets.parameter[at], bytes) << "seed " << seed;
      EXPECT_EQ(sets.activation[at], Bytes(bytes.value / 2)) << "seed " << seed;
      for (int t = 0; t < s; ++t) {
        EXPECT_FALSE(sets.contains(t, s)) << "seed " << seed << ": a set stands before one that it holds";
        const std::set<int> earlier = members(sets, t);
        EXPECT_EQ(sets.contains(s, t), std::includes(all.begin(), all.end(), earlier.begin(), earlier.end()))
            << "seed " << seed;
      }
    }
    EXPECT_EQ(found, wanted) << "seed " << seed;
  }
}

// Sets of more than 64 layers take several words.
TEST(Downsets, HoldHundredsOfLayers) {
  Graph graph = testing::chain_graph(std::vector<double>(200, 1), std::vector<double>(200, 2), 8_B);
  const Downsets sets = downsets(graph);
  ASSERT_EQ(sets.count(), 201);
  EXPECT_EQ(sets.words, 4);
  EXPECT_EQ(members(sets, 130).size(), 130u);
  EXPECT_TRUE(sets.contains(130, 129));
  EXPECT_FALSE(sets.contains(129, 130));
  EXPECT_EQ(sets.compute.back(), 600_s);
  EXPECT_EQ(sets.boundary[130], 8_B);
}

}  // namespace
}  // namespace stagecraft::partitioner
