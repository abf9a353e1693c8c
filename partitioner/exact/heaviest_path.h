#pragma once

#include <vector>

#include "costmodel/units.h"

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

}  // namespace stagecraft::partitioner
