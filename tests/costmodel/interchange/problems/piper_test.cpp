#include "costmodel/interchange/problems/piper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "tests/support/files/planner_problems.h"

namespace stagecraft::interchange {
namespace {

using testing::changed;
using ::testing::HasSubstr;
using testing::kPiper;
using ::testing::ThrowsMessage;

TEST(ParsePiper, ReadsModesByNumberOfDevices) {
  const Piper input = parse_piper(kPiper, "f.json");
  EXPECT_EQ(input.devices, 4);
  EXPECT_EQ(input.bandwidth, 25e9);
  EXPECT_EQ(input.microbatches, 12);
  ASSERT_EQ(input.nodes.size(), 2U);
  EXPECT_EQ(input.nodes[0].name, "embedding");
  ASSERT_EQ(input.nodes[1].modes.at(1).size(), 2U);
  EXPECT_EQ(input.nodes[1].modes.at(1)[1].memory_fixed, 118);
  EXPECT_EQ(input.nodes[1].modes.at(2)[0].sync_forward.at(0), 64);
  EXPECT_EQ(input.edges[0].bytes, 4096);
  EXPECT_EQ(parse_piper(changed(kPiper, "mbsInBatch", "maxBatchSize"), "f.json").microbatches, 12);
}

TEST(ParsePiper, NamesFileAndPlaceOfWhatIsWrong) {
  const auto refused = [](const std::string& from, const std::string& to, const std::string& message) {
    const std::string text = changed(kPiper, from, to);
    EXPECT_THAT([&] { (void)parse_piper(text, "f.json"); }, ThrowsMessage<FormatError>(HasSubstr(message))) << to;
  };
  refused("\"maxDevices\": 4", "\"maxDevices\": 0",
          "f.json: /maxDevices: found 0, expected an integer from 1 to 10000");
  refused("\"mbsInBatch\"", "\"batch\"", "f.json: /: key \"mbsInBatch\" is missing");
  refused("\"bandwidth\": 25e9", "\"bandwidth\": 0", "f.json: /bandwidth: found 0, expected a number above 0");
  refused("\"id\": 2,", "\"id\": 5,", "f.json: /nodes/1/id: id 5 appears twice");
  refused("\"2\": [{", "\"two\": [{", "f.json: /nodes/1/TMPCs: key \"two\" is not a number of devices");
  refused("{\"2\": 0}", "{\"7\": 0}",
          "f.json: /nodes/0/TMPCs/1/0/syncTimeBw: key \"7\" is not a node with an edge there");
  refused("{\"2\": 0}", "{}", "f.json: /nodes/0/TMPCs/1/0/syncTimeBw: key \"2\" is missing, there is an edge");
  refused("activation recomp", "vanilla", "f.json: /nodes/1/TMPCs/1/1/id: \"vanilla\" appears twice");
  refused("\"destId\": 2", "\"destId\": 3", "f.json: /edges/0/destId: node 3 does not exist");
  refused("\"destId\": 2", "\"destId\": 5", "f.json: /nodes/0: node 5 is on a cycle or after one");
}

TEST(PiperGraph, TakesTheForwardFromWhatRecomputationAdds) {
  const Graph graph = piper_graph(parse_piper(kPiper, "f.json"), Units::Published);
  ASSERT_EQ(graph.layers.size(), 2U);
  EXPECT_DOUBLE_EQ(graph.layers[0].forward.median.value, 0.01);  // a third: no mode recomputes
  EXPECT_DOUBLE_EQ(graph.layers[0].backward.median.value, 0.02);
  EXPECT_DOUBLE_EQ(graph.layers[1].forward.median.value, 0.02);  // 0.08 - 0.06
  EXPECT_DOUBLE_EQ(graph.layers[1].backward.median.value, 0.04);
  EXPECT_EQ(graph.layers[0].parameter_bytes, Bytes(100));
  EXPECT_EQ(graph.layers[0].outputs.at(0).bytes, Bytes(4096));
  EXPECT_EQ(graph.provenance.notes.at("forward"),
            "of 1 layers, the time that recomputation adds; of 1, a third of the layer's time");
}

TEST(PiperGraph, RefusesALayerThatNeedsSeveralDevices) {
  const std::string text = changed(kPiper, "{\"1\": [{\"id\": \"vanilla\", \"timePerSample\": 0.03",
                                   "{\"2\": [{\"id\": \"vanilla\", \"timePerSample\": 0.03");
  EXPECT_THAT([&] { (void)piper_graph(parse_piper(text, "f.json"), Units::Published); },
              ThrowsMessage<std::invalid_argument>("node 5 cannot run on one device, and a graph has only times on one "
                                                   "device"));
}

TEST(PiperTimeUnit, IsMillisecondsIfTheModelTakesTooLong) {
  EXPECT_EQ(piper_time_unit(parse_piper(kPiper, "f.json"), Units::Fixed).s, 1);
  const Piper slow = parse_piper(changed(kPiper, "0.03", "30"), "f.json");
  EXPECT_EQ(piper_time_unit(slow, Units::Published).s, 1);
  EXPECT_EQ(piper_time_unit(slow, Units::Fixed).s, 1e-3);
  EXPECT_EQ(piper_time_unit(slow, Units::Fixed).reason,
            "fixed: the layers' fastest times on one device add up to 30.06, so times are read as milliseconds");
}

}  // namespace
}  // namespace stagecraft::interchange
