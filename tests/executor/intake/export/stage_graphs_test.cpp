#include "executor/intake/export/stage_graphs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "costmodel/index.h"
#include "executor/intake/pt2/program_metadata.h"
#include "tests/support/graph_sketch.h"

namespace stagecraft::intake {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Origin = GraphValue::Origin;

SizeExpression symbol() { return parse_size_expression("Symbol('s0', positive=True, integer=True)"); }
SizeExpression times(int factor) {
  return parse_size_expression("Mul(Integer(" + std::to_string(factor) +
                               "), Symbol('s0', positive=True, integer=True))");
}

/// Adds the node `name`, which computes a number from the size of `tensor`.
void size_node(Sketch& s, const std::string& name, const std::string& tensor, const SizeExpression& is) {
  GraphNode& node = s.node(name, "", {tensor});
  node.number = true;
  node.target = "torch.ops.aten.sym_size.int";
  GraphValue& value = s.graph.values[to_index(s.value(name))];
  value.kind = GraphValue::Kind::Number;
  value.number = is;
}

void set_sizes(Sketch& s, const std::string& name, std::vector<SizeExpression> sizes) {
  s.graph.values[to_index(s.value(name))].meta->sizes = std::move(sizes);
}

std::vector<StageGraph> cut(Sketch& s, const std::string& loss, const std::vector<std::vector<int>>& stages) {
  return stage_graphs(s.graph, s.groups(loss), s.value(loss), stages);
}

/// Consecutive layers a, b and c; c also reads a's result.
Sketch chain() {
  Sketch s;
  s.value("x", Origin::Input);
  s.value("y", Origin::Input);
  s.node("a", "a", {"x"});
  s.node("b", "b", {"a"});
  s.node("c", "c", {"b", "a", "y"});
  return s;
}

TEST(StageGraphs, SendWhatLaterStagesReadAndTheLossLast) {
  Sketch s = chain();
  const auto found = cut(s, "c", {{0}, {1}, {2}});
  ASSERT_EQ(found.size(), 3U);
  EXPECT_THAT(found[0].nodes, ElementsAre(0));
  EXPECT_THAT(found[0].inputs, ElementsAre(s.value("x")));
  EXPECT_THAT(found[0].received, IsEmpty());
  EXPECT_THAT(found[0].outputs, ElementsAre(s.value("a")));
  EXPECT_THAT(found[1].received, ElementsAre(s.value("a")));
  EXPECT_THAT(found[1].inputs, IsEmpty());
  EXPECT_THAT(found[1].outputs, ElementsAre(s.value("b")));
  EXPECT_THAT(found[2].received, ElementsAre(s.value("a"), s.value("b")));
  EXPECT_THAT(found[2].inputs, ElementsAre(s.value("y")));
  EXPECT_THAT(found[2].outputs, ElementsAre(s.value("c")));
}

TEST(StageGraphs, ComputeInEachStageWhatFollowsFromTheInputs) {
  Sketch s;
  s.value("mask", Origin::Input);
  s.value("x", Origin::Input);
  s.value("steps", Origin::Constant);
  s.node("wide", "", {"mask"}).repeatable = true;
  s.node("bias", "", {"wide", "steps"}).repeatable = true;
  s.node("embed", "embed", {"x"});
  s.node("a", "blocks.0", {"embed", "bias"});
  s.node("b", "blocks.1", {"a", "bias"});
  const auto found = cut(s, "b", {{0}, {1}, {2}});
  EXPECT_THAT(found[0].nodes, ElementsAre(2));
  EXPECT_THAT(found[0].tensors, IsEmpty());
  for (const std::size_t stage : {1U, 2U}) {
    EXPECT_THAT(found[stage].nodes, ElementsAre(0, 1, to_int(stage) + 2)) << stage;
    EXPECT_THAT(found[stage].inputs, ElementsAre(s.value("mask"))) << stage;
    EXPECT_THAT(found[stage].tensors, ElementsAre(s.value("steps"))) << stage;
    EXPECT_EQ(found[stage].received.size(), 1U) << stage;
  }
}

TEST(StageGraphs, CopyWhatIsReceivedAndWrittenThroughAView) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("a", "a", {"x"});
  s.node("view", "b", {"a"}).aliases = {{s.value("view"), s.value("a")}};
  s.in_place(s.node("relu_", "b", {"view"}), "view");
  s.node("loss", "b", {"relu_"});
  const auto found = cut(s, "loss", {{0}, {1}});
  EXPECT_THAT(found[0].copied, IsEmpty());
  EXPECT_THAT(found[1].copied, ElementsAre(s.value("a")));
  // Within one stage, no other stage uses the value.
  EXPECT_THAT(cut(s, "loss", {{0, 1}})[0].copied, IsEmpty());
}

TEST(StageGraphs, CopyAnInputThatIsWritten) {
  Sketch s;
  s.value("x", Origin::Input);
  s.in_place(s.node("relu_", "a", {"x"}), "x");
  s.node("loss", "b", {"relu_"});
  EXPECT_THAT(cut(s, "loss", {{0, 1}})[0].copied, ElementsAre(s.value("x")));
}

TEST(StageGraphs, AskASizeOfWhatTheyReceive) {
  Sketch s;
  s.value("x", Origin::Input);
  set_sizes(s, "x", {symbol()});
  size_node(s, "batch", "x", symbol());
  s.node("a", "a", {"x", "batch"});
  set_sizes(s, "a", {3, symbol()});
  s.node("b", "b", {"a", "batch"});
  const auto found = cut(s, "b", {{0}, {1}});
  EXPECT_THAT(found[0].nodes, ElementsAre(0, 1));
  EXPECT_THAT(found[0].sizes, IsEmpty());
  EXPECT_THAT(found[1].nodes, ElementsAre(2));
  EXPECT_THAT(found[1].inputs, IsEmpty());
  EXPECT_THAT(found[1].sizes, ElementsAre(SizeSource{s.value("batch"), s.value("a"), 1}));
}

TEST(StageGraphs, PreferASizeThatIsTheNumberToOneThatTellsIt) {
  Sketch s;
  s.value("x", Origin::Input);
  set_sizes(s, "x", {symbol()});
  size_node(s, "batch", "x", symbol());
  s.node("a", "a", {"x"});
  s.node("a2", "a", {"a"});
  set_sizes(s, "a", {times(8)});
  set_sizes(s, "a2", {symbol()});
  s.node("b", "b", {"a", "a2", "batch"});
  EXPECT_THAT(cut(s, "b", {{0}, {1}})[1].sizes, ElementsAre(SizeSource{s.value("batch"), s.value("a2"), 0}));
  set_sizes(s, "a2", {7});
  EXPECT_THAT(cut(s, "b", {{0}, {1}})[1].sizes, ElementsAre(SizeSource{s.value("batch"), s.value("a"), 0}));
}

TEST(StageGraphs, TakeAnInputIfNothingElseTellsTheBatch) {
  Sketch s;
  s.value("x", Origin::Input);
  set_sizes(s, "x", {2, symbol()});
  size_node(s, "batch", "x", symbol());
  s.node("a", "a", {"x"});
  set_sizes(s, "a", {4});
  s.node("b", "b", {"a", "batch"});
  const auto found = cut(s, "b", {{0}, {1}});
  EXPECT_THAT(found[1].inputs, ElementsAre(s.value("x")));
  EXPECT_THAT(found[1].sizes, ElementsAre(SizeSource{s.value("batch"), s.value("x"), 1}));
}

TEST(StageGraphs, KeepUnreadTensorsWithTheirTiedOneOrInTheLastStage) {
  Sketch s;
  s.value("x", Origin::Input);
  for (const char* name : {"weight", "twin", "unused"}) s.value(name, Origin::Parameter);
  s.value("counter", Origin::Buffer);
  const auto source = [&](const char* name, int tensor) { s.graph.values[to_index(s.value(name))].source = tensor; };
  source("weight", 0);
  source("twin", 0);
  source("unused", 1);
  source("counter", 2);
  s.node("a", "a", {"x", "weight"});
  s.node("b", "b", {"a"});
  const auto found = cut(s, "b", {{0}, {1}});
  EXPECT_THAT(found[0].tensors, ElementsAre(s.value("weight"), s.value("twin")));
  EXPECT_THAT(found[1].tensors, ElementsAre(s.value("unused"), s.value("counter")));
}

TEST(StageGraphs, RefuseAStageThatReadsFromALaterOne) {
  Sketch s = chain();
  try {
    (void)cut(s, "c", {{1}, {0, 2}});
    FAIL() << "accepted";
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(),
                 "model.pt2: stage 0 reads \"a\", which stage 1 computes; a stage can only read from earlier ones");
  }
}

}  // namespace
}  // namespace stagecraft::intake
