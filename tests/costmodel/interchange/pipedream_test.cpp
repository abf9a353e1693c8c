#include "costmodel/interchange/pipedream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "costmodel/format/graph_json.h"
#include "tests/support/places.h"

namespace stagecraft::interchange {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

std::string node(const std::string& id, const std::string& description, const std::string& activation = "4.000",
                 const std::string& forward = "1.500", const std::string& parameter = "0.000") {
  return id + " -- " + description + " -- forward_compute_time=" + forward +
         ", backward_compute_time=2.000, activation_size=" + activation + ", parameter_size=" + parameter;
}

/// The profile text after import, a graph document, and export.
std::string round_trip(const std::string& text) {
  const Graph graph = parse_pipedream(text, "graph.txt");
  const Graph again = format::parse_graph(format::graph_json(graph), "graph.json");
  EXPECT_EQ(again, graph);
  return pipedream_text(again);
}

auto refuses(const std::string& message) {
  return ThrowsMessage<FormatError>(AllOf(StartsWith("graph.txt: "), HasSubstr(message)));
}

class PublishedProfile : public ::testing::TestWithParam<const char*> {};

TEST_P(PublishedProfile, RoundTripsByteForByte) {
  const std::string text = format::read_text(source_folder() + "/tests/golden/pipedream/" + GetParam() + ".txt");
  EXPECT_EQ(round_trip(text), text);
}

TEST_P(PublishedProfile, RoundTripsByteForByteWithStages) {
  std::string text = format::read_text(source_folder() + "/tests/golden/pipedream/" + GetParam() + ".txt");
  std::string staged;
  int count = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    staged += text.substr(at, end - at);
    if (text[at] != '\t') staged += " -- stage_id=" + std::to_string(count++ / 10);
    staged += "\n";
    at = end + 1;
  }
  EXPECT_EQ(round_trip(staged), staged);
  EXPECT_EQ(parse_pipedream(staged, "graph.txt").layers[10].stage, 1);
}

INSTANTIATE_TEST_SUITE_P(Pipedream, PublishedProfile,
                         ::testing::Values("alexnet", "vgg16", "resnet18", "resnet50", "gnmt"),
                         [](const auto& param) { return std::string(param.param); });

TEST(ParsePipedream, ReadsEachFieldOfANode) {
  const Graph graph = parse_pipedream(
      "n7 -- Conv2d(3, 64, kernel_size=(3, 3)) -- forward_compute_time=1.500, backward_compute_time=0.250, "
      "activation_size=4096.000, parameter_size=800.000 -- stage_id=3\n",
      "some/where/vgg16.txt");
  EXPECT_EQ(graph.name, "vgg16");
  ASSERT_EQ(graph.layers.size(), 1u);
  const Layer& layer = graph.layers[0];
  EXPECT_EQ(layer.id, "n7");
  EXPECT_EQ(layer.name, "Conv2d(3, 64, kernel_size=(3, 3))");
  EXPECT_EQ(layer.kind, "Conv2d");
  EXPECT_DOUBLE_EQ(layer.forward.median.value, 0.0015);
  EXPECT_DOUBLE_EQ(layer.backward.median.value, 0.00025);
  EXPECT_EQ(layer.forward.count, 0);
  EXPECT_EQ(layer.outputs, (std::vector<Output>{{Bytes(4096), {}, "", true}}));
  EXPECT_EQ(layer.parameter_bytes, Bytes(800));
  EXPECT_EQ(layer.stage, 3);
}

TEST(ParsePipedream, TakesWhatBeginsWithInputForLoadedData) {
  const Graph graph = parse_pipedream(node("a", "Input0") + "\n" + node("b", "Add") + "\n\ta -- b\n", "graph.txt");
  EXPECT_TRUE(is_input(graph.layers[0]));
  EXPECT_EQ(graph.layers[0].name, "Input0");
  EXPECT_FALSE(is_input(graph.layers[1]));
  EXPECT_EQ(graph.layers[1].kind, "Add");
  EXPECT_EQ(graph.edges, (std::vector<Edge>{{0, 1, {}}}));
}

TEST(ParsePipedream, GivesOneOutputForEachEntryOfAList) {
  const Graph graph = parse_pipedream(node("a", "LSTM(8, 8)", "[6291456.0; 131072.0; 131072.0]"), "graph.txt");
  ASSERT_EQ(graph.layers[0].outputs.size(), 3u);
  EXPECT_EQ(graph.layers[0].outputs[0].bytes, Bytes(6291456));
  EXPECT_EQ(activation_bytes(graph.layers[0]), Bytes(6553600));
}

TEST(ParsePipedream, KeepsTheFormOfEveryNumber) {
  for (const char* activation : {"4", "4.0", "4.00", "4.000", "4.000000", "[4.0]", "[4.0; 8.000; 16]", "[4;8]", "4e3",
                                 "1000000000000000000", "4.", "004"}) {
    const std::string text =
        node("a", "Linear", "16.0") + "\n" + node("b", "Linear", activation) + "\n" + node("c", "Linear", "8.0") + "\n";
    EXPECT_EQ(round_trip(text), text);
  }
  for (const char* time : {"1", "1.5", "0.12345", "123456789.123", "999999999999999.875", "-0.000"}) {
    EXPECT_EQ(round_trip(node("a", "Linear", "4", time)), node("a", "Linear", "4", time));
  }
  EXPECT_EQ(round_trip(node("a", "Linear", "4", "1", "12")), node("a", "Linear", "4", "1", "12"));
}

TEST(ParsePipedream, ReadsMillisecondsToTheNearestSecond) {
  EXPECT_EQ(parse_pipedream(node("a", "Add", "4", "6.949"), "graph.txt").layers[0].forward.median, Seconds(0.006949));
  EXPECT_EQ(parse_pipedream(node("a", "Add", "4", "5e2"), "graph.txt").layers[0].forward.median, Seconds(0.5));
}

TEST(ParsePipedream, KeepsLineEnds) {
  const std::string a = node("a", "Add");
  const std::string b = node("b", "View(-1)");
  for (const std::string& text :
       {a, a + "\n", a + "\n\n\n", a + "\r\n" + b + "\r\n\ta -- b", a + "\r\n", a + "\n" + b + "\n\ta -- b\n"}) {
    EXPECT_EQ(round_trip(text), text);
  }
}

TEST(ParsePipedream, KeepsAnyDescription) {
  for (const char* description :
       {"", "a=b, c=d", "  (x): LSTM(1, 2)  ", "caf\xC3\xA9", "tab\there", "\"quoted\\", "-- x"}) {
    const std::string text = node("a", description) + "\n";
    EXPECT_EQ(round_trip(text), text);
  }
}

TEST(ParsePipedream, DropsANoteWhoseValueChanged) {
  Graph graph = parse_pipedream(node("a", "Linear", "[4.0]"), "graph.txt");
  graph.layers[0].outputs[0].bytes = Bytes(6);
  EXPECT_EQ(pipedream_text(graph), node("a", "Linear", "6.0"));
}

struct Case {
  std::string text;
  std::string message;
};

TEST(ParsePipedream, NamesLineAndFault) {
  const std::string a = node("a", "Add") + "\n";
  const std::string b = node("b", "Add") + "\n";
  const Case cases[] = {
      {"", "is empty, expected at least one layer"},
      {"\n\n", "is empty, expected at least one layer"},
      {"\xEF\xBB\xBF" + a, "line 1: begins with a byte order mark"},
      {a + "\n" + b, "line 2: is empty, expected a layer or an edge"},
      {a + "b -- Add\n", "line 2: found 2 parts, expected \"ID -- DESC -- META\""},
      {node("", "Add"), "line 1: the layer's id is empty"},
      {a + b + a, "line 3: id \"a\" is already in line 1"},
      {a + "b -- Add -- forward_compute_time=1.000", "line 2: found 1 fields, expected 4"},
      {"a -- Add -- time=1, backward_compute_time=1, activation_size=1, parameter_size=1",
       "line 1: found \"time=1\", expected \"forward_compute_time=...\""},
      {a + b + "\ta -- c", "line 3: layer \"c\" of the edge is not declared above"},
      {a + "\ta -- b\n" + b, "line 2: layer \"b\" of the edge is not declared above"},
      {a + b + "\ta -- b\n" + node("c", "Add"), "line 4: found a layer after an edge, expected all layers first"},
      {a + b + "\ta -- b -- c", "line 3: found an edge \"a -- b -- c\", expected \"SOURCE -- DESTINATION\""},
      {a + b + "\ta -- b\n\ta -- b", "line 4: edge \"a -- b\" is already above"},
      {a + b + "\ta -- a", "line 3: layer \"a\" has an edge to itself"},
      {a + b + "\ta -- b\n\tb -- a", "line 4: edge \"b -- a\" closes a cycle"},
      {a + node("i", "Input") + "\n\ta -- i", "line 3: layer \"i\" is an input, expected no edge into it"},
      {node("a", "Add", "4.5"), "activation_size: found \"4.5\", expected an integer number of bytes from 0 to 2^60"},
      {node("a", "Add", "-4.0"), "activation_size: found \"-4.0\""},
      {node("a", "Add", "nan"), "activation_size: found \"nan\""},
      {node("a", "Add", "1e99999"), "activation_size: found \"1e99999\""},
      {node("a", "Add", "2e18"), "activation_size: found \"2e18\""},
      {node("a", "Add", ""), "activation_size: found \"\""},
      {node("a", "Add", "[]"), "activation_size: found \"\""},
      {node("a", "Add", "[4; x]"), "activation_size: found \"x\""},
      {node("a", "Add", "[4; 8"), "activation_size: found \"[4; 8\""},
      {node("a", "Add", "4", "-1.000"), "forward_compute_time: found \"-1.000\", expected milliseconds from 0 to 1e15"},
      {node("a", "Add", "4", "inf"), "forward_compute_time: found \"inf\""},
      {node("a", "Add", "4", "nan"), "forward_compute_time: found \"nan\""},
      {node("a", "Add", "4", "1e16"), "forward_compute_time: found \"1e16\""},
      {node("a", "Add", "4", "1 ms"), "forward_compute_time: found \"1 ms\""},
      {node("a", "Add", "4", "1", "0.5"), "parameter_size: found \"0.5\""},
      {node("a", "Add") + " -- stage_id=-1", "stage_id: found \"-1\", expected an integer from 0"},
      {node("a", "Add") + " -- stage_id=x", "stage_id: found \"x\""},
      {node("a", "Add") + " -- stage=1", "line 1: found \"stage=1\", expected \"stage_id=...\""},
      {node("a", "caf\xE9"), "line 1: is not UTF-8"},
      {a + node("b", "Add") + "\r\n", "line 2: has a different line ending from line 1"},
      {node("a", "Add\rMul"), "line 1: has a different line ending"},
      {node("a", "Add") + "\r\n" + b, "line 2: has a different line ending from line 1"},
  };
  for (const Case& c : cases) {
    EXPECT_THAT([&] { (void)parse_pipedream(c.text, "graph.txt"); }, refuses(c.message)) << c.text;
  }
}

TEST(ParsePipedream, NamesTheEdgeThatClosesALongCycle) {
  std::string text;
  constexpr int kLayers = 3000;
  for (int i = 0; i < kLayers; ++i) text += node("n" + std::to_string(i), "Add") + "\n";
  for (int i = 0; i + 1 < kLayers; ++i) text += "\tn" + std::to_string(i) + " -- n" + std::to_string(i + 1) + "\n";
  text += "\tn2999 -- n0\n\tn0 -- n2\n";
  EXPECT_THAT([&] { (void)parse_pipedream(text, "graph.txt"); },
              refuses("line 6000: edge \"n2999 -- n0\" closes a cycle"));
}

/// Input -> two outputs of an LSTM, both read by one addition.
Graph of_other_origin() {
  Graph graph;
  Layer input;
  input.id = "image";
  input.name = "image";
  input.kind = kInputKind;
  input.outputs = {{Bytes(8), {2}, "float32", false}};
  Layer lstm;
  lstm.id = "1";
  lstm.name = "rnn.0";
  lstm.kind = "LSTM";
  lstm.forward = {Seconds(0.0025), Seconds(0.0001), 7};
  lstm.backward = {Seconds(0.0050004), {}, 7};
  lstm.outputs = {{Bytes(16), {4}, "float32", true}, {Bytes(32), {8}, "float32", true}};
  lstm.parameter_bytes = Bytes(64);
  Layer add;
  add.id = "2";
  add.name = "Add";
  add.kind = "Add";
  graph.layers = {input, lstm, add};
  graph.edges = {{0, 1, 0}, {1, 2, 0}, {1, 2, 1}};
  return graph;
}

TEST(PipedreamText, WritesAGraphOfOtherOriginInTheUsualForm) {
  EXPECT_EQ(pipedream_text(of_other_origin()),
            "image -- Input(image) -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=8.000, "
            "parameter_size=0.000\n"
            "1 -- LSTM(rnn.0) -- forward_compute_time=2.500, backward_compute_time=5.000, activation_size=[16.000; "
            "32.000], parameter_size=64.000\n"
            "2 -- Add -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=0.000, "
            "parameter_size=0.000\n"
            "\timage -- 1\n"
            "\t1 -- 2\n");
}

TEST(PipedreamText, NamesTheLayerItCannotWrite) {
  for (const char* name : {"LSTM -- x", "LSTM\nx", "LSTM\rx", "LSTM --"}) {
    Graph graph = of_other_origin();
    graph.layers[1].name = name;
    EXPECT_THAT([&] { (void)pipedream_text(graph); },
                ThrowsMessage<std::invalid_argument>(
                    AllOf(StartsWith("layer \"1\", named \""), HasSubstr("cannot have \" -- \" or a line end"))))
        << name;
  }
  Graph tab = of_other_origin();
  tab.layers[1].id = "\t1";
  EXPECT_THAT([&] { (void)pipedream_text(tab); }, ThrowsMessage<std::invalid_argument>(HasSubstr("layer \"\t1\"")));
  Graph input = of_other_origin();
  input.layers[1].kind = "InputNorm";
  EXPECT_THAT([&] { (void)pipedream_text(input); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("names that begin with \"Input\" are loaded data there")));
}

}  // namespace
}  // namespace stagecraft::interchange
