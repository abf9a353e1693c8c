#pragma once

#include <gtest/gtest.h>

#include <string>

namespace stagecraft::testing {

/// dnn-partitioning: nodes 7 -> 3 -> 9 of a forward, and the backward of 3, in the colour of 3.
inline constexpr const char* kDnnPartitioning =
    R"({"maxSizePerFPGA": 1e9, "maxFPGAs": 2, "maxCPUs": 1, "nodes": [
 {"id": 7, "supportedOnFpga": 1, "cpuLatency": 10, "fpgaLatency": 1, "isBackwardNode": 0, "colorClass": 4, "size": 16, "name": "a"},
 {"id": 3, "supportedOnFpga": true, "cpuLatency": 20, "fpgaLatency": 2, "isBackwardNode": false, "colorClass": 5, "size": 32},
 {"id": 9, "supportedOnFpga": 0, "cpuLatency": 30, "fpgaLatency": 3, "isBackwardNode": 0},
 {"id": 4, "supportedOnFpga": 1, "cpuLatency": 40, "fpgaLatency": 4, "isBackwardNode": 1, "colorClass": 5, "layerId": 8}],
 "edges": [{"sourceId": 7, "destId": 3, "cost": 0.5, "size": 1073741.824},
 {"sourceId": 3, "destId": 9, "cost": 0.25}, {"sourceId": 3, "destId": 4, "cost": 0.25}]})";

/// Piper: two nodes, the second with recomputation and on two devices.
inline constexpr const char* kPiper =
    R"({"maxDevices": 4, "maxMemoryPerDevice": 80e9, "bandwidth": 25e9, "mbsInBatch": 12, "nodes": [
 {"id": 5, "name": "embedding", "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 0.03, "parameterSize": 100,
   "memoryUsageA": 10, "memoryUsageB": 200, "syncTimeFw": {}, "syncTimeBw": {"2": 0}}]}},
 {"id": 2, "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 0.06, "parameterSize": 50, "memoryUsageA": 20,
   "memoryUsageB": 100, "syncTimeFw": {"5": 0}, "syncTimeBw": {}},
  {"id": "activation recomp", "timePerSample": 0.08, "parameterSize": 50, "memoryUsageA": 2, "memoryUsageB": 118,
   "syncTimeFw": {"5": 0}, "syncTimeBw": {}}],
  "2": [{"id": "vanilla", "timePerSample": 0.04, "parameterSize": 25, "memoryUsageA": 11, "memoryUsageB": 50,
   "syncTimeFw": {"5": 64}, "syncTimeBw": {}}]}}],
 "edges": [{"sourceId": 5, "destId": 2, "communicationCost": 4096}]})";

/// `text` with the first `from` replaced by `to`.
inline std::string changed(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, text.npos) << from;
  return text.replace(at, from.size(), to);
}

}  // namespace stagecraft::testing
