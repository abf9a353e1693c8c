#pragma once

#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// What the user of the ranking's first plan should know, one line each: settings with which a plan is at least a tenth
/// faster, with its predicted step; and if more than a tenth of the devices are idle, why, and what would use them.
/// Tries for up to `time`. `mark` comes before every figure.
[[nodiscard]] std::vector<std::string> advice(const Graph& graph, const Topology& topology, const CostModel& costs,
                                              const Constraints& constraints, const Ranking& ranking, Seconds time,
                                              const std::string& mark);

}  // namespace stagecraft::partitioner
