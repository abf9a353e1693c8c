#include "costmodel/interchange/convert/stage_modules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/support/refused.h"

namespace stagecraft::interchange {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Edges = std::vector<std::pair<int, int>>;

/// Layer i is "node{i}"; inputs are those whose description begins with "Input".
Graph graph_of(const std::vector<std::string>& descriptions, const Edges& edges) {
  Graph graph;
  for (std::size_t i = 0; i < descriptions.size(); ++i) {
    Layer& layer = graph.layers.emplace_back();
    layer.id = "node" + std::to_string(i);
    layer.name = descriptions[i];
    layer.kind = layer.name.starts_with(kInputKind) ? kInputKind : layer.name.substr(0, layer.name.find('('));
  }
  for (const auto& [from, to] : edges) graph.edges.push_back({from, to, {}});
  return graph;
}

ValueFlow flow_of(const std::vector<std::string>& descriptions, const Edges& edges, const std::vector<int>& stages) {
  return value_flow(graph_of(descriptions, edges), stages, {});
}

std::vector<std::string> names(const ValueFlow& flow, const std::vector<Leaf>& leaves) {
  std::vector<std::string> out;
  for (const Leaf& leaf : leaves) out.push_back(leaf_name(flow, leaf));
  return out;
}

// input -> LSTM, whose result is (output, (h, c)); stage 1 reads only c.
const std::vector<std::string> kLstm{"Input0", "LSTM(4, 4)", "__getitem__(1)", "__getitem__(1)", "Tanh()"};
const Edges kLstmEdges{{0, 1}, {1, 2}, {2, 3}, {3, 4}};

TEST(ValueFlow, FollowsItemsOfTuplesToTheTensorThatIsRead) {
  const ValueFlow flow = flow_of(kLstm, kLstmEdges, {-1, 0, 0, 0, 1});
  EXPECT_EQ(leaves(flow, 1).size(), 3u);
  EXPECT_THAT(names(flow, leaves(flow, 1)), ElementsAre("item0_of_node1", "item1_0_of_node1", "item1_1_of_node1"));
  EXPECT_EQ(leaves(flow, 2).size(), 2u);  // (h, c)
  EXPECT_THAT(names(flow, leaves(flow, 3)), ElementsAre("node3"));
  EXPECT_THAT(names(flow, flow.inputs[1]), ElementsAre("node3"));
  EXPECT_THAT(names(flow, flow.outputs[0]), ElementsAre("node3"));
}

TEST(ValueFlow, SendsTheItemWhoseReaderIsInAnotherStage) {
  // The state leaves stage 0 as its two tensors; item 1 is taken after the cut.
  const ValueFlow flow = flow_of(kLstm, kLstmEdges, {-1, 0, 0, 1, 1});
  EXPECT_THAT(names(flow, flow.inputs[1]), ElementsAre("item1_of_node2"));
  EXPECT_THAT(names(flow, flow.outputs[0]), ElementsAre("item1_of_node2"));
  EXPECT_THAT(names(flow, flow.outputs[1]), ElementsAre("node4"));
}

TEST(ReceivedText, PutsTuplesTogetherFromTheirTensors) {
  const ValueFlow flow = flow_of(kLstm, kLstmEdges, {-1, 0, 0, 0, 1});
  EXPECT_EQ(received_text(flow, 1, flow.nodes[1].form, {}), "(item0_of_node1, (item1_0_of_node1, item1_1_of_node1))");
  EXPECT_EQ(received_text(flow, 1, flow.nodes[1].form.items[1], {1}), "(item1_0_of_node1, item1_1_of_node1)");
  EXPECT_EQ(received_text(flow, 4, flow.nodes[4].form, {}), "node4");
}

TEST(ValueFlow, MakesNumbersAndNoneWhereTheyAreRead) {
  // Stage 1 reads the length of the first axis of Tanh's result, so that result itself crosses.
  const ValueFlow flow =
      flow_of({"Input0", "Tanh()", "Size(0)", "View(-1)"}, {{0, 1}, {1, 2}, {1, 3}, {2, 3}}, {-1, 0, 0, 1});
  EXPECT_TRUE(is_inline(flow.nodes[2]));
  EXPECT_FALSE(is_inline(flow.nodes[1]));
  EXPECT_THAT(names(flow, flow.inputs[1]), ElementsAre("node1"));
}

TEST(ValueFlow, NumbersInputsByTheirNamesBeforeAllLayers) {
  const ValueFlow flow = flow_of({"Input1", "Input0", "Add"}, {{0, 2}, {1, 2}}, {-1, -1, 0});
  EXPECT_EQ(flow.nodes[0].name, "input1");
  EXPECT_EQ(flow.nodes[1].name, "input0");
  EXPECT_LT(flow.nodes[1].position, flow.nodes[0].position);
  EXPECT_LT(flow.nodes[0].position, 0);
  EXPECT_THAT(names(flow, flow.inputs[0]), ElementsAre("input0", "input1"));
}

TEST(ValueFlow, GivesWhatNobodyReadsAndLeavesUnreadItemsOut) {
  // Nothing reads Tanh or item 0. An unread item is an output only if no other item of the tuple is read.
  const ValueFlow flow =
      flow_of({"Input0", "LSTM(4, 4)", "__getitem__(0)", "Tanh()"}, {{0, 1}, {1, 2}, {0, 3}}, {-1, 0, 0, 0});
  EXPECT_TRUE(flow.nodes[3].output);
  EXPECT_TRUE(flow.nodes[2].output);  // the LSTM's part of the model's outputs
  EXPECT_FALSE(flow.nodes[1].output);
  const ValueFlow more =
      flow_of({"Input0", "LSTM(4, 4)", "__getitem__(0)", "__getitem__(1)", "__getitem__(0)", "Tanh()"},
              {{0, 1}, {1, 2}, {1, 3}, {3, 4}, {2, 5}}, {-1, 0, 0, 0, 0, 0});
  EXPECT_FALSE(more.nodes[4].used);  // Tanh reads another item of the LSTM's result
  EXPECT_FALSE(more.nodes[4].output);
  EXPECT_TRUE(more.nodes[5].output);
}

TEST(ValueFlow, NamesTheLayerThatReadsALaterStage) {
  EXPECT_THAT(testing::refused([] { return flow_of({"Input0", "Tanh()", "ReLU()"}, {{0, 1}, {1, 2}}, {-1, 1, 0}); }),
              AllOf(HasSubstr("layer \"node2\""), HasSubstr("stage 0"), HasSubstr("\"node1\""), HasSubstr("stage 1")));
}

TEST(ValueFlow, NamesTheLayerWithTheWrongNumberOfInputs) {
  const auto refused = [](const std::vector<std::string>& descriptions, const Edges& edges) {
    return testing::refused([&] { return flow_of(descriptions, edges, std::vector<int>(descriptions.size(), 0)); });
  };
  EXPECT_THAT(refused({"Input0", "Add"}, {{0, 1}}), AllOf(HasSubstr("layer \"node1\": Add"), HasSubstr("2 or more")));
  EXPECT_THAT(refused({"Input0", "Input1", "Tanh()"}, {{0, 2}, {1, 2}}), HasSubstr("layer \"node2\": Tanh"));
  EXPECT_THAT(refused({"Input0", "Input1", "Input2", "LSTM(4, 4)"}, {{0, 3}, {1, 3}, {2, 3}}),
              AllOf(HasSubstr("layer \"node3\": LSTM"), HasSubstr("1 to 2")));
}

TEST(ValueFlow, NamesTheLayerThatReadsAnotherForm) {
  const auto refused = [](const std::string& before, const std::string& layer) {
    return testing::refused([&] { return flow_of({"Input0", before, layer}, {{0, 1}, {1, 2}}, {-1, 0, 0}); });
  };
  EXPECT_THAT(refused("LSTM(4, 4)", "Tanh()"), AllOf(HasSubstr("\"node2\""), HasSubstr("a tuple")));
  EXPECT_THAT(refused("Size(0)", "Tanh()"), AllOf(HasSubstr("\"node2\""), HasSubstr("a number")));
  EXPECT_THAT(refused("Tanh()", "__getitem__(0)"), AllOf(HasSubstr("\"node2\""), HasSubstr("a tensor")));
  EXPECT_THAT(refused("LSTM(4, 4)", "__getitem__(2)"), AllOf(HasSubstr("\"node2\""), HasSubstr("item 2")));
  EXPECT_THAT(refused("Size(0)", "View(-1)"), AllOf(HasSubstr("\"node2\""), HasSubstr("0 tensors")));
}

// Sums of one tensor each: a stage takes the inputs and earlier stages' values that its layers read, and gives the
// values that other stages take or that nothing reads.
TEST(ValueFlow, CrossesWhatAnotherStageReadsOnRandomGraphs) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const int layers = 2 + static_cast<int>(random() % 9);
    std::vector<std::string> descriptions{"Input0", "Input1"};
    Edges edges;
    std::vector<int> stages{-1, -1};
    int stage = 0;
    for (int i = 2; i < layers + 2; ++i) {
      descriptions.emplace_back("Add");
      std::set<int> sources;
      while (sources.size() < 2) sources.insert(static_cast<int>(random() % static_cast<unsigned>(i)));
      for (const int source : sources) edges.emplace_back(source, i);
      if (i > 2 && random() % 3 == 0) ++stage;
      stages.push_back(stage);
    }
    const ValueFlow flow = flow_of(descriptions, edges, stages);
    std::vector<std::set<int>> taken(static_cast<std::size_t>(stage) + 1);
    std::vector<std::set<int>> given(taken.size());
    std::set<int> read;
    for (const auto& [from, to] : edges) {
      const int source = stages[static_cast<std::size_t>(from)];
      const int reader = stages[static_cast<std::size_t>(to)];
      read.insert(from);
      if (source == reader) continue;
      taken[static_cast<std::size_t>(reader)].insert(from);
      if (source >= 0) given[static_cast<std::size_t>(source)].insert(from);
    }
    for (int i = 2; i < layers + 2; ++i) {
      if (!read.contains(i)) given[static_cast<std::size_t>(stages[static_cast<std::size_t>(i)])].insert(i);
    }
    const auto layers_of = [](const std::vector<Leaf>& leaves) {
      std::set<int> out;
      for (const Leaf& leaf : leaves) out.insert(leaf.layer);
      EXPECT_EQ(out.size(), leaves.size());
      return out;
    };
    for (std::size_t s = 0; s < taken.size(); ++s) {
      EXPECT_EQ(layers_of(flow.inputs[s]), taken[s]) << "seed " << seed << " stage " << s;
      EXPECT_EQ(layers_of(flow.outputs[s]), given[s]) << "seed " << seed << " stage " << s;
      EXPECT_TRUE(std::ranges::is_sorted(flow.inputs[s])) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace stagecraft::interchange
