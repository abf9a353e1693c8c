#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "costmodel/errors.h"
#include "costmodel/format/graph_json.h"
#include "tests/costmodel/documents.h"

namespace stagecraft::format {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

/// `text` with the first `from` after `mark` replaced by `to`.
std::string changed(std::string text, const std::string& from, const std::string& to, const std::string& mark = "") {
  const std::size_t at = text.find(from, text.find(mark));
  EXPECT_NE(at, text.npos) << from;
  return at == text.npos ? text : text.replace(at, from.size(), to);
}

auto refuses(const std::string& message) {
  return ThrowsMessage<FormatError>(AllOf(StartsWith("graph.json: "), HasSubstr(message)));
}

void expect_refused(const std::string& text, const std::string& message) {
  EXPECT_THAT([&] { (void)parse_graph(text, "graph.json"); }, refuses(message)) << text.substr(0, 300);
}

/// The full document with one change is refused with `message`.
void expect_refused(const std::string& from, const std::string& to, const std::string& message) {
  expect_refused(changed(graph_json(full_graph()), from, to), message);
}

TEST(GraphJson, ReadsBackEveryField) {
  const std::string text = graph_json(full_graph());
  EXPECT_EQ(parse_graph(text, "graph.json"), full_graph());
  EXPECT_EQ(graph_json(parse_graph(text, "graph.json")), text);
}

TEST(GraphJson, ReadsBackAGraphWithoutOptionalFields) {
  Graph graph;
  Layer layer;
  layer.id = "a";
  layer.outputs = {{4_B, {2}, "", true}, {4_B, {}, "float32", true}};
  graph.layers = {layer};
  EXPECT_EQ(parse_graph(graph_json(graph), "graph.json"), graph);
  graph.optimizer_state_values = 1;
  EXPECT_EQ(parse_graph(graph_json(graph), "graph.json"), graph);
}

TEST(GraphJson, KeepsTextOfAnyKind) {
  Graph graph = full_graph();
  graph.layers[0].id = graph.layers[0].name = "caf\xC3\xA9 \"\\\n\t\x01 ~/";
  graph.provenance.notes["a/b~c"] = "";
  EXPECT_EQ(parse_graph(graph_json(graph), "graph.json"), graph);
}

TEST(GraphJson, RefusesToWriteWhatIsNotUtf8) {
  Graph graph = full_graph();
  graph.name = "caf\xE9";
  EXPECT_THAT([&] { (void)graph_json(graph); }, ThrowsMessage<std::invalid_argument>(HasSubstr("is not UTF-8")));
}

/// Takes away what versions 7, 8, 11, 12 and 13 added.
void forget_estimate(Graph& graph) {
  graph.estimate.reset();
  graph.types = {};
  graph.whole_batch_loss = false;
  if (graph.iteration) graph.iteration->log_spread.reset();
  if (graph.quality) graph.quality->watched.log_spread.reset();
  for (Layer& layer : graph.layers) {
    layer.frozen_bytes = layer.written_bytes = 0_B;
    layer.replicable = true;
    layer.parameter_tensors = layer.exchanged_buffers = {};
    for (Timing* timing : {&layer.forward, &layer.backward, &*layer.update, &layer.backward_parts->inputs,
                           &layer.backward_parts->weights, &*layer.forward_share->isolated})
      timing->log_spread.reset();
  }
}

TEST(ReadGraph, ReadsVersion1) {
  Graph graph = full_graph();
  forget_estimate(graph);
  graph.allow_tf32.reset();
  graph.device = {};
  graph.quality.reset();
  graph.conditions = {};
  for (Layer& layer : graph.layers) {
    layer.gradient_bytes = layer.saved_for_backward_bytes = {};
    layer.forward_share = layer.backward_share = layer.update_share = {};
    layer.backward_parts.reset();
    for (Output& output : layer.outputs) output.saved.reset();
    layer.forward_work = layer.backward_work = {};
  }
  std::string text = graph_json(graph);
  text.replace(text.find("\"version\": 13"), 13, "\"version\": 1");
  EXPECT_EQ(parse_graph(text, "graph.json"), graph);
}

TEST(ReadGraph, ReadsVersion4) {
  Graph graph = full_graph();
  forget_estimate(graph);
  for (Layer& layer : graph.layers) {
    layer.backward_parts.reset();
    for (Output& output : layer.outputs) output.saved.reset();
    layer.forward_work = layer.backward_work = {};
  }
  std::string text = graph_json(graph);
  text.replace(text.find("\"version\": 13"), 13, "\"version\": 4");
  EXPECT_EQ(parse_graph(text, "graph.json"), graph);
}

TEST(ReadGraph, ChecksNamedParametersAgainstTheirBytes) {
  const auto refused = [](const std::string& message, const std::function<void(Layer&)>& change) {
    Graph graph = full_graph();
    change(graph.layers[0]);
    EXPECT_THAT([&] { (void)parse_graph(graph_json(graph), "graph.json"); }, refuses("/: layer \"a\": " + message));
  };
  refused("its named parameters have 32 bytes, all its parameters have 64",
          [](Layer& layer) { layer.parameter_tensors.pop_back(); });
  refused("tied parameter \"embedding.weight\" is not among its parameters",
          [](Layer& layer) { layer.parameter_tensors.front().name = "renamed"; });
  refused("parameter \"embedding.weight\" has 12 bytes, but 32 among those tied",
          [](Layer& layer) { layer.parameter_tensors.front().shape = {6}; });
  refused("parameter \"a.bias\" has the unknown dtype \"half\"",
          [](Layer& layer) { layer.parameter_tensors.back().dtype = "half"; });
  refused("parameter \"a.bias\" is float16, but the type of parameters is bfloat16",
          [](Layer& layer) { layer.parameter_tensors.back().dtype = "float16"; });
  refused("parameter \"a.bias\" appears twice",
          [](Layer& layer) { layer.parameter_tensors.push_back(layer.parameter_tensors.back()); });
  refused("parameter \"a.bias\" has a size that is negative, or more than 2^60 bytes",
          [](Layer& layer) { layer.parameter_tensors.back().shape = {1 << 30, 1 << 30}; });
}

TEST(ReadGraph, NeedsBothPartsOfABackward) {
  expect_refused("\"weight_gradient\"", "\"whole_gradient\"",
                 "/layers/0/backward_parts: key \"weight_gradient\" is missing");
}

TEST(GraphJson, WritesSeparablePartsWithoutAWord) {
  Graph graph = full_graph();
  for (Layer& layer : graph.layers) layer.backward_parts->separable = true;
  EXPECT_EQ(graph_json(graph).find("separable"), std::string::npos);
  EXPECT_EQ(parse_graph(graph_json(graph), "graph.json"), graph);
}

TEST(ReadGraph, NamesTheFileThatIsMissing) {
  EXPECT_THAT([] { (void)read_graph("/none/graph.json"); },
              ThrowsMessage<FormatError>(StartsWith("/none/graph.json: cannot read")));
}

TEST(ReadGraph, NamesLineAndColumnOfBrokenJson) {
  expect_refused("", "graph.json: is empty, expected a JSON document");
  expect_refused("{\"format\": \"stagecraft.graph\",\n \"version\": }", "line 2 column 13: not JSON: syntax error");
  expect_refused("{\"a\": \"caf\xE9\"}",
                 "not JSON: syntax error while parsing value - invalid string: ill-formed UTF-8");
  expect_refused("{\"a\": \"caf\xC3\xA9\"} x", "not JSON");
}

TEST(ReadGraph, NamesARepeatedKeyAndDeepNesting) {
  expect_refused("\"name\"", "\"name\": \"x\", \"name\"", "key \"name\" appears twice in one object");
  expect_refused(std::string(100, '[') + std::string(100, ']'), "nested deeper than 64 levels");
  expect_refused(std::string(100000, '['), "nested deeper than 64 levels");
}

TEST(ReadGraph, NamesAnotherFormatAndVersion) {
  expect_refused("[]", "/: found [], expected an object");
  expect_refused("{}", "/: key \"format\" is missing");
  expect_refused("stagecraft.graph", "stagecraft.plan",
                 "/format: found \"stagecraft.plan\", expected \"stagecraft.graph\"");
  expect_refused("\"version\": 13", "\"version\": 14",
                 "/version: found version 14, this program reads version 1 to 13");
  expect_refused("\"version\": 13", "\"version\": \"1\"", "/version: found \"1\", expected an integer");
}

TEST(ReadGraph, ListsTheKnownKeysForAnUnknownOne) {
  expect_refused("\"name\"", "\"nmae\": 1, \"name\"",
                 "/: unknown key \"nmae\", did you mean name? known are format, version, name, options");
  expect_refused("\"id\": \"b\"", "\"id\": \"b\", \"x/y\": 1",
                 "/layers/1: unknown key \"x/y\", known are id, name, kind");
  expect_refused("\"source\"", "\"from\": 1, \"source\"",
                 "/edges/0: unknown key \"from\", known are source, destination");
}

TEST(ReadGraph, NamesAMissingKey) {
  expect_refused("\"id\": \"b\",", "", "/layers/1: key \"id\" is missing");
  expect_refused("\"median_s\": 1.5, ", "", "/layers/0/forward: key \"median_s\" is missing");
}

TEST(ReadGraph, NamesAWrongType) {
  expect_refused("\"name\": \"full\"", "\"name\": 7", "/name: found 7, expected a string");
  expect_refused("\"options\": {\"width\": \"8\"}", "\"options\": {\"width\": 8}",
                 "/options/width: found 8, expected a string");
  expect_refused("\"requires_grad\": false", "\"requires_grad\": 0",
                 "/layers/0/outputs/1/requires_grad: found 0, expected true or false");
  expect_refused("\"median_s\": 1.5", "\"median_s\": \"1.5\"",
                 "/layers/0/forward/median_s: found \"1.5\", expected a number");
  expect_refused("\"edges\": [", "\"edges\": 3, \"others\": [", "/edges: found 3, expected an array");
  expect_refused("{\"median_s\": 9.0, \"spread_s\": 0.5, \"count\": 8, \"log_spread\": 0.5}", "[]",
                 "/iteration: found [], expected an object");
}

TEST(ReadGraph, NamesThePointerOfANumberOutOfRange) {
  expect_refused("\"median_s\": 1.5", "\"median_s\": -1.5",
                 "/layers/0/forward/median_s: found -1.5, expected a number of at least 0");
  expect_refused("\"median_s\": 1.5", "\"median_s\": 1e999", "number overflow parsing '1e999'");
  expect_refused("\"median_s\": 1.5", "\"median_s\": NaN", "not JSON");
  const std::string bytes = "\"parameter_bytes\": 64";
  const std::string where = "/layers/0/parameter_bytes: found ";
  expect_refused(bytes, "\"parameter_bytes\": -1", where + "-1, expected an integer from 0 to 1152921504606846976");
  expect_refused(bytes, "\"parameter_bytes\": 1.5", where + "1.5, expected an integer");
  expect_refused(bytes, "\"parameter_bytes\": 1152921504606846977", where + "1152921504606846977, expected");
  expect_refused(bytes, "\"parameter_bytes\": 18446744073709551615", where + "18446744073709551615, expected");
  expect_refused(bytes, "\"parameter_bytes\": 1000000000000000000000000000000", where + "1e+30, expected an integer");
  expect_refused("\"microbatch_samples\": 2", "\"microbatch_samples\": 0",
                 "/microbatch_samples: found 0, expected an integer from 1");
  expect_refused("1.0, 1.5", "1.0, 0.5", "/slowdown/1: found 0.5, expected a factor of at least 1");
  expect_refused("\"stage\": 1", "\"stage\": -1", "/layers/0/stage: found -1");
}

TEST(ReadGraph, NamesWhatDoesNotFitTogether) {
  expect_refused("\"id\": \"b\"", "\"id\": \"a\"", "/layers/1: id \"a\" appears twice");
  expect_refused("\"id\": \"a\"", "\"id\": \"\"", "/edges/0/source: layer \"a\" does not exist");
  expect_refused("\"destination\": \"b\"", "\"destination\": \"c\"",
                 "/edges/0/destination: layer \"c\" does not exist");
  expect_refused("\"source\": \"a\"", "\"source\": \"b\"", "edge \"b\" to \"b\" joins a layer to itself");
  expect_refused("\"output\": 1", "\"output\": 2", "edge \"a\" to \"b\" reads output 2, the layer has 2");
  expect_refused("\"destination\": \"b\", \"output\": 0}",
                 "\"destination\": \"b\", \"output\": 0}, {\"source\": \"b\", \"destination\": \"a\"}",
                 "is on a cycle");
  expect_refused("\"parameter_bytes\": 32", "\"parameter_bytes\": 65",
                 "tied parameters have more bytes than all parameters");
  expect_refused("\"saved_bytes\": 24", "\"saved_bytes\": 1152921504606846976",
                 "layer \"a\": saved bytes bring the graph above 2^60 bytes");
  expect_refused("{\"format\": \"stagecraft.graph\", \"version\": 1, \"name\": \"\", \"layers\": [], \"edges\": []}",
                 "/: the graph has no layers");
}

}  // namespace
}  // namespace stagecraft::format
