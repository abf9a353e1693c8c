#pragma once

#include <map>
#include <string>
#include <vector>

#include "executor/intake/graph/layers/granularity.h"
#include "executor/intake/graph/operator_graph.h"

namespace stagecraft::intake {

/// Nodes that make one layer.
struct LayerGroup {
  std::string name;                     ///< path of its module; for Operator followed by a colon and the node
  std::string kind;                     ///< last word of the module's type
  std::vector<int> nodes;               ///< ascending
  std::vector<std::string> parts = {};  ///< its runs of nodes, by their modules
};

/// Every node that the loss or a buffer needs, or that draws random numbers, is in exactly one group or in `shared`,
/// except nodes that compute numbers.
struct Grouping {
  std::vector<LayerGroup> groups;
  std::vector<int> shared;   ///< nodes that follow only from the model's inputs and that several layers read
  std::vector<int> derived;  ///< their values that layers read
  std::map<std::string, std::string> merged;  ///< Model::merged
};

/// Layers of `graph` up to value `root`, which is the loss or from which it is computed.
///
/// Auto: a node belongs to its outermost module whose path ends in a number and that is not a Sequential, else to its
/// innermost one; Leaf: to its innermost module; Depth: to the one this many levels below the whole model. A layer is a
/// run of nodes of one module; nodes of a parent between its children join the layer before them, or the first one. A
/// second call of a module is a separate layer, "NAME@1". A node that only writes a buffer joins the layer that it
/// reads from. Nodes that follow only from the model's inputs are part of the only layer that reads them, or shared.
///
/// The graph may be cut between any two layers. Layers are merged where a cut is impossible:
///  - a layer writes to memory that two values from outside it share;
///  - memory made before a layer and written in it is read after it under its old name;
///  - a buffer is written in one of them and used in another;
///  - both read one parameter inside a torch.autocast block that casts it once for both;
///  - a value other than a tensor, or a tensor of unknown shape, passes from one to the other;
///  - a node of one is GraphNode::joined to one of the other.
///
/// With `like`, layers of the same model in another mode, nodes that are in one layer there are in one layer here too.
///
/// Throws std::invalid_argument with place_of the node if it writes a parameter.
[[nodiscard]] Grouping layer_groups(const OperatorGraph& graph, int root, const Granularity& granularity,
                                    const Grouping* like = nullptr);

/// Nodes of grouping.shared from which `value` follows, ascending, with all that write to their results.
[[nodiscard]] std::vector<int> shared_nodes_for(const OperatorGraph& graph, const Grouping& grouping, int value);

}  // namespace stagecraft::intake
