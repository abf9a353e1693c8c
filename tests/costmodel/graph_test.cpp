#include "costmodel/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/format/graph_json.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// a -> b -> d, a -> c -> d, listed as d, c, b, a.
Graph diamond() {
  Graph graph;
  graph.name = "diamond";
  for (const char* id : {"d", "c", "b", "a"}) {
    Layer layer;
    layer.id = layer.name = id;
    layer.kind = "Linear";
    layer.forward.median = 1_s;
    layer.backward.median = 2_s;
    layer.outputs = {Output{Bytes(8), {}, "", true}};
    graph.layers.push_back(layer);
  }
  graph.edges = {{3, 2, {}}, {3, 1, {}}, {2, 0, {}}, {1, 0, {}}};
  return graph;
}

TEST(Graph, OrdersLayersSoThatEveryEdgeGoesForward) {
  EXPECT_THAT(topological_order(diamond()), ElementsAre(3, 1, 2, 0));
}

TEST(Graph, NamesALayerOnACycle) {
  Graph graph = diamond();
  graph.edges.push_back({0, 2, {}});
  EXPECT_THAT([&] { validate(graph); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("is on a cycle; a graph must be acyclic")));
}

TEST(Graph, AddsForwardAndBackwardOfAllLayersButInputs) {
  Graph graph = diamond();
  EXPECT_EQ(compute_time(graph), Seconds(12));
  graph.layers[3].kind = kInputKind;
  EXPECT_EQ(compute_time(graph), Seconds(9));
}

TEST(Graph, ReadsBackWhatItWrites) {
  const Graph graph = diamond();
  EXPECT_EQ(format::parse_graph(format::graph_json(graph), "graph.json"), graph);
}

TEST(DistrustText, IsEmptyUnlessTheProfilerDistrustedItself) {
  Graph graph;
  EXPECT_EQ(distrust_text(graph), "") << "not measured by our profiler";
  graph.quality = ProfileQuality{};
  EXPECT_EQ(distrust_text(graph), "");
  graph.quality->trusted = false;
  EXPECT_EQ(distrust_text(graph), "the profile is not trusted: the file gives no reason");
  graph.quality->reasons = {"a", "b"};
  EXPECT_EQ(distrust_text(graph), "the profile is not trusted: a; b");
}

TEST(LayersById, FindsEachLayer) {
  const Graph graph = testing::chain_graph({1, 1, 1}, {2, 2, 2});
  const LayersById layers(graph);
  EXPECT_EQ(layers.index("l0"), 0);
  EXPECT_EQ(layers.index("l2"), 2);
}

TEST(LayersById, ListsTheLayersThatThereAre) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  const LayersById layers(graph);
  try {
    static_cast<void>(layers.index("l7"));
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_NE(std::string(e.what()).find("l0, l1"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace stagecraft
