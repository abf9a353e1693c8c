#include "executor/intake/pt2/flattened_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/index.h"
#include "executor/intake/pt2/pt2_archive.h"
#include "tests/support/files/pt2_text.h"

namespace stagecraft::intake {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::program_text;
using testing::replaced;

std::vector<std::string> names_of(const ProgramGraph& graph) {
  std::vector<std::string> out;
  for (const ProgramNode& node : graph.nodes) out.push_back(node.name);
  return out;
}

/// The names of the tensors that node `n` reads, then those that it returns.
std::vector<std::string> tensors_of(const ProgramGraph& graph, std::size_t n) {
  std::vector<std::string> out;
  for (const ProgramArgument& argument : graph.nodes[n].arguments) {
    if (const auto* const value = std::get_if<ValueIndex>(&argument.value))
      out.push_back(graph.values[to_index(value->index)].name);
  }
  for (const ProgramResult& result : graph.nodes[n].results) {
    for (const ValueIndex value : result.values) out.push_back(graph.values[to_index(value.index)].name);
  }
  return out;
}

/// The block "quiet" doubles "left", halves the result, and returns it and the operand.
std::string longer_block() {
  std::string text = program_text();
  const std::string column = text.substr(text.find("\"doubled\": {\"dtype\"") + 11);
  const std::string meta = column.substr(0, column.find("\"layout\": 7}") + 12);
  text = replaced(text, R"("outputs": [{"as_tensor": {"name": "doubled"}}],
   "nodes")",
                  R"("outputs": [{"as_tensor": {"name": "halved"}}, {"as_tensor": {"name": "left"}}],
   "nodes")");
  text = replaced(text, R"("outputs": [{"as_tensor": {"name": "doubled"}}], "metadata": {}}])",
                  R"("outputs": [{"as_tensor": {"name": "doubled"}}], "metadata": {}},
     {"target": "torch.ops.aten.div.Tensor", "name": "halved",
      "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "doubled"}}}, {"name": "other", "arg": {"as_float": 2.0}}],
      "outputs": [{"as_tensor": {"name": "halved"}}], "metadata": {}}])");
  text = replaced(text, "\"doubled\": {\"dtype\"", "\"halved\": " + meta + ", \"doubled\": {\"dtype\"");
  text = replaced(text, R"("outputs": [{"as_tensor": {"name": "quiet"}}])",
                  R"("outputs": [{"as_tensor": {"name": "quiet"}}, {"as_tensor": {"name": "same"}}])");
  text = replaced(text, "\"quiet\": {\"dtype\"", "\"same\": " + meta + ", \"quiet\": {\"dtype\"");
  return replaced(text, R"({"name": "other", "arg": {"as_tensor": {"name": "right"}}})",
                  R"({"name": "other", "arg": {"as_tensor": {"name": "same"}}})");
}

TEST(FlattenedBlocks, HaveTheirNodesAmongTheOthers) {
  const ProgramGraph graph = read_exported_program(program_text(), "p").graph;
  EXPECT_THAT(names_of(graph), ElementsAre("size", "linear", "chunk", "quiet.doubled", "difference"));
  EXPECT_THAT(tensors_of(graph, 3), ElementsAre("left", "quiet"));
  ASSERT_EQ(graph.nodes[3].blocks.size(), 1U);
  EXPECT_EQ(graph.nodes[3].blocks[0].name, "quiet");
  EXPECT_EQ(graph.nodes[3].blocks[0].arguments[0].value, ArgumentValue(false));
  EXPECT_THAT(graph.nodes[4].blocks, IsEmpty());
}

TEST(FlattenedBlocks, NameWhatTheyKeepAndTakeAResultThatIsAnOperandForIt) {
  const ProgramGraph graph = read_exported_program(longer_block(), "p").graph;
  EXPECT_THAT(names_of(graph), ElementsAre("size", "linear", "chunk", "quiet.doubled", "quiet.halved", "difference"));
  EXPECT_THAT(tensors_of(graph, 3), ElementsAre("left", "quiet_doubled"));
  EXPECT_THAT(tensors_of(graph, 4), ElementsAre("quiet_doubled", "quiet"));
  EXPECT_THAT(tensors_of(graph, 5), ElementsAre("quiet", "left", "difference"));
}

TEST(FlattenedBlocks, AreRestoredAsTheyWere) {
  const format::Json flat = flattened_blocks(format::parse_document(longer_block(), "p"));
  format::Json whole = flat;
  format::Json& graph = whole["graph_module"]["graph"];
  const format::Json nodes = graph["nodes"];
  restore_blocks(graph, nodes, {"difference"});
  ASSERT_EQ(graph["nodes"].size(), 5U);
  const format::Json& block = graph["nodes"][3];
  EXPECT_EQ(block["name"], "quiet");
  EXPECT_EQ(block["target"], "torch.ops.higher_order.wrap_with_set_grad_enabled");
  EXPECT_EQ(block["inputs"][0]["arg"], format::Json::parse(R"({"as_bool": false})"));
  EXPECT_EQ(block["inputs"][1]["arg"]["as_graph"]["name"], "submod_1");
  EXPECT_EQ(block["outputs"], format::Json::parse(R"([{"as_tensor": {"name": "quiet"}}])"));
  EXPECT_FALSE(graph["tensor_values"].contains("quiet_doubled"));
  EXPECT_EQ(
      names_of(read_exported_program(whole.dump(), "p").graph),
      (std::vector<std::string>{"size", "linear", "chunk", "quiet.quiet.doubled", "quiet.quiet.halved", "difference"}));
}

TEST(FlattenedBlocks, AreRestoredInPart) {
  const format::Json flat = flattened_blocks(format::parse_document(longer_block(), "p"));
  format::Json graph = flat["graph_module"]["graph"];
  const format::Json nodes = graph["nodes"];
  // A stage that begins inside the block takes the values that the previous stage computed.
  graph["inputs"] =
      format::Json::parse(R"([{"as_tensor": {"name": "quiet_doubled"}}, {"as_tensor": {"name": "left"}}])");
  restore_blocks(graph, format::Json::array({nodes[4], nodes[5]}), {"difference"});
  ASSERT_EQ(graph["nodes"].size(), 2U);
  const format::Json& block = graph["nodes"][0];
  EXPECT_EQ(block["inputs"][2]["arg"], format::Json::parse(R"({"as_tensor": {"name": "quiet_doubled"}})"));
  const format::Json& inner = block["inputs"][1]["arg"]["as_graph"]["graph"];
  ASSERT_EQ(inner["nodes"].size(), 1U);
  EXPECT_TRUE(inner["tensor_values"].contains("quiet_doubled"));
  EXPECT_TRUE(inner["tensor_values"].contains("quiet"));
  // The other part returns what the next stage takes.
  graph = flat["graph_module"]["graph"];
  restore_blocks(graph, format::Json::array({nodes[2], nodes[3]}), {"quiet_doubled"});
  EXPECT_EQ(graph["nodes"][1]["outputs"], format::Json::parse(R"([{"as_tensor": {"name": "quiet_doubled"}}])"));
}

}  // namespace
}  // namespace stagecraft::intake
