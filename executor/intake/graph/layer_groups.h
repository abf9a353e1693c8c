#pragma once

#include <map>
#include <string>
#include <vector>

#include "executor/intake/graph/granularity.h"
#include "executor/intake/graph/operator_graph.h"

namespace stagecraft {

/// Nodes that make one layer.
struct LayerGroup {
  std::string name;                     ///< path of its module; of Operator with the node behind a colon
  std::string kind;                     ///< last word of the module's type
  std::vector<int> nodes;               ///< ascending
  std::vector<std::string> parts = {};  ///< the runs of nodes that it is made of, by their modules
};

/// Every node that the loss or a buffer needs, or that draws random numbers, is in exactly one group or in `shared`,
/// but those that compute numbers.
struct Grouping {
  std::vector<LayerGroup> groups;
  std::vector<int> shared;   ///< nodes that follow from the model's inputs alone and that several layers read
  std::vector<int> derived;  ///< values of theirs that layers read
  std::map<std::string, std::string> merged;  ///< Model::merged
};

/// Layers of `graph` up to value `root`, the loss or what it is computed from.
///
/// Auto: a node belongs to its outermost module whose path ends in a number and that is no Sequential, else to its
/// innermost one; Leaf: to its innermost module; Depth: to the one so many below the whole. A layer is a run of nodes
/// of one module; nodes of a parent between its children join the layer before them, or the first one. A second call of
/// a module is a layer of its own, "NAME@1". A node that only writes a buffer joins the layer that it reads from. Nodes
/// that follow from the model's inputs alone are part of the only layer that reads them, or shared.
///
/// Between any two layers the graph may be cut. Layers are one where that would not be so: where
///  - a layer writes to memory that two values from outside it share;
///  - memory that was made before a layer and written in it is read after it under its old name;
///  - a buffer is written in one of them and used in another;
///  - they read one parameter inside one block of torch.autocast that casts it once for both;
///  - something else than a tensor goes from one to the other, or a tensor of which the file does not say the shape.
///
/// With `like`, layers of the same model in another mode, runs of nodes that are one layer there are one here too.
///
/// Throws std::invalid_argument with place_of the node where a parameter is written.
[[nodiscard]] Grouping layer_groups(const OperatorGraph& graph, int root, const Granularity& granularity,
                                    const Grouping* like = nullptr);

/// Those of grouping.shared that `value` follows from, ascending, with all that write to what they give.
[[nodiscard]] std::vector<int> shared_nodes_for(const OperatorGraph& graph, const Grouping& grouping, int value);

}  // namespace stagecraft
