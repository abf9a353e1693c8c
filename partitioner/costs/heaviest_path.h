#pragma once

#include <cstddef>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/costs/pipeline_costs.h"

namespace stagecraft::partitioner {

/// A way into a node.
struct Arc {
  int from = 0;           ///< the node where the way begins
  int number = 0;         ///< the caller's
  Seconds forward, back;  ///< the weight of the way is forward + back
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

// The path with the most computation: a stage of this path waits for the stages before, and gets gradients back along
// it.

/// The message from one node of the path to the next if they are on different devices.
struct PathHop {
  Seconds forward, back;  ///< on idle links
  Seconds port;           ///< of all messages between two devices or groups
};

/// The nodes of the path with the most computation and messages, forward and back. If PipelineCosts::returns, every
/// value on the path has a gradient. Precondition: there is a node.
[[nodiscard]] std::vector<int> computation_path(const PipelineCosts& costs);

/// The longest messages of values that `to` reads from `from`, two neighbours on the computation_path, over `level` or
/// one farther out. They travel together if the two nodes are in different stages.
[[nodiscard]] PathHop path_hop(const PipelineCosts& costs, int from, int to, std::size_t level = 0);

}  // namespace stagecraft::partitioner
