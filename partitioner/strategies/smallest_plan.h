#pragma once

#include <optional>
#include <string>

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/candidate.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// A plan, by the memory that it needs.
struct SmallestPlan {
  std::string origin;  ///< RankedPlan::origin: `auto`'s, if none of its moves needs less
  Candidate candidate;
  Bytes need;  ///< of the stage that needs the most
};

/// The plan that needs the least memory of those found from the candidates of `auto` by moves of layers and replicas,
/// as the constraints allow, whatever the limit. The moves end after `time`. Absent if no candidate is possible.
[[nodiscard]] std::optional<SmallestPlan> smallest_plan(const Graph& graph, const Topology& topology,
                                                        const CostModel& model, const Constraints& constraints,
                                                        Seconds time);

}  // namespace stagecraft::partitioner
