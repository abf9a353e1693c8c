#include "costmodel/interchange/convert/stage_modules.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/format/files/files.h"
#include "costmodel/interchange/pipedream.h"
#include "tests/support/places.h"

namespace stagecraft::interchange {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

using Edges = std::vector<std::pair<int, int>>;

/// Layer i is "node{i}"; inputs are those whose description begins with "Input".
Graph graph_of(const std::vector<std::string>& descriptions, const Edges& edges) {
  Graph graph;
  graph.name = "toy";
  for (std::size_t i = 0; i < descriptions.size(); ++i) {
    Layer& layer = graph.layers.emplace_back();
    layer.id = "node" + std::to_string(i);
    layer.name = descriptions[i];
    layer.kind = layer.name.starts_with(kInputKind) ? kInputKind : layer.name.substr(0, layer.name.find('('));
    layer.outputs.push_back({4_B, {}, "", true});
  }
  for (const auto& [from, to] : edges) graph.edges.push_back({from, to, {}});
  validate(graph);
  return graph;
}

PythonPackage convert(const std::vector<std::string>& descriptions, const Edges& edges, const std::vector<int>& stages,
                      const OwnKinds& classes = {}) {
  const PythonPackage package = package_of(graph_of(descriptions, edges), stages, classes);
  (void)package_files(package);  // the stages' inputs and outputs must match
  return package;
}

std::string failure(const std::vector<std::string>& descriptions, const Edges& edges, const std::vector<int>& stages,
                    const OwnKinds& classes = {}) {
  try {
    (void)convert(descriptions, edges, stages, classes);
  } catch (const std::invalid_argument& e) { return e.what(); }
  return "nothing was refused";
}

/// The lines of forward, starting with its signature.
std::string forward(const StageModule& stage) { return stage.text.substr(stage.text.find("    def forward")); }

TEST(PackageOf, WritesAModuleAndALineForEachLayer) {
  const PythonPackage package = convert({"Input", "Conv2d(3, 8, kernel_size=(3, 3), bias=False)", "ReLU(inplace)",
                                         "Size(0)", "View(-1)", "Linear(in_features=8, out_features=2, bias=True)"},
                                        {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {2, 4}, {4, 5}}, {-1, 0, 0, 0, 0, 0});
  ASSERT_EQ(package.stages.size(), 1U);
  EXPECT_EQ(package.stages[0].text, R"(import torch


class Stage0(torch.nn.Module):
    """Takes the tensors of INPUTS in order; returns those of OUTPUTS, a tuple if there are several."""

    INPUTS = ("input0",)
    OUTPUTS = ("node5",)

    def __init__(self):
        super().__init__()
        self.node1 = torch.nn.Conv2d(in_channels=3, out_channels=8, kernel_size=(3, 3), bias=False)
        self.node2 = torch.nn.ReLU(inplace=True)
        self.node5 = torch.nn.Linear(in_features=8, out_features=2, bias=True)

    def forward(self, input0):
        node1 = self.node1(input0)
        node2 = self.node2(node1)
        node4 = node2.view(node2.size(0), -1)
        node5 = self.node5(node4)
        return node5
)");
  EXPECT_THAT(package.inputs, ElementsAre("input0"));
  EXPECT_THAT(package.outputs, ElementsAre("node5"));
  EXPECT_TRUE(package.more_files.empty());
}

TEST(PackageOf, GivesAValueToEveryLaterStageThatReadsIt) {
  // Stages 1 and 2 both read node1, which skips stage 1 on its way to stage 2.
  const PythonPackage package =
      convert({"Input", "Tanh()", "Sigmoid()", "Add"}, {{0, 1}, {1, 2}, {2, 3}, {1, 3}}, {-1, 0, 1, 2});
  EXPECT_THAT(package.stages[0].outputs, ElementsAre("node1"));
  EXPECT_THAT(package.stages[1].inputs, ElementsAre("node1"));
  EXPECT_THAT(package.stages[1].outputs, ElementsAre("node2"));
  EXPECT_THAT(package.stages[2].inputs, ElementsAre("node1", "node2"));
  EXPECT_EQ(forward(package.stages[2]),
            "    def forward(self, node1, node2):\n        node3 = node2 + node1\n        return node3\n");
}

TEST(PackageOf, AllowsSourcesAndSinksInAnyStage) {
  // Input1 enters and node3 leaves in the middle of the model; the model returns both unread values, in the graph's
  // order.
  const PythonPackage package = convert({"Input0", "Tanh", "Input1", "Sigmoid", "Mul", "Tanh"},
                                        {{0, 1}, {1, 3}, {1, 4}, {2, 4}, {4, 5}}, {-1, 0, -1, 1, 1, 2});
  EXPECT_THAT(package.inputs, ElementsAre("input0", "input1"));
  EXPECT_THAT(package.outputs, ElementsAre("node3", "node5"));
  EXPECT_THAT(package.stages[1].inputs, ElementsAre("input1", "node1"));
  EXPECT_THAT(package.stages[1].outputs, ElementsAre("node3", "node4"));
  EXPECT_THAT(package.stages[2].inputs, ElementsAre("node4"));
}

TEST(PackageOf, NumbersInputsAsTheyAreNamed) {
  const PythonPackage package = convert({"Input1", "Input0", "Concat(1)"}, {{0, 2}, {1, 2}}, {-1, -1, 0});
  EXPECT_THAT(forward(package.stages[0]), HasSubstr("node2 = torch.cat([input1, input0], 1)"));
  EXPECT_THAT(package.inputs, ElementsAre("input0", "input1"));
}

TEST(PackageOf, OverwritesOnlyValuesWithoutOtherReaders) {
  const auto relu = [](const Edges& edges, const std::vector<int>& stages) {
    const PythonPackage package = convert({"Input", "BatchNorm2d(8)", "ReLU(inplace)", "Add(inplace)"}, edges, stages);
    return package.stages.size() > 1 ? package.stages[1].text : package.stages[0].text;
  };
  constexpr const char* kOverwrites = "torch.nn.ReLU(inplace=True)";
  EXPECT_THAT(relu({{0, 1}, {1, 2}, {2, 3}, {0, 3}}, {-1, 0, 0, 0}), HasSubstr(kOverwrites));
  EXPECT_THAT(relu({{0, 1}, {1, 2}, {2, 3}, {1, 3}}, {-1, 0, 0, 0}), HasSubstr("torch.nn.ReLU()"));
  EXPECT_THAT(relu({{0, 1}, {1, 2}, {2, 3}, {0, 3}}, {-1, 0, 1, 1}), HasSubstr("torch.nn.ReLU()"));
  EXPECT_THAT(relu({{0, 2}, {0, 1}, {2, 3}, {1, 3}}, {-1, 0, 0, 0}), HasSubstr("torch.nn.ReLU()"));
}

TEST(PackageOf, SendsOnlyTheItemsThatAreRead) {
  // Stage 1 reads the state (item 1) as a whole, so it crosses as two tensors; item 0 crosses as it is.
  const PythonPackage package =
      convert({"Input", "LSTM(8, 8)", "__getitem__(0)", "__getitem__(1)", "LSTM(8, 8)", "__getitem__(0)", "Tanh"},
              {{0, 1}, {1, 2}, {1, 3}, {2, 4}, {3, 4}, {4, 5}, {5, 6}}, {-1, 0, 0, 1, 1, 1, 1});
  EXPECT_THAT(package.stages[0].outputs, ElementsAre("item1_0_of_node1", "item1_1_of_node1", "node2"));
  EXPECT_THAT(forward(package.stages[0]), HasSubstr("        return (node1[1][0], node1[1][1], node2)\n"));
  EXPECT_THAT(forward(package.stages[1]), HasSubstr("        node3 = (item1_0_of_node1, item1_1_of_node1)\n"
                                                    "        node4 = self.node4(node2, node3)\n"
                                                    "        node5 = node4[0]\n"));
  const PythonPackage state = convert({"Input", "LSTM(8, 8)", "__getitem__(0)", "__getitem__(1)", "LSTM(8, 8)"},
                                      {{0, 1}, {1, 2}, {1, 3}, {2, 4}, {3, 4}}, {-1, 0, 0, 0, 1});
  EXPECT_THAT(state.stages[1].inputs, ElementsAre("node2", "item0_of_node3", "item1_of_node3"));
  EXPECT_THAT(forward(state.stages[1]), HasSubstr("self.node4(node2, (item0_of_node3, item1_of_node3))"));
  EXPECT_THAT(state.outputs, ElementsAre("item0_of_node4", "item1_0_of_node4", "item1_1_of_node4"));
}

TEST(PackageOf, LeavesOutItemsThatNobodyReadsUnlessThereIsNothingElse) {
  const PythonPackage read = convert({"Input", "LSTM(8, 8)", "__getitem__(0)", "__getitem__(1)", "Tanh"},
                                     {{0, 1}, {1, 2}, {1, 3}, {2, 4}}, {-1, 0, 0, 0, 0});
  EXPECT_THAT(read.stages[0].text, Not(HasSubstr("node3")));
  EXPECT_THAT(read.outputs, ElementsAre("node4"));
  const PythonPackage last =
      convert({"Input", "LSTM(8, 8)", "__getitem__(0)", "__getitem__(1)"}, {{0, 1}, {1, 2}, {1, 3}}, {-1, 0, 0, 0});
  EXPECT_THAT(last.outputs, ElementsAre("node2", "item0_of_node3", "item1_of_node3"));
}

TEST(PackageOf, MakesHiddenAndSizesWhereTheyAreRead) {
  const PythonPackage package =
      convert({"Input", "hidden", "__getitem__(3)", "LSTM(8, 8)", "__getitem__(0)", "Size(1)", "View(8)"},
              {{1, 2}, {0, 3}, {2, 3}, {3, 4}, {4, 5}, {4, 6}, {5, 6}}, {-1, 1, 0, 0, 0, 0, 1});
  EXPECT_THAT(forward(package.stages[0]), HasSubstr("node3 = self.node3(input0, None)"));
  EXPECT_THAT(package.stages[0].outputs, ElementsAre("node4"));
  EXPECT_THAT(forward(package.stages[1]), HasSubstr("        node6 = node4.view(node4.size(1), 8)\n"));
  EXPECT_THAT(forward(package.stages[1]), Not(HasSubstr("None")));
}

TEST(PackageOf, KeepsTheBatchWhereAViewSaysLittle) {
  const auto view = [](const std::string& description) {
    return forward(convert({"Input", description}, {{0, 1}}, {-1, 0}).stages[0]);
  };
  EXPECT_THAT(view("View(9216)"), HasSubstr("node1 = input0.view(input0.size(0), 9216)"));
  EXPECT_THAT(view("View(4, 5)"), HasSubstr("node1 = input0.view(input0.size(0), 4, 5)"));
  EXPECT_THAT(view("View"), HasSubstr("node1 = input0.view(input0.size(0), -1)"));
  const PythonPackage sizes =
      convert({"Input", "Size(0)", "Size(2)", "View"}, {{0, 1}, {0, 2}, {1, 3}, {0, 3}, {2, 3}}, {-1, 0, 0, 0});
  EXPECT_THAT(forward(sizes.stages[0]), HasSubstr("node3 = input0.view(input0.size(0), input0.size(2))"));
}

TEST(PackageOf, ConstructsAUsersKind) {
  const PythonPackage package = convert({"Input", "Odd(3, mode='x')", "Nest(  (a): Tanh())", "__getitem__(1)", "Tanh"},
                                        {{0, 1}, {1, 2}, {2, 3}, {3, 4}}, {-1, 0, 0, 0, 0},
                                        {{"Odd", "my.modules:Strange"}, {"Nest", "other:Nest"}});
  EXPECT_THAT(package.stages[0].text, HasSubstr("import torch\nimport my.modules\nimport other\n\n\nclass"));
  EXPECT_THAT(package.stages[0].text, HasSubstr("self.node1 = my.modules.Strange(3, mode=\"x\")\n"));
  EXPECT_THAT(package.stages[0].text, HasSubstr("self.node2 = other.Nest(\"Nest((a): Tanh)\")\n"));
  EXPECT_EQ(failure({"Input", "Odd"}, {{0, 1}}, {-1, 0}, {{"Odd", "os;x:y"}}),
            "layer \"node1\": Odd: found \"os;x:y\", expected MODULE:CLASS");
  EXPECT_THAT(failure({"Input", "Odd"}, {{0, 1}}, {-1, 0}, {{"Odd", "layers:A"}}),
              HasSubstr("expected a module other than"));
}

TEST(PackageOf, WritesGnmtsModules) {
  const std::string attention =
      "RecurrentAttention(  (rnn): LSTM(16, 8)  (attn): BahdanauAttention(    (linear_q): Linear(in_features=8, "
      "out_features=4, bias=False)    (linear_k): Linear(in_features=12, out_features=4, bias=False)    (dropout): "
      "Dropout(p=0)  )  (dropout): Dropout(p=0.1))";
  const std::vector<std::string> layers{"Input",
                                        "Input",
                                        "EmuBidirLSTM(  (bidir): LSTM(8, 6, bidirectional=True)  (layer1): LSTM(8, 6))",
                                        "hidden",
                                        attention,
                                        "__getitem__(0)",
                                        "Classifier(  (classifier): Linear(in_features=8, out_features=5, bias=True))"};
  const Edges edges{{0, 2}, {1, 2}, {0, 4}, {3, 4}, {2, 4}, {1, 4}, {4, 5}, {5, 6}};
  const PythonPackage package = convert(layers, edges, {-1, -1, 0, 0, 0, 0, 0});
  EXPECT_THAT(package.stages[0].text, HasSubstr(R"(import torch

from . import layers

)"));
  EXPECT_THAT(package.stages[0].text, HasSubstr(R"(        self.node2 = layers.EmuBidirLSTM(input_size=8, hidden_size=6)
        self.node4 = layers.RecurrentAttention(input_size=16, hidden_size=8, context_size=12, units=4, dropout=0.1, )"
                                                R"(attention_dropout=0)
        self.node6 = layers.Classifier(bias=True, in_features=8, out_features=5)

    def forward(self, input0, input1):
        node2 = self.node2(input0, input1)
        node4 = self.node4(input0, None, node2, input1)
        node5 = node4[0]
        node6 = self.node6(node5)
)"));
  EXPECT_EQ(package.more_files.at("layers.py"), layers_text());
  const auto refusal = [&](const std::string& description) {
    std::vector<std::string> other = layers;
    other[4] = description;
    return failure(other, edges, {-1, -1, 0, 0, 0, 0, 0});
  };
  EXPECT_EQ(refusal("RecurrentAttention(  (rnn): GRU(16, 8))"),
            "layer \"node4\": RecurrentAttention: no LSTM called \"rnn\" inside");
  EXPECT_EQ(refusal("RecurrentAttention(  (rnn): LSTM(16, 8, num_layers=2))"),
            "layer \"node4\": RecurrentAttention: argument \"num_layers\", LSTM takes input_size, hidden_size, "
            "bidirectional");
}

TEST(PackageOf, NamesTheLayerItCannotConvert) {
  const auto one = [](const std::string& description) { return failure({"Input", description}, {{0, 1}}, {-1, 0}); };
  EXPECT_THAT(one("MaskConv(3)"), HasSubstr("layer \"node1\": MaskConv: unknown kind \"MaskConv\", known are "
                                            "AdaptiveAvgPool2d, AdaptiveMaxPool2d, Add, "));
  EXPECT_THAT(one("MaskConv(3)"), HasSubstr("; use --layer MaskConv=MODULE:CLASS to give its class"));
  EXPECT_EQ(one("Linear(3)"),
            "layer \"node1\": Linear: argument \"out_features\" is missing, Linear takes "
            "in_features, out_features, bias");
  EXPECT_EQ(one("Linear(3, 4, weight=5)"),
            "layer \"node1\": Linear: argument \"weight\", Linear takes in_features, out_features, bias");
  EXPECT_EQ(one("Linear(3, 4, out_features=5)"),
            "layer \"node1\": Linear: argument \"out_features\" twice, Linear "
            "takes in_features, out_features, bias");
  EXPECT_EQ(one("Tanh(1)"), "layer \"node1\": Tanh: 1 values, Tanh takes no arguments");
  EXPECT_EQ(one("Add"), "layer \"node1\": Add reads 1 layers, expected 2 or more");
  EXPECT_EQ(one("__getitem__(0)"), "layer \"node1\": takes an item of a tensor");
  EXPECT_EQ(one("Concat(dim)"), "layer \"node1\": Concat: found True, expected the axis");
  EXPECT_THAT(one("Tanh("), HasSubstr("layer \"node1\": \"Tanh(\": at character 6"));
  EXPECT_EQ(failure({"Input", "LSTM(8, 8)", "__getitem__(2)"}, {{0, 1}, {1, 2}}, {-1, 0, 0}),
            "layer \"node2\": takes item 2, there are 2, from 0");
  EXPECT_EQ(failure({"Input", "LSTM(8, 8)", "Tanh"}, {{0, 1}, {1, 2}}, {-1, 0, 0}),
            "layer \"node2\": reads a tuple of layer \"node1\", Tanh takes a tensor there");
  EXPECT_EQ(failure({"Input", "Tanh", "Tanh"}, {{0, 1}, {1, 2}}, {-1, 1, 0}),
            "layer \"node2\": is in stage 0 and reads layer \"node1\" of the later stage 1");
  EXPECT_EQ(failure({"Input", "Tanh", "Size(0)", "View"}, {{0, 1}, {1, 2}, {2, 3}, {1, 3}}, {-1, 0, 1, 2}),
            "stage 1 computes no tensor; move its layers to an adjacent stage");
}

TEST(PackageOf, EndsForLongResidualNetworks) {
  // 300 blocks have 2^300 paths: enumerating them would outlast the test's time limit.
  std::vector<std::string> descriptions{"Input"};
  Edges edges;
  std::vector<int> stages{-1};
  for (int block = 0; block < 300; ++block) {
    const int last = static_cast<int>(descriptions.size()) - 1;
    descriptions.insert(descriptions.end(),
                        {"Conv2d(8, 8, kernel_size=(3, 3))", "BatchNorm2d(8)", "ReLU(inplace)", "Add"});
    edges.insert(
        edges.end(),
        {{last, last + 1}, {last + 1, last + 2}, {last + 2, last + 3}, {last + 3, last + 4}, {last, last + 4}});
    stages.insert(stages.end(), 4, block / 75);
  }
  const PythonPackage package = convert(descriptions, edges, stages);
  EXPECT_EQ(package.stages.size(), 4U);
  EXPECT_THAT(package.stages[3].inputs, ElementsAre("node900"));
}

TEST(StagesOf, AreThePlansOrTheGraphs) {
  Graph graph = graph_of({"Input", "Tanh", "Tanh"}, {{0, 1}, {1, 2}});
  const auto refusal = [&](const auto&... arguments) {
    try {
      (void)stages_of(graph, arguments...);
    } catch (const std::invalid_argument& e) { return std::string(e.what()); }
    return std::string("nothing was refused");
  };
  Plan plan;
  plan.stages = {{{"node1"}, {0}}, {{"node2"}, {1}}};
  EXPECT_THAT(stages_of(graph, plan), ElementsAre(-1, 0, 1));
  plan.stages[1].layers = {"node3"};
  EXPECT_EQ(refusal(plan), "stage 1: layer \"node3\" is not in the graph");
  plan.stages[1].layers = {"node1"};
  EXPECT_EQ(refusal(plan), "stage 1: layer \"node1\" is already in stage 0");
  plan.stages[1].layers = {"node0"};
  EXPECT_EQ(refusal(plan), "stage 1: layer \"node0\" is an input");
  plan.stages.pop_back();
  EXPECT_EQ(refusal(plan), "layer \"node2\" is not in any stage");

  EXPECT_EQ(refusal(), "layer \"node1\" has no stage_id, expected one for each layer");
  graph.layers[1].stage = 0;
  graph.layers[2].stage = 2;
  EXPECT_EQ(refusal(), "stage 1 has no layers, but a later stage does");
  graph.layers[2].stage = 1;
  EXPECT_THAT(stages_of(graph), ElementsAre(-1, 0, 1));
}

TEST(PackageOf, KnowsEveryKindOfThePublishedProfiles) {
  for (const char* name : {"alexnet", "gnmt", "resnet18", "resnet50", "vgg16"}) {
    const std::string path = source_folder() + "/tests/golden/pipedream/" + std::string(name) + ".txt";
    const Graph graph = parse_pipedream(format::read_text(path), path);
    std::vector<int> stages;
    for (const Layer& layer : graph.layers) stages.push_back(is_input(layer) ? -1 : 0);
    const PythonPackage package = package_of(graph, stages, {});
    EXPECT_EQ(package.arch, name);
    EXPECT_EQ(package.outputs.size(), 1U);
  }
}

}  // namespace
}  // namespace stagecraft::interchange
