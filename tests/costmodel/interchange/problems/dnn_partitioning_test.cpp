#include "costmodel/interchange/problems/dnn_partitioning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "costmodel/format/files/files.h"
#include "tests/support/files/planner_problems.h"
#include "tests/support/places.h"

namespace stagecraft::interchange {
namespace {

using testing::changed;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::kDnnPartitioning;
using ::testing::Pair;
using ::testing::ThrowsMessage;

TEST(ParseDnnPartitioning, ReadsNodesEdgesAndDevices) {
  const DnnPartitioning input = parse_dnn_partitioning(kDnnPartitioning, "f.json");
  EXPECT_EQ(input.memory_limit, 1e9);
  EXPECT_EQ(input.accelerators, 2);
  EXPECT_EQ(input.cpus, 1);
  ASSERT_EQ(input.nodes.size(), 4U);
  EXPECT_EQ(input.nodes[0].name, "a");
  EXPECT_EQ(input.nodes[1].cpu_ms, 20);
  EXPECT_EQ(input.nodes[1].accelerator_ms, 2);
  EXPECT_EQ(input.nodes[1].transfer, 0.25);
  EXPECT_FALSE(input.nodes[2].on_accelerator);
  EXPECT_FALSE(input.nodes[2].color);
  EXPECT_TRUE(input.nodes[3].backward);
  ASSERT_EQ(input.edges.size(), 3U);
  EXPECT_EQ(input.edges[2].source, 1);
  EXPECT_EQ(input.edges[2].destination, 3);
}

TEST(ParseDnnPartitioning, NamesFileAndPlaceOfWhatIsWrong) {
  const auto refused = [](const std::string& from, const std::string& to, const std::string& message) {
    const std::string text = changed(kDnnPartitioning, from, to);
    EXPECT_THAT([&] { (void)parse_dnn_partitioning(text, "f.json"); }, ThrowsMessage<FormatError>(HasSubstr(message)))
        << to;
  };
  refused("{", "[", "f.json: line 1");
  refused("\"maxFPGAs\": 2", "\"maxFPGAs\": -1", "f.json: /maxFPGAs: found -1, expected an integer from 0 to 100000");
  refused("\"maxFPGAs\": 2, \"maxCPUs\": 1", "\"maxFPGAs\": 0, \"maxCPUs\": 0",
          "f.json: /maxCPUs: found no accelerators and no CPUs, expected a device");
  refused("\"fpgaLatency\": 2", "\"fpgaLatency\": -2", "f.json: /nodes/1/fpgaLatency: found -2, expected a number of");
  refused("\"id\": 9", "\"id\": 3", "f.json: /nodes/2: id 3 appears twice");
  refused("\"destId\": 9", "\"destId\": 8", "f.json: /edges/1/destId: node 8 does not exist");
  refused("\"destId\": 4, \"cost\": 0.25", "\"destId\": 4, \"cost\": 0.5",
          "f.json: /edges/2/cost: found 0.5, another edge of node 3 costs 0.25; all edges of a node carry one output");
  refused("\"isBackwardNode\": 0, \"colorClass\": 4", "\"isBackwardNode\": 1, \"colorClass\": 4",
          "f.json: /edges/0: leads from a backward to a forward node");
  refused("\"sourceId\": 7, \"destId\": 3", "\"sourceId\": 9, \"destId\": 3", "is on a cycle or after one");
  refused("\"isBackwardNode\": false, ", "", "f.json: /nodes/1: key \"isBackwardNode\" is missing");
}

TEST(Colocation, JoinsColoursAndOrdersByForwardEdges) {
  const Colocation groups = colocation(parse_dnn_partitioning(kDnnPartitioning, "f.json"));
  EXPECT_THAT(groups.group_of_node, ElementsAre(0, 1, 2, 1));
  EXPECT_EQ(groups.groups, 3);
  EXPECT_THAT(groups.edges, ElementsAre(Pair(0, 1), Pair(1, 2)));
}

TEST(Colocation, JoinsWhatLiesOnACycleOfColours) {
  // 7 -> 3 -> 9 with 7 and 9 in one colour: 3 cannot be between them.
  const std::string text = changed(kDnnPartitioning, "\"fpgaLatency\": 3, \"isBackwardNode\": 0",
                                   "\"fpgaLatency\": 3, \"isBackwardNode\": 0, \"colorClass\": 4");
  const Colocation groups = colocation(parse_dnn_partitioning(text, "f.json"));
  EXPECT_EQ(groups.groups, 1);
  EXPECT_TRUE(groups.edges.empty());
}

TEST(Colocation, OrdersAGroupWithoutForwardByItsBackward) {
  // The backward 4 of no forward node comes after the backward of 9, so its group comes before that of 9.
  const DnnPartitioning input = parse_dnn_partitioning(
      R"({"maxSizePerFPGA": 1, "maxFPGAs": 1, "maxCPUs": 0, "nodes": [
 {"id": 9, "supportedOnFpga": 1, "cpuLatency": 0, "fpgaLatency": 3, "isBackwardNode": 0, "colorClass": 1},
 {"id": 5, "supportedOnFpga": 1, "cpuLatency": 0, "fpgaLatency": 3, "isBackwardNode": 1, "colorClass": 1},
 {"id": 4, "supportedOnFpga": 1, "cpuLatency": 0, "fpgaLatency": 4, "isBackwardNode": 1, "colorClass": 2}],
 "edges": [{"sourceId": 9, "destId": 5, "cost": 1}, {"sourceId": 5, "destId": 4, "cost": 1}]})",
      "f.json");
  const Colocation groups = colocation(input);
  EXPECT_THAT(groups.group_of_node, ElementsAre(0, 0, 1));
  EXPECT_THAT(groups.edges, ElementsAre(Pair(1, 0)));
}

TEST(DnnPartitioningGraph, HasALayerForEachGroup) {
  const Graph graph = dnn_partitioning_graph(parse_dnn_partitioning(kDnnPartitioning, "f.json"), Units::Published);
  ASSERT_EQ(graph.layers.size(), 3U);
  EXPECT_EQ(graph.layers[0].id, "7");
  EXPECT_EQ(graph.layers[0].name, "a");
  EXPECT_EQ(graph.layers[1].name, " and 1 more");
  EXPECT_DOUBLE_EQ(graph.layers[1].forward.median.value, 0.002);
  EXPECT_DOUBLE_EQ(graph.layers[1].backward.median.value, 0.004);
  EXPECT_EQ(graph.layers[0].saved_bytes, Bytes(16));
  ASSERT_EQ(graph.layers[0].outputs.size(), 1U);
  EXPECT_EQ(graph.layers[0].outputs[0].bytes, Bytes(1073742));  // rounded from the file
  EXPECT_EQ(graph.layers[1].outputs[0].bytes, Bytes(536871));   // 0.25 ms at 2 GiB/s: 2^31 / 4000
  ASSERT_EQ(graph.edges.size(), 2U);
  EXPECT_EQ(graph.provenance.notes.at("devices"), "2 accelerators of 1000000000.0 bytes, 1 CPUs");
}

TEST(TransferUnit, FindsThatPublishedLayerGraphsHaveSeconds) {
  const std::string path = source_folder() + "/tests/data/dnn-partitioning/bert24_inference.json";
  const DnnPartitioning input = parse_dnn_partitioning(format::read_text(path), path);
  EXPECT_EQ(input.nodes.size(), 32U);
  EXPECT_EQ(transfer_unit(input, Units::Published).ms, 1);
  const TransferUnit fixed = transfer_unit(input, Units::Fixed);
  EXPECT_EQ(fixed.ms, 1000);
  // Nodes 3, 5 to 28, 29 and 30 send something; 1, 2 and 4 send nothing.
  EXPECT_THAT(fixed.reason, HasSubstr("27 of 27 transfer costs are their bytes at 2 GiB/s in seconds"));
}

TEST(TransferUnit, LeavesMillisecondsAndWhatCannotBeChecked) {
  // 1073741.824 bytes at 2 GiB/s are 0.5 ms.
  const TransferUnit checked = transfer_unit(parse_dnn_partitioning(kDnnPartitioning, "f.json"), Units::Fixed);
  EXPECT_EQ(checked.ms, 1);
  EXPECT_THAT(checked.reason, HasSubstr("nothing to fix: 0 of 1 transfer costs"));
  const std::string unknown = changed(kDnnPartitioning, ", \"size\": 1073741.824", "");
  EXPECT_THAT(transfer_unit(parse_dnn_partitioning(unknown, "f.json"), Units::Fixed).reason,
              HasSubstr("no transfer cost can be checked"));
}

}  // namespace
}  // namespace stagecraft::interchange
