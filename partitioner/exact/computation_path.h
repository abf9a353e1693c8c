#pragma once

#include <vector>

#include "costmodel/units.h"
#include "partitioner/exact/pipeline_costs.h"

namespace stagecraft::partitioner {

// The path with the most computation, by which a stage waits for those before it and gets gradients back.

/// The message from one node of the path to the next if they are on different devices.
struct PathHop {
  Seconds forward, back;  ///< on idle links
  Seconds port;           ///< see CrossingValue
};

/// The nodes of the path with the most computation and messages, forward and back; where gradients have to come back,
/// all its values have one. Precondition: there is a node.
[[nodiscard]] std::vector<int> computation_path(const PipelineCosts& costs);

/// The longest message of a value that `to` reads from `from`, two neighbours on that path.
[[nodiscard]] PathHop path_hop(const PipelineCosts& costs, int from, int to);

}  // namespace stagecraft::partitioner
