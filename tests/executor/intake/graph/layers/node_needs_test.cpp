#include "executor/intake/graph/layers/node_needs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/graph_sketch.h"
#include "tests/support/refused.h"

namespace stagecraft::intake {
namespace {

using stagecraft::testing::refused;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Origin = GraphValue::Origin;

std::vector<bool> needed(Sketch& s, const std::string& root) {
  GraphMemory memory(s.graph);
  return needed_nodes(s.graph, s.value(root), memory);
}

/// Every node is repeatable except those that the test marks.
std::vector<bool> repeatable(Sketch& s, const std::string& root) {
  GraphMemory memory(s.graph);
  return repeatable_nodes(s.graph, needed_nodes(s.graph, s.value(root), memory), memory);
}

GraphNode& cheap(Sketch& s, const std::string& name, const std::vector<std::string>& reads) {
  GraphNode& node = s.node(name, "m", reads);
  node.repeatable = true;
  return node;
}

TEST(GraphMemory, KnowsWhoseMemoryAValueIsIn) {
  Sketch s;
  for (const auto& [name, origin] : std::vector<std::pair<std::string, Origin>>{
           {"x", Origin::Input}, {"w", Origin::Parameter}, {"mean", Origin::Buffer}, {"table", Origin::Constant}})
    s.value(name, origin);
  GraphNode& view = s.node("view", "m", {"mean"});
  view.aliases = {{view.gives[0], s.value("mean")}};
  s.node("fresh", "m", {"x"});
  GraphMemory memory(s.graph);
  EXPECT_EQ(memory.of(s.value("view")), memory.of(s.value("mean")));
  EXPECT_TRUE(memory.is_state(memory.of(s.value("view"))));
  EXPECT_TRUE(memory.is_state(memory.of(s.value("table"))));
  EXPECT_FALSE(memory.is_state(memory.of(s.value("w"))));
  EXPECT_TRUE(memory.is_trained(s.value("w")));
  EXPECT_FALSE(memory.is_trained(s.value("mean")));
  EXPECT_TRUE(memory.reaches_input(s.value("x")));
  EXPECT_FALSE(memory.reaches_input(s.value("fresh")));
}

TEST(NeededNodes, AreThoseThatTheRootFollowsFrom) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("a", "m", {"x"});
  s.node("unread", "m", {"a"});
  s.node("loss", "m", {"a"});
  s.node("late", "m", {"loss"});
  EXPECT_THAT(needed(s, "loss"), ElementsAre(true, false, true, false));
}

TEST(NeededNodes, WritesOfBuffersAreNeeded) {
  Sketch s;
  s.value("x", Origin::Input);
  s.value("mean", Origin::Buffer);
  s.node("statistic", "m", {"x"});
  s.in_place(s.node("moved", "m", {"mean", "statistic"}), "mean");
  s.node("loss", "m", {"x"});
  EXPECT_THAT(needed(s, "loss"), ElementsAre(true, true, true)) << "what is written is needed too";
}

TEST(NeededNodes, WritesOfWantedMemoryAreNeeded) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("a", "m", {"x"});
  s.in_place(s.node("relu_", "m", {"a"}), "a");
  s.node("b", "m", {"x"});
  s.in_place(s.node("lost_", "m", {"b"}), "b");
  s.node("loss", "m", {"a"});
  EXPECT_THAT(needed(s, "loss"), ElementsAre(true, true, false, false, true));
}

TEST(NeededNodes, RandomNumbersAreDrawnThoughNobodyReadsThem) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("noise", "m", {"x"}).random = true;
  s.node("loss", "m", {"x"});
  EXPECT_THAT(needed(s, "loss"), ElementsAre(true, true));
}

TEST(NeededNodes, NamesTheNodeThatWritesAParameter) {
  Sketch s;
  s.value("w", Origin::Parameter);
  s.in_place(s.node("clamp_", "m", {"w"}), "w");
  s.node("loss", "m", {"w"});
  EXPECT_THAT(refused([&] { return needed(s, "loss"); }),
              AllOf(HasSubstr("model.pt2"), HasSubstr("\"clamp_\""), HasSubstr("\"w\"")));
}

TEST(RepeatableNodes, FollowFromInputsAlone) {
  Sketch s;
  s.value("x", Origin::Input);
  s.value("w", Origin::Parameter);
  cheap(s, "mask", {"x"});
  cheap(s, "positions", {"mask"});
  cheap(s, "scaled", {"positions", "w"});
  cheap(s, "loss", {"scaled"});
  EXPECT_THAT(repeatable(s, "loss"), ElementsAre(true, true, false, false));
}

TEST(RepeatableNodes, AreNeededCheapAndNotRandom) {
  Sketch s;
  s.value("x", Origin::Input);
  cheap(s, "unread", {"x"});
  s.node("heavy", "m", {"x"});
  cheap(s, "noise", {"x"}).random = true;
  cheap(s, "after", {"heavy"});
  cheap(s, "mask", {"x"});
  s.node("loss", "m", {"heavy", "noise", "after", "mask"});
  EXPECT_THAT(repeatable(s, "loss"), ElementsAre(false, false, false, false, true, false));
}

TEST(RepeatableNodes, BufferThatIsWrittenIsNoConstant) {
  for (const bool written : {false, true}) {
    Sketch s;
    s.value("x", Origin::Input);
    s.value("mean", Origin::Buffer);
    cheap(s, "shifted", {"x", "mean"});
    if (written) s.in_place(s.node("moved", "m", {"mean"}), "mean");
    s.node("loss", "m", {"shifted"});
    EXPECT_EQ(repeatable(s, "loss").front(), !written);
  }
}

TEST(RepeatableNodes, MemoryThatIsWrittenByOthersIsNotRepeated) {
  Sketch s;
  s.value("x", Origin::Input);
  cheap(s, "mask", {"x"});
  s.in_place(s.node("dropped", "m", {"mask"}), "mask");  // this node is not repeatable
  s.node("loss", "m", {"mask"});
  EXPECT_THAT(repeatable(s, "loss"), ElementsAre(false, false, false));
}

TEST(RepeatableNodes, OwnWritesAreRepeatedWithTheirMemory) {
  Sketch s;
  s.value("x", Origin::Input);
  cheap(s, "mask", {"x"});
  s.in_place(cheap(s, "filled", {"mask"}), "mask");
  s.node("loss", "m", {"filled"});
  EXPECT_THAT(repeatable(s, "loss"), ElementsAre(true, true, false));
}

TEST(RepeatableNodes, ReadBetweenTwoWritesIsNotRepeated) {
  Sketch s;
  s.value("x", Origin::Input);
  cheap(s, "mask", {"x"});
  s.node("early", "m", {"mask"});  // a layer that reads the mask before it is filled
  s.in_place(cheap(s, "filled", {"mask"}), "mask");
  s.node("loss", "m", {"filled", "early"});
  EXPECT_THAT(repeatable(s, "loss"), ElementsAre(false, false, false, false));
}

TEST(RepeatableNodes, InputIsNeverWrittenTwice) {
  Sketch s;
  s.value("x", Origin::Input);
  s.in_place(cheap(s, "relu_", {"x"}), "x");
  s.node("loss", "m", {"relu_"});
  EXPECT_THAT(repeatable(s, "loss"), ElementsAre(false, false));
}

}  // namespace
}  // namespace stagecraft::intake
