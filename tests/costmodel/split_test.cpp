#include "costmodel/split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft {
namespace {

using ::testing::ElementsAre;

Graph graph_of(const std::vector<std::string>& ids) {
  Graph graph;
  for (const std::string& id : ids) {
    Layer layer;
    layer.id = layer.name = id;
    layer.kind = id == "input" ? kInputKind : "Linear";
    if (!graph.layers.empty())
      graph.edges.push_back({static_cast<int>(graph.layers.size()) - 1, static_cast<int>(graph.layers.size()), {}});
    graph.layers.push_back(layer);
  }
  return graph;
}

std::string refusal(const std::vector<std::string>& layers, const std::vector<std::string>& names) {
  try {
    (void)bounds_at(layers, names);
  } catch (const std::invalid_argument& e) { return e.what(); }
  return "";
}

TEST(BoundsAt, BeginsAStageAtEachNamedLayer) {
  EXPECT_THAT(bounds_at({"a", "b", "c", "d"}, {"b", "d"}), ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(bounds_at({"a", "b"}, {}), ElementsAre(0, 2));
}

TEST(BoundsAt, TakesTheFirstLayerOfAModule) {
  EXPECT_THAT(bounds_at({"stem", "h.1.attn", "h.1.mlp", "h.10.attn"}, {"h.10"}), ElementsAre(0, 3, 4));
  EXPECT_THAT(bounds_at({"stem", "h.1.attn", "h.1.mlp", "h.10.attn"}, {"h.1"}), ElementsAre(0, 1, 4));
}

TEST(BoundsAt, ListsTheLayersForAnUnknownName) {
  EXPECT_EQ(refusal({"a", "b"}, {"x"}), "unknown layer \"x\", known are a, b");
  EXPECT_EQ(refusal({"a", "b"}, {""}), "unknown layer \"\", known are a, b");
  std::vector<std::string> many;
  for (int i = 0; i < 70; ++i) many.push_back(std::to_string(i));
  EXPECT_THAT(refusal(many, {"x"}), ::testing::HasSubstr("58, 59, and 10 more"));
}

TEST(BoundsAt, RefusesTheFirstLayerAndNamesOutOfOrder) {
  EXPECT_EQ(refusal({"a", "b"}, {"a"}), "\"a\" begins the first stage; give the first layers of the later stages");
  EXPECT_EQ(refusal({"a", "b", "c"}, {"c", "b"}),
            "\"b\" does not come after \"c\" in the list of layers; give them in order");
  EXPECT_EQ(refusal({"a", "b", "c"}, {"b", "b"}),
            "\"b\" does not come after \"b\" in the list of layers; give them in order");
}

TEST(PartitionOfBounds, LeavesInputsOut) {
  const Graph graph = graph_of({"input", "a", "b", "c"});
  EXPECT_THAT(layer_list(graph), ElementsAre(1, 2, 3));
  EXPECT_THAT(layer_ids(graph), ElementsAre("a", "b", "c"));
  const Partition partition = partition_of_bounds(graph, {0, 2, 3});
  EXPECT_THAT(partition.stage_of_layer, ElementsAre(-1, 0, 0, 1));
  EXPECT_THAT(partition.replicas, ElementsAre(1, 1));
}

TEST(PartitionOfBounds, RefusesBoundsThatDoNotIncrease) {
  const Graph graph = graph_of({"a", "b", "c"});
  for (const std::vector<int>& bounds :
       std::vector<std::vector<int>>{{}, {0}, {1, 3}, {0, 2}, {0, 4}, {0, 1, 1, 3}, {0, 9, 3}, {0, -1, 3}}) {
    EXPECT_THROW((void)partition_of_bounds(graph, bounds), std::invalid_argument);
  }
}

}  // namespace
}  // namespace stagecraft
