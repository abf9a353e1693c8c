#include "costmodel/interchange/pictures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <regex>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/interchange/pipedream.h"
#include "costmodel/plan.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

namespace stagecraft::interchange {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;

Layer layer_of(const std::string& id, double milliseconds, std::int64_t parameters, std::int64_t bytes) {
  Layer layer;
  layer.id = layer.name = id;
  layer.kind = "Linear";
  layer.forward.median = Seconds(milliseconds / 1000);
  layer.backward.median = Seconds(2 * milliseconds / 1000);
  layer.parameter_bytes = Bytes(parameters);
  layer.outputs = {{Bytes(bytes), {}, "", true}};
  return layer;
}

/// input -> a (3 ms, 1 KiB) -> b (30 ms) -> c (60 ms, 2 KiB), activations of 1, 8 and 2 KiB.
Graph small() {
  Graph graph;
  graph.name = "small";
  Layer& input = graph.layers.emplace_back(layer_of("x", 0, 0, 4096));
  input.kind = kInputKind;
  graph.layers.push_back(layer_of("a", 1, 1024, 1024));
  graph.layers.push_back(layer_of("b", 10, 0, 8192));
  graph.layers.push_back(layer_of("c", 20, 2048, 2048));
  graph.edges = {{0, 1, {}}, {1, 2, 0}, {2, 3, {}}};
  return graph;
}

Plan plan_of_small() {
  Plan plan = testing::row_plan("1f1b", {2, 1}, 4);
  plan.stages[0].layers = {"a", "b"};
  plan.stages[1].layers = {"c"};
  plan.boundaries[0].tensors[0].layer = "b";
  return plan;
}

TEST(GraphDot, WritesTimeAndParametersOfEachLayer) {
  const std::string dot = graph_dot(small());
  EXPECT_THAT(dot, HasSubstr("n1 [label=<<B>a</B> Linear<BR/>3.00 ms, 1.00 KiB>, tooltip=\"a\", "));
  EXPECT_THAT(dot, HasSubstr("n2 [label=<<B>b</B> Linear<BR/>30.0 ms>, "));
  EXPECT_THAT(dot,
              HasSubstr("n0 [label=<<B>x</B> Input>, tooltip=\"x\", fillcolor=\"#eeeeee\", style=\"filled,dashed\"];"));
  EXPECT_THAT(dot, HasSubstr("<B>small</B>: 3 layers, 93.0 ms, 3.00 KiB of parameters"));
  EXPECT_EQ(dot, graph_dot(small()));
}

// Shares of 93 ms: 3.2 %, 32 % and 65 %; the largest activation is 8 KiB, so 4 KiB and more counts as large.
TEST(GraphDot, ColoursByShareAndLabelsLargeEdges) {
  const std::string dot = graph_dot(small());
  EXPECT_THAT(dot, ::testing::ContainsRegex("n1 .*fillcolor=\"#f9c79b\"\\]"));
  EXPECT_THAT(dot, ::testing::ContainsRegex("n2 .*fillcolor=\"#f4a261\", penwidth=2.5\\]"));
  EXPECT_THAT(dot, HasSubstr("n1 -> n2 [tooltip=\"1.00 KiB\"];"));
  EXPECT_THAT(dot, HasSubstr("n2 -> n3 [label=\"8.00 KiB\"];"));
  EXPECT_THAT(dot, HasSubstr("n0 -> n1 [tooltip=\"4.00 KiB\"];"));
}

TEST(GraphDot, FramesTheStagesOfAPlan) {
  const Plan plan = plan_of_small();
  const std::string dot = graph_dot(small(), &plan);
  // 33 ms on two replicas.
  EXPECT_THAT(dot, HasSubstr("<B>Stage 0</B>: 2 replicas, 2 layers<BR ALIGN=\"LEFT\"/>devices 0, 1<BR ALIGN=\"LEFT\"/>"
                             "33.0 ms = 2 x 16.5 ms, 1.00 KiB"));
  EXPECT_THAT(dot,
              HasSubstr("<B>Stage 1</B>: 1 replica, 1 layer<BR ALIGN=\"LEFT\"/>device 2<BR ALIGN=\"LEFT\"/>60.0 ms, "
                        "2.00 KiB"));
  EXPECT_THAT(dot, HasSubstr("2 stages, schedule 1f1b, 4 microbatches"));
  EXPECT_THAT(dot, ::testing::ContainsRegex("n2 -> n3 \\[constraint=false, penwidth=2, .*label=\"8.00 KiB\"\\]"));
}

TEST(GraphDot, RefusesAPlanOfOtherLayers) {
  Plan plan = plan_of_small();
  plan.stages[1].layers = {"d"};
  EXPECT_THROW((void)graph_dot(small(), &plan), std::invalid_argument);
  plan.stages.pop_back();
  try {
    (void)graph_dot(small(), &plan);
    FAIL();
  } catch (const std::invalid_argument& e) { EXPECT_STREQ(e.what(), "layer \"c\" of the graph is not in any stage"); }
}

TEST(GraphDot, EscapesNames) {
  Graph graph = small();
  graph.layers[1].id = "a<b>&\"c\"\\N\x01";
  graph.layers[1].name = "wide " + std::string(300, 'w') + "\\G";
  graph.layers[2].id = std::string(60, 'l');
  const std::string dot = graph_dot(graph);
  EXPECT_THAT(dot, HasSubstr("<B>a&lt;b&gt;&amp;&quot;c&quot;\\\\N </B>"));
  EXPECT_THAT(dot, HasSubstr("w\\\\\\\\G\""));
  EXPECT_THAT(dot, HasSubstr("<B>" + std::string(40, 'l') + "...</B>"));
}

/// WCAG contrast ratio of black on "#rrggbb".
double contrast(const std::string& colour) {
  double luminance = 0;
  const std::array<double, 3> weights{0.2126, 0.7152, 0.0722};
  for (std::size_t i = 0; i < 3; ++i) {
    const double v = std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    luminance += weights[i] * (v <= 0.03928 ? v / 12.92 : std::pow((v + 0.055) / 1.055, 2.4));
  }
  return (luminance + 0.05) / 0.05;
}

TEST(GraphDot, KeepsTextReadableOnEveryColour) {
  Graph graph;
  Plan plan = testing::row_plan("1f1b", std::vector<int>(9, 1), 4);
  for (int i = 0; i < 9; ++i) {
    graph.layers.push_back(layer_of("l" + std::to_string(i), 1, 0, 8));
    if (i > 0) graph.edges.push_back({i - 1, i, {}});
  }
  const std::string dot = graph_dot(graph, &plan) + graph_dot(graph);
  const std::regex fill("fillcolor=\"(#[0-9a-f]{6})\"");
  std::set<std::string> colours;
  for (std::sregex_iterator it(dot.begin(), dot.end(), fill), end; it != end; ++it) {
    colours.insert((*it)[1]);
    EXPECT_GE(contrast((*it)[1]), 7) << (*it)[1];  // AAA
  }
  EXPECT_EQ(colours.size(), 9U);  // eight stages and one shade for equal layers; stage 8 looks like stage 0
}

class GraphTool : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.write("graph.json", format::graph_json(small()));
    folder_.write("plan.json", format::plan_json(plan_of_small()));
  }
  Outcome run(const std::string& command) const { return folder_.run(command); }
  bool has_dot() const { return run("dot -V").status == 0; }
  testing::CommandFolder folder_;
};

TEST_F(GraphTool, WritesTheTextOfTheLibrary) {
  EXPECT_EQ(run("stagecraft-graph graph.json").out, graph_dot(small()));
  const Plan plan = plan_of_small();
  EXPECT_EQ(run("stagecraft-graph - --plan plan.json --dot -o g.dot < graph.json").err, "");
  EXPECT_EQ(folder_.read("g.dot"), graph_dot(small(), &plan));
}

TEST_F(GraphTool, TakesPipeDreamsProfile) {
  const std::string path = source_folder() + "/tests/golden/pipedream/gnmt.txt";
  EXPECT_EQ(run("stagecraft-graph " + path).out, graph_dot(parse_pipedream(format::read_text(path), path)));
}

TEST_F(GraphTool, NamesFileAndLayerOfWhatDoesNotFit) {
  Plan plan = testing::row_plan("1f1b", {1}, 4);
  plan.stages[0].layers = {"a"};
  folder_.write("plan.json", format::plan_json(plan));
  EXPECT_EQ(run("stagecraft-graph graph.json --plan plan.json").err,
            "stagecraft-graph: plan.json: layer \"b\" of the graph is not in any stage [SC2001]\n");
  folder_.write("graph.txt", "node1 -- Add\n");
  EXPECT_THAT(run("stagecraft-graph graph.txt").err, HasSubstr("graph.txt: line 1: found 2 parts"));
  EXPECT_EQ(run("stagecraft-graph graph.json --dot --svg").status, 2);
}

TEST_F(GraphTool, NamesThePackageOfAMissingDot) {
  const Outcome o = run("PATH=/nowhere " + program_folder() + "/stagecraft-graph graph.json --svg");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.err,
            "stagecraft-graph: cannot run dot; install the package graphviz, or use --dot (No such file or directory) "
            "[SC4005]\n");
}

TEST_F(GraphTool, DrawsEveryLayer) {
  if (!has_dot()) GTEST_SKIP() << "no dot, which the package graphviz has";
  const Outcome o = run("stagecraft-graph graph.json --plan plan.json -o g.svg");
  EXPECT_EQ(o.err, "");
  const std::string svg = folder_.read("g.svg");
  for (const char* text : {"<svg", "Stage 0", "Stage 1", ">a</text>", ">b</text>", ">c</text>", "8.00 KiB"}) {
    EXPECT_THAT(svg, HasSubstr(text));
  }
  // A name with markup and backslashes is drawn verbatim.
  Graph graph = small();
  graph.layers[1].id = graph.layers[1].name = "a<b>\\N";
  folder_.write("odd.json", format::graph_json(graph));
  const Outcome odd = run("stagecraft-graph odd.json --svg");
  EXPECT_EQ(odd.err, "");
  EXPECT_THAT(odd.out, HasSubstr(">a&lt;b&gt;\\N</text>"));
  EXPECT_THAT(odd.out, HasSubstr("title=\"a&lt;b&gt;\\N\""));
}

/// The x coordinate at which `dot` puts each node, by name.
std::map<std::string, double> drawn_at(const std::string& plain) {
  std::map<std::string, double> out;
  const std::regex line("node (\\S+) (\\S+) ");
  for (std::sregex_iterator it(plain.begin(), plain.end(), line), end; it != end; ++it) {
    out[(*it)[1]] = std::stod((*it)[2]);
  }
  return out;
}

TEST_F(GraphTool, ReadsFromLeftToRightOverStagesAndTheirColumns) {
  if (!has_dot()) GTEST_SKIP() << "no dot, which the package graphviz has";
  const std::string path = source_folder() + "/tests/golden/pipedream/resnet50.txt";
  const Graph graph = parse_pipedream(format::read_text(path), path);
  const std::vector<int> list = layer_list(graph);
  Plan plan = testing::row_plan("1f1b", {1, 1, 1}, 4);
  const std::vector<std::size_t> bounds{0, 40, 100, list.size()};
  for (std::size_t s = 0; s < 3; ++s) {
    plan.stages[s].layers.clear();
    for (std::size_t i = bounds[s]; i < bounds[s + 1]; ++i) {
      plan.stages[s].layers.push_back(graph.layers[static_cast<std::size_t>(list[i])].id);
    }
  }
  for (const Plan* p : {static_cast<const Plan*>(&plan), static_cast<const Plan*>(nullptr)}) {
    const std::string dot = graph_dot(graph, p);
    folder_.write("g.dot", dot);
    const auto at = drawn_at(run("dot -Tplain g.dot").out);
    std::smatch tops;
    ASSERT_TRUE(std::regex_search(dot, tops, std::regex("\\{rank=same;(.*)\\}")));
    const std::string text = tops[1];
    const std::regex name("n[0-9]+");
    double last = -1;
    int columns = 0;
    for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it, ++columns) {
      EXPECT_GT(at.at(it->str()), last) << it->str();
      last = at.at(it->str());
    }
    EXPECT_GE(columns, 6);
    EXPECT_LE(columns, 12);
  }
}

}  // namespace
}  // namespace stagecraft::interchange
