#include "executor/intake/graph/layers/layer_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "costmodel/index.h"
#include "tests/support/graph_sketch.h"

namespace stagecraft::intake {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Origin = GraphValue::Origin;

std::vector<std::string> names(const Grouping& grouping) {
  std::vector<std::string> out;
  for (const LayerGroup& group : grouping.groups) out.push_back(group.name);
  return out;
}

/// A stem, two residual blocks of a list, a head and a loss.
Sketch residual_net() {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("stem", "stem", {"x"}, "Conv2d");
  for (const std::string b : {"0", "1"}) {
    const std::string in = b == "0" ? "stem" : "add0";
    s.node("conv" + b, "blocks." + b + ".conv", {in}, "Conv2d");
    s.node("relu" + b, "blocks." + b + ".act", {"conv" + b}, "ReLU");
    s.node("add" + b, "blocks." + b, {"relu" + b, in});
  }
  s.node("pool", "", {"add1"});
  s.node("fc", "head", {"pool"}, "Linear");
  s.node("loss", "", {"fc"});
  return s;
}

TEST(LayerGroups, AutoTakesTheRepeatedBlocksAndTheirNeighbours) {
  const Grouping found = residual_net().groups("loss");
  EXPECT_THAT(names(found), ElementsAre("stem", "blocks.0", "blocks.1", "head"));
  // The parent's pool joins the block before it, and the loss joins the head.
  EXPECT_THAT(found.groups[2].nodes, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(found.groups[3].nodes, ElementsAre(8, 9));
  EXPECT_EQ(found.groups[1].kind, "Outer");
  EXPECT_EQ(found.groups[0].kind, "Conv2d");
  EXPECT_THAT(found.merged, IsEmpty());
}

TEST(LayerGroups, LeafTakesTheInnermostModules) {
  EXPECT_THAT(names(residual_net().groups("loss", "leaf")),
              ElementsAre("stem", "blocks.0.conv", "blocks.0.act", "blocks.1.conv", "blocks.1.act", "head"));
}

TEST(LayerGroups, DepthCountsModulesBelowTheWhole) {
  EXPECT_THAT(names(residual_net().groups("loss", "depth=1")), ElementsAre("stem", "blocks.0", "blocks.1", "head"));
  EXPECT_THAT(names(residual_net().groups("loss", "depth=2")),
              ElementsAre("stem", "blocks.0.conv", "blocks.0.act", "blocks.1.conv", "blocks.1.act", "head"));
}

TEST(LayerGroups, OpTakesEachOperator) {
  EXPECT_THAT(names(residual_net().groups("loss", "op")),
              ElementsAre("stem:stem", "blocks.0.conv:conv0", "blocks.0.act:relu0", "blocks.0:add0",
                          "blocks.1.conv:conv1", "blocks.1.act:relu1", "blocks.1:add1", "pool", "head:fc", "loss"));
}

TEST(LayerGroups, NodesOfAParentBeforeTheFirstChildJoinIt) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("scale", "", {"x"}).repeatable = false;
  s.node("fc", "fc", {"scale"}, "Linear");
  s.node("loss", "", {"fc"});
  const Grouping found = s.groups("loss");
  ASSERT_THAT(names(found), ElementsAre("fc"));
  EXPECT_THAT(found.groups[0].nodes, ElementsAre(0, 1, 2));
}

TEST(LayerGroups, AutoTakesEachOperatorOfAModelWithoutModules) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("sin", "", {"x"});
  s.node("loss", "", {"sin"});
  EXPECT_THAT(names(s.groups("loss")), ElementsAre("sin", "loss"));
  EXPECT_THAT(names(s.groups("loss", "leaf")), ElementsAre("Net"));
}

TEST(LayerGroups, ASecondCallOfAModuleIsASeparateLayer) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("first", "block", {"x"});
  s.node("between", "other", {"first"});
  s.node("second", "block", {"between"}).modules.back().call = 1;
  s.node("loss", "", {"second"});
  EXPECT_THAT(names(s.groups("loss")), ElementsAre("block", "other", "block@1"));
}

TEST(LayerGroups, AnInterruptedModuleIsTwoLayers) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("a", "one", {"x"});
  s.node("b", "two", {"a"});
  s.node("c", "one", {"b"});
  EXPECT_THAT(names(s.groups("c")), ElementsAre("one", "two", "one#2"));
}

TEST(LayerGroups, LeavesOutWhatTheLossDoesNotNeed) {
  Sketch s = residual_net();
  s.node("extra", "extra", {"fc"});
  EXPECT_THAT(names(s.groups("loss")), ElementsAre("stem", "blocks.0", "blocks.1", "head"));
}

TEST(LayerGroups, KeepsWhatDrawsRandomNumbersThatNobodyReads) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("a", "a", {"x"});
  s.node("unread", "", {"a"}).random = true;
  s.node("b", "b", {"a"});
  s.node("loss", "b", {"b"});
  s.node("late", "c", {"b"}).random = true;
  const Grouping found = s.groups("loss");
  ASSERT_THAT(names(found), ElementsAre("a", "b"));
  EXPECT_THAT(found.groups[0].nodes, ElementsAre(0, 1));
  // The layer with the loss is the last layer.
  EXPECT_THAT(found.groups[1].nodes, ElementsAre(2, 3, 4));
  EXPECT_EQ(found.merged.at("c"), "is part of layer \"b\": it comes after the loss");
}

TEST(LayerGroups, MergesWhatSharesACastThatAutocastKeeps) {
  Sketch s;
  s.value("x", Origin::Input);
  s.value("weight", Origin::Parameter);
  const GraphBlock whole{.name = "wrap", .autocast = true, .enabled = true, .cache = true};
  s.node("first", "a", {"x", "weight"}).blocks = {whole};
  s.node("between", "b", {"first"}).blocks = {whole};
  s.node("second", "c", {"between", "weight"}).blocks = {whole};
  s.node("behind", "d", {"second"}).blocks = {whole};
  s.node("loss", "e", {"behind", "weight"});
  const Grouping found = s.groups("loss");
  EXPECT_THAT(names(found), ElementsAre("a", "d", "e"));
  EXPECT_EQ(found.merged.at("c"),
            "is part of layer \"a\": both read \"weight\", which the torch.autocast block \"wrap\" casts once for "
            "both; cache_enabled=False allows a cut between them");
  for (GraphNode& node : s.graph.nodes) {
    if (!node.blocks.empty()) node.blocks.front().cache = false;
  }
  EXPECT_THAT(names(s.groups("loss")), ElementsAre("a", "b", "c", "d", "e"));
}

TEST(LayerGroups, AWriteToWhatOnlyItReadsMayBeCut) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("conv", "conv", {"x"});
  s.in_place(s.node("relu_", "relu", {"conv"}), "conv");
  s.node("loss", "loss", {"relu_"});
  EXPECT_THAT(names(s.groups("loss")), ElementsAre("conv", "relu", "loss"));
}

TEST(LayerGroups, MergesWhereTheOldNameIsReadAfterTheWrite) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("conv", "conv", {"x"});
  s.in_place(s.node("relu_", "relu", {"conv"}), "conv");
  s.node("skip", "skip", {"relu_", "conv"});
  s.node("loss", "loss", {"skip"});
  const Grouping found = s.groups("loss");
  EXPECT_THAT(names(found), ElementsAre("conv", "relu", "loss"));
  EXPECT_EQ(found.merged.at("skip"),
            "is part of layer \"relu\": \"relu_\" writes in place to \"conv\", which is read later under that name");
}

TEST(LayerGroups, MergesWhereTwoReceivedValuesShareMemoryThatIsWritten) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("conv", "conv", {"x"});
  GraphNode& view = s.node("view", "view", {"conv"});
  view.aliases = {{view.gives[0], s.value("conv")}};
  GraphNode& add = s.node("add_", "add", {"view", "conv"});
  s.in_place(add, "view");
  s.node("loss", "loss", {"add_"});
  const Grouping found = s.groups("loss");
  EXPECT_THAT(names(found), ElementsAre("conv", "loss"));
  EXPECT_THAT(found.merged.at("add"), HasSubstr("\"add_\" writes in place to \"view\", whose memory another value"));
}

TEST(LayerGroups, MergesWhatSharesAWrittenBuffer) {
  Sketch s;
  s.value("x", Origin::Input);
  s.value("mean", Origin::Buffer);
  s.node("norm", "a", {"x", "mean"}).writes = {s.value("mean")};
  s.node("b", "b", {"norm"});
  s.node("norm2", "c", {"b", "mean"}).writes = {s.value("mean")};
  s.node("loss", "loss", {"norm2"});
  const Grouping found = s.groups("loss");
  EXPECT_THAT(names(found), ElementsAre("a", "loss"));
  EXPECT_THAT(found.merged.at("c"), HasSubstr("\"mean\", a buffer that both use"));
}

TEST(LayerGroups, AWriteOfABufferAtTheEndJoinsTheLayerItReads) {
  Sketch s;
  s.value("x", Origin::Input);
  s.value("ema", Origin::Buffer);
  s.node("a", "a", {"x"});
  s.node("b", "b", {"a"});
  s.node("loss", "", {"b"});
  s.node("copy_", "", {"ema", "a"}).writes = {s.value("ema")};
  const Grouping found = s.groups("loss");
  EXPECT_THAT(names(found), ElementsAre("a", "b"));
  EXPECT_THAT(found.groups[0].nodes, ElementsAre(0, 3));
}

TEST(LayerGroups, RefusesAWriteToAParameter) {
  Sketch s;
  s.value("x", Origin::Input);
  s.value("weight", Origin::Parameter);
  s.node("renorm_", "embed", {"weight", "x"}).writes = {s.value("weight")};
  s.node("loss", "embed", {"weight", "x"});
  try {
    (void)s.groups("loss");
    FAIL() << "accepted";
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(),
                 "model.pt2: node \"renorm_\" (torch.ops.aten.renorm_.default) in module \"embed\" changes the trained "
                 "parameter \"weight\" in its forward, which only the optimizer may; use a buffer");
  }
}

TEST(LayerGroups, SharesWhatFollowsFromTheInputsAndSeveralLayersRead) {
  Sketch s;
  s.value("mask", Origin::Input);
  s.value("x", Origin::Input);
  s.node("wide", "", {"mask"}).repeatable = true;
  s.node("bias", "", {"wide"}).repeatable = true;
  s.node("embed", "embed", {"x"});
  s.node("a", "blocks.0", {"embed", "bias"});
  s.node("b", "blocks.1", {"a", "bias"});
  s.node("loss", "", {"b"});
  const Grouping found = s.groups("loss");
  EXPECT_THAT(names(found), ElementsAre("embed", "blocks.0", "blocks.1"));
  EXPECT_THAT(found.shared, ElementsAre(0, 1));
  EXPECT_THAT(found.derived, ElementsAre(s.value("bias")));
}

TEST(LayerGroups, WhatOneLayerAloneReadsIsPartOfIt) {
  Sketch s;
  s.value("tokens", Origin::Input);
  s.node("ids", "", {"tokens"}).repeatable = true;
  s.node("first", "first", {"tokens"});
  s.node("second", "second", {"first", "ids"});
  s.node("loss", "", {"second"});
  const Grouping found = s.groups("loss");
  ASSERT_THAT(names(found), ElementsAre("first", "second"));
  EXPECT_THAT(found.groups[1].nodes, ElementsAre(0, 2, 3));
  EXPECT_THAT(found.shared, IsEmpty());
}

TEST(LayerGroups, WritesWithinAMaskStayWithIt) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("full", "", {}).repeatable = true;
  GraphNode& fill = s.node("fill_", "", {"full", "x"});
  fill.repeatable = true;
  s.in_place(fill, "full");
  s.node("a", "blocks.0", {"x", "full"});
  s.node("b", "blocks.1", {"a", "fill_"});
  const Grouping found = s.groups("b");
  // Both nodes are shared although fill_'s result has one reader, because its memory has two.
  EXPECT_THAT(found.shared, ElementsAre(0, 1));
  EXPECT_THAT(found.derived, ElementsAre(s.value("full"), s.value("fill_")));
}

/// s = labels.new_zeros(...); s[:, 1:] = labels[:, :-1].clone(): how encoder-decoders shift their labels.
Sketch shifted_labels(const std::vector<std::string>& readers) {
  Sketch s;
  s.value("labels", Origin::Input);
  s.value("x", Origin::Input);
  s.node("new_zeros", "", {"labels"}).repeatable = true;
  GraphNode& view = s.node("slice", "", {"labels"});
  view.repeatable = true;
  view.aliases = {{view.gives[0], s.value("labels")}};
  s.node("clone", "", {"slice"}).repeatable = true;
  GraphNode& target = s.node("slice_1", "", {"new_zeros"});
  target.repeatable = true;
  target.aliases = {{target.gives[0], s.value("new_zeros")}};
  GraphNode& copy = s.node("copy_", "", {"slice_1", "clone"});
  copy.repeatable = true;
  s.in_place(copy, "slice_1");
  std::string last = "x";
  for (const std::string& reader : readers) {
    s.node(reader, reader, {last, "new_zeros"});
    last = reader;
  }
  s.node("head", "head", {last});
  return s;
}

TEST(LayerGroups, WhatIsWrittenIntoASliceBelongsToTheOnlyLayerThatReadsTheWhole) {
  const Grouping found = shifted_labels({"embed"}).groups("head");
  ASSERT_THAT(names(found), ElementsAre("embed", "head"));
  // All of 0 to 4, including clone, whose result only copy_ reads.
  EXPECT_THAT(found.groups[0].nodes, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(found.shared, IsEmpty());
}

TEST(LayerGroups, WhatIsWrittenIntoASliceIsSharedWithTheWhole) {
  Sketch s = shifted_labels({"first", "second"});
  const Grouping found = s.groups("head");
  EXPECT_THAT(found.shared, ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(found.derived, ElementsAre(s.value("new_zeros")));
  EXPECT_THAT(shared_nodes_for(s.graph, found, s.value("new_zeros")), ElementsAre(0, 1, 2, 3, 4));
}

TEST(LayerGroups, AMaskThatIsWrittenAfterALayerReadsItIsNotMadeBeforehand) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("full", "", {}).repeatable = true;
  s.node("a", "blocks.0", {"x", "full"});
  GraphNode& fill = s.node("fill_", "", {"full"});
  fill.repeatable = true;
  s.in_place(fill, "full");
  s.node("b", "blocks.1", {"a", "full"});
  s.node("c", "blocks.2", {"b", "full"});
  const Grouping found = s.groups("c");
  // a reads the mask before it is written, and no value made in advance can have both contents. full and fill_ become
  // part of the first layer.
  EXPECT_THAT(found.shared, IsEmpty());
  EXPECT_THAT(found.derived, IsEmpty());
  ASSERT_THAT(names(found), ElementsAre("blocks.0", "blocks.1", "blocks.2"));
  EXPECT_THAT(found.groups[0].nodes, ElementsAre(0, 1, 2));
}

TEST(LayerGroups, NonTensorsStayInside) {
  Sketch s;
  s.value("x", Origin::Input);
  s.node("list", "a", {"x"});
  s.graph.values[to_index(s.value("list"))].kind = GraphValue::Kind::Other;
  s.node("b", "b", {"list"});
  s.node("c", "c", {"b"});
  const Grouping found = s.groups("c");
  EXPECT_THAT(names(found), ElementsAre("a", "c"));
  EXPECT_EQ(found.merged.at("b"),
            "is part of layer \"a\": \"list\", which is not a tensor, passes from one to the other");
}

TEST(ParseGranularity, ListsWhatThereIs) {
  for (const char* text : {"", "depth", "depth=0", "depth=x", "depth=101", "blocks"}) {
    try {
      (void)parse_granularity(text);
      FAIL() << text;
    } catch (const std::invalid_argument& e) {
      EXPECT_EQ(e.what(), "layers \"" + std::string(text) + "\": expected auto, leaf, op, or depth=N with N in 1..100");
    }
  }
  EXPECT_EQ(parse_granularity("depth=12").depth, 12);
}

}  // namespace
}  // namespace stagecraft::intake
