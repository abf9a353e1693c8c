#include "executor/intake/graph/layers/granularity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/refused.h"

namespace stagecraft::intake {
namespace {

using stagecraft::testing::refused;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// The node "conv" in a Conv2d within blocks.1 (a Block), within a Sequential called 0.
GraphNode deep_node(int call = 0) {
  GraphNode node;
  node.name = "conv";
  node.target = "torch.ops.aten.conv2d.default";
  node.modules = {{"", "m.Net", 0},
                  {"0", "torch.nn.modules.container.Sequential", 0},
                  {"0.blocks.1", "m.Block", call},
                  {"0.blocks.1.conv", "torch.nn.Conv2d", 0}};
  return node;
}

LayerLabel label(const GraphNode& node, const std::string& how) { return label_of(node, parse_granularity(how)); }

TEST(ParseGranularity, ReadsEachKind) {
  using Kind = Granularity::Kind;
  EXPECT_EQ(parse_granularity("auto").kind, Kind::Auto);
  EXPECT_EQ(parse_granularity("leaf").kind, Kind::Leaf);
  EXPECT_EQ(parse_granularity("op").kind, Kind::Operator);
  EXPECT_EQ(parse_granularity("depth=12").kind, Kind::Depth);
  EXPECT_EQ(parse_granularity("depth=12").depth, 12);
}

TEST(ParseGranularity, ListsTheKindsForAnythingElse) {
  for (const char* text : {"", "Auto", "leaf ", "depth", "depth=", "depth=0", "depth=-1", "depth=101", "depth=2x"}) {
    EXPECT_THAT(refused([&] { return parse_granularity(text); }),
                AllOf(HasSubstr('"' + std::string(text) + '"'), HasSubstr("auto"), HasSubstr("leaf"), HasSubstr("op"),
                      HasSubstr("depth=N")))
        << text;
  }
}

TEST(LabelOf, AutoTakesTheOutermostNumberedModuleThatIsNotASequential) {
  const LayerLabel found = label(deep_node(), "auto");
  EXPECT_EQ(found.name, "0.blocks.1");
  EXPECT_EQ(found.path, "0.blocks.1");
  EXPECT_EQ(found.kind, "Block");
}

TEST(LabelOf, AutoTakesTheInnermostModuleWithoutANumberedOne) {
  GraphNode node = deep_node();
  node.modules = {{"", "m.Net", 0}, {"head2", "m.Head", 0}, {"head2.fc", "torch.nn.Linear", 0}};
  EXPECT_EQ(label(node, "auto").name, "head2.fc") << "head2 only ends in a digit";
}

TEST(LabelOf, LeafTakesTheInnermostModule) {
  EXPECT_EQ(label(deep_node(), "leaf").name, "0.blocks.1.conv");
  EXPECT_EQ(label(deep_node(), "leaf").kind, "Conv2d");
}

TEST(LabelOf, DepthStopsAtTheInnermostModule) {
  EXPECT_EQ(label(deep_node(), "depth=1").name, "0");
  EXPECT_EQ(label(deep_node(), "depth=2").name, "0.blocks.1");
  EXPECT_EQ(label(deep_node(), "depth=9").name, "0.blocks.1.conv");
}

TEST(LabelOf, OperatorTakesTheNode) {
  const LayerLabel found = label(deep_node(), "op");
  EXPECT_EQ(found.name, "0.blocks.1.conv:conv");
  EXPECT_EQ(found.kind, "conv2d");
  GraphNode outside = deep_node();
  outside.modules.resize(1);
  EXPECT_EQ(label(outside, "op").name, "conv");
}

TEST(LabelOf, LaterCallOfAModuleAroundItIsAnotherLayer) {
  EXPECT_EQ(label(deep_node(2), "auto").name, "0.blocks.1@2");
  EXPECT_EQ(label(deep_node(2), "leaf").name, "0.blocks.1.conv@2");
  EXPECT_EQ(label(deep_node(2), "depth=1").name, "0") << "the one outside was called once";
  EXPECT_EQ(label(deep_node(2), "auto").path, "0.blocks.1");
}

TEST(LabelOf, NodeWithoutModulesHasNoName) {
  GraphNode node = deep_node();
  node.modules.clear();
  for (const char* how : {"auto", "leaf", "op", "depth=1"}) EXPECT_EQ(label(node, how).name, "") << how;
}

}  // namespace
}  // namespace stagecraft::intake
