#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/graph.h"

namespace stagecraft::partitioner {

/// A graph for one microbatch size, and the microbatches of a step.
struct SizedGraph {
  Graph graph;
  int microbatches = 1;
  std::string origin;       ///< ResizedGraph::origin; empty if nothing says how many samples a microbatch has
  bool is_measured = true;  ///< else interpolated
  std::string file = {};    ///< of the profile, where it is known
};

/// The graphs that a search may choose from.
struct SizedGraphs {
  std::vector<SizedGraph> graphs;  ///< ascending by size
  std::vector<std::string> notes;  ///< which sizes are left out and why
};

/// A graph for every microbatch size that divides `global_batch`, from the smallest to the largest size of the
/// profiles; times are never extrapolated. Sizes with which a step would have more than kMostMicrobatches, and those
/// that the profiles cannot be interpolated for, are left out. Throws std::invalid_argument as graph_of_samples does
/// for profiles that do not belong together, and if no size is left.
[[nodiscard]] SizedGraphs sized_graphs(const std::vector<Graph>& profiles, std::int64_t global_batch);

}  // namespace stagecraft::partitioner
