#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "costmodel/errors.h"
#include "costmodel/format/topology_json.h"
#include "tests/costmodel/documents.h"
#include "tests/support/places.h"

namespace stagecraft::format {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

/// The full document with the first `from` replaced by `to` is refused with `message`.
void expect_refused(const std::string& from, const std::string& to, const std::string& message) {
  std::string text = topology_json(full_topology());
  const std::size_t at = text.find(from);
  ASSERT_NE(at, text.npos) << from;
  text.replace(at, from.size(), to);
  EXPECT_THAT([&] { (void)parse_topology(text, "topology.json"); },
              ThrowsMessage<FormatError>(AllOf(StartsWith("topology.json: "), HasSubstr(message))));
}

TEST(TopologyJson, ReadsBackEveryField) {
  const std::string text = topology_json(full_topology());
  EXPECT_EQ(parse_topology(text, "topology.json"), full_topology());
  EXPECT_EQ(topology_json(parse_topology(text, "topology.json")), text);
}

TEST(TopologyJson, ReadsBackATopologyWithoutOptionalFields) {
  Topology topology;
  topology.name = "plain";
  topology.device.name = "card";
  topology.levels = {{"server", 1, {BytesPerSecond(1), 0_s, {}, {}}}};
  EXPECT_EQ(parse_topology(topology_json(topology), "topology.json"), topology);
}

TEST(ReadTopology, NamesAnotherFormatAndVersion) {
  expect_refused("stagecraft.topology", "stagecraft.graph",
                 "/format: found \"stagecraft.graph\", expected \"stagecraft.topology\"");
  expect_refused("\"version\": 9", "\"version\": 0", "/version: found version 0, this program reads version 1 to 9");
  expect_refused("\"version\": 9", "\"version\": 10", "/version: found version 10, this program reads version 1 to 9");
}

TEST(ReadTopology, TakesVersionOneAsDeclared) {
  const Topology topology = parse_topology(
      R"({"format": "stagecraft.topology", "version": 1, "name": "old", "device": {"name": "card"},
          "levels": [{"name": "server", "count": 2, "bandwidth_bytes_per_s": 8, "latency_s": 1}]})",
      "topology.json");
  ASSERT_EQ(topology.levels.size(), 1u);
  EXPECT_EQ(topology.levels[0], (Level{"server", 2, {BytesPerSecond(8), 1_s, {}, {}}}));
  EXPECT_EQ(topology.levels[0].link.origin, LinkOrigin::Declared);
}

// Up to version 6, links wrote why they were not trusted into a note.
TEST(ReadTopology, TakesTheNotedDistrustOfOlderFiles) {
  const Topology topology = parse_topology(
      R"({"format": "stagecraft.topology", "version": 6, "name": "old", "device": {"name": "card"},
          "levels": [{"name": "host", "count": 2, "bandwidth_bytes_per_s": 8, "latency_s": 1, "origin": "measured"}],
          "provenance": {"notes": {"not trusted": "the machine was busy"}}})",
      "topology.json");
  EXPECT_EQ(topology.levels[0].link.distrust, std::vector<std::string>{"the machine was busy"});
  EXPECT_EQ(parse_topology(topology_json(topology), "topology.json"), topology);
}

TEST(ReadTopology, ListsTheKnownOriginsForAnUnknownOne) {
  expect_refused("\"measured\"", "\"guessed\"",
                 "/levels/0/origin: unknown origin \"guessed\", known are declared, measured");
}

TEST(ReadTopology, ListsTheKnownThreadsForAnUnknownOne) {
  expect_refused("\"own\"", "\"mine\"",
                 "/levels/0/processing/thread: unknown thread \"mine\", known are own, separate");
}

TEST(ReadTopology, RefusesProcessingOfNeitherEnd) {
  Topology topology = full_topology();
  topology.levels[0].link.processing = MessageProcessing{};
  EXPECT_THAT([&] { (void)parse_topology(topology_json(topology), "topology.json"); },
              ThrowsMessage<FormatError>(HasSubstr("level \"server\": processing has neither sender nor receiver")));
}

TEST(ReadTopology, ListsTheKnownKeysForAnUnknownOne) {
  expect_refused("\"memory_bytes\"", "\"memory\"",
                 "/device: unknown key \"memory\", known are name, kind, host_processors, memory_bytes, ");
  expect_refused("\"latency_s\"", "\"latency_us\": 1, \"latency_s\"",
                 "/levels/0: unknown key \"latency_us\", did you mean latency_s? known are name, count, "
                 "bandwidth_bytes_per_s, latency_s");
}

TEST(ReadTopology, NamesAMissingKey) {
  expect_refused("\"latency_s\": 0.5,", "", "/levels/0: key \"latency_s\" is missing");
  expect_refused("\"ranks\": 2,", "", "/levels/0/all_reduce/0: key \"ranks\" is missing");
}

TEST(ReadTopology, NamesAWrongTypeOrANumberOutOfRange) {
  expect_refused("\"bandwidth_bytes_per_s\": 8.0", "\"bandwidth_bytes_per_s\": \"8 GB/s\"",
                 "/levels/0/bandwidth_bytes_per_s: found \"8 GB/s\", expected a number");
  expect_refused("\"bandwidth_bytes_per_s\": 4.0", "\"bandwidth_bytes_per_s\": 0",
                 "/levels/1/bandwidth_bytes_per_s: found 0, expected a number above 0");
  expect_refused("\"latency_s\": 0.5", "\"latency_s\": -0.5",
                 "/levels/0/latency_s: found -0.5, expected a number of at least 0");
  expect_refused("\"count\": 2", "\"count\": 0", "/levels/0/count: found 0, expected an integer from 1");
  expect_refused("\"count\": 2", "\"count\": 1.5", "/levels/0/count: found 1.5, expected an integer from 1");
  expect_refused("\"memory_bytes\": 1000", "\"memory_bytes\": 0",
                 "/device/memory_bytes: found 0, expected an integer from 1");
  expect_refused("\"log_spread\": 0.25", "\"log_spread\": -1",
                 "/levels/0/all_reduce/0/log_spread: found -1, expected a number of at least 0");
  expect_refused("\"send_receive_log_spread\": 0.125", "\"send_receive_log_spread\": -1",
                 "/levels/0/send_receive_log_spread: found -1, expected a number of at least 0");
  expect_refused("\"ranks\": 2", "\"ranks\": 1", "/levels/0/all_reduce/0/ranks: found 1, expected an integer from 2");
  expect_refused("\"time_s\": 1.0", "\"time_s\": 0",
                 "/levels/0/send_receive/0/time_s: found 0, expected a number above 0");
}

TEST(ReadTopology, NamesWhatDoesNotFitTogether) {
  expect_refused("\"bytes\": 2", "\"bytes\": 1", "level \"server\": send_receive: points are not ascending in bytes");
  expect_refused("\"all_reduce\": [", "\"all_reduce\": [{\"ranks\": 2, \"points\": [{\"bytes\": 1, \"time_s\": 1}]}, ",
                 "/levels/0/all_reduce/1/ranks: a curve for 2 ranks already exists");
  expect_refused("\"reduce_scatter\": [",
                 "\"reduce_scatter\": [{\"ranks\": 2, \"points\": [{\"bytes\": 1, \"time_s\": 1}]}, ",
                 "/levels/0/reduce_scatter/1/ranks: a curve for 2 ranks already exists");
  expect_refused("\"count\": 2", "\"count\": 16777216", "level \"rack\": more than 2^24 devices");
}

TEST(ShippedTopology, OfThreeLevelsReadsAsItsNameSays) {
  const Topology topology = read_topology(source_folder() + "/examples/topology-3-levels.json");
  ASSERT_EQ(topology.levels.size(), 3u);
  EXPECT_EQ(device_count(topology), 64);
  EXPECT_EQ(topology.device.memory, Bytes(80'000'000'000));
  EXPECT_EQ(transfer_time(topology.levels[1].link, Bytes(25'000'000'000)), topology.levels[1].link.latency + 1_s);
}

TEST(ShippedTopology, OfTwoProcessorsReads) {
  const Topology topology = read_topology(source_folder() + "/examples/topology-2-cpus.json");
  EXPECT_EQ(device_count(topology), 2);
}

}  // namespace
}  // namespace stagecraft::format
