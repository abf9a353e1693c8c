#include "costmodel/layers_by_id.h"

#include <gtest/gtest.h>

#include "tests/support/chains.h"

namespace stagecraft {
namespace {

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
