#pragma once

#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"

namespace stagecraft {

// A graph as a list of layers that is cut into stages, which is what other systems mean by a split.

/// Layers of stages, in topological order: the graph's without its inputs.
[[nodiscard]] std::vector<int> layer_list(const Graph& graph);

/// Positions in `layers` (layer ids, in order) where stages begin, 0 first and the length last, for stages that begin
/// at the layers `names` and one before them. A name is a layer's id, or a module's path, such as "h.3" for "h.3.attn",
/// which means the first of its layers. Throws std::invalid_argument for an unknown name, listing the known ones, for
/// the first layer, and for names out of order.
[[nodiscard]] std::vector<int> bounds_at(const std::vector<std::string>& layers, const std::vector<std::string>& names);

/// The stages layer_list(graph)[bounds[s] .. bounds[s + 1]), one replica each. Throws std::invalid_argument for bounds
/// that do not increase from 0 to the number of layers.
[[nodiscard]] Partition partition_of_bounds(const Graph& graph, const std::vector<int>& bounds);

/// Ids of layer_list(graph).
[[nodiscard]] std::vector<std::string> layer_ids(const Graph& graph);

}  // namespace stagecraft
