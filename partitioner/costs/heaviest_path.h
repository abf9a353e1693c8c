#pragma once

#include <vector>

#include "costmodel/units.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// A way into a node.
struct Arc {
  int from = 0;           ///< the node that it comes from
  int number = 0;         ///< the caller's
  Seconds forward, back;  ///< its weight is their sum
};

/// A path: its nodes, and the numbers of the arcs between them.
struct HeaviestPath {
  std::vector<int> nodes;
  std::vector<int> arcs;
  friend bool operator==(const HeaviestPath&, const HeaviestPath&) = default;
};

/// The path with the largest sum of its nodes' and arcs' weights. Nodes are numbered in topological order; `incoming`
/// has the arcs into each. Of equal ways into a node the first is taken, of equal ends the first. Precondition: there
/// is a node, and no weight is negative.
[[nodiscard]] HeaviestPath heaviest_path(const std::vector<Seconds>& weights,
                                         const std::vector<std::vector<Arc>>& incoming);

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
