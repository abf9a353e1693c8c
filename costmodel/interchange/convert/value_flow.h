#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/interchange/convert/layer_kinds.h"

namespace stagecraft::interchange {

/// An output tensor of a layer: its value, or the item of its tuple at `path`. Sorted in the order of computation.
struct Leaf {
  int position = 0;  ///< FlowNode::position
  int layer = 0;
  std::vector<std::int64_t> path;
  friend auto operator<=>(const Leaf&, const Leaf&) = default;
};

/// A layer, and the use of its value.
struct FlowNode {
  std::string name;          ///< in Python
  int stage = -1;            ///< -1: an input
  int position = 0;          ///< in execution order; below 0 for inputs
  PythonCall call;           ///< unused for an input
  ValueForm form;            ///< its output
  std::vector<int> sources;  ///< layers that it reads, in order
  std::vector<int> readers;
  bool used = false;    ///< an output of the model, or read by a used layer
  bool output = false;  ///< an output of the model
};

/// A model's layers in stages, with all tensors that cross between them.
struct ValueFlow {
  std::vector<int> order;       ///< layers, every source before its readers
  std::vector<FlowNode> nodes;  ///< one per layer of the graph
  std::vector<std::vector<Leaf>>
      inputs;  ///< one list per stage, in order: what it reads from the model's inputs and earlier stages
  std::vector<std::vector<Leaf>> outputs;  ///< one list per stage, in order: its outputs to later stages and of the
                                           ///< model
};

/// The flow of `graph` with layer i in stage `stage_of_layer[i]`; see stage_modules.h for the names of values and the
/// outputs of the model. Throws std::invalid_argument as package_of does.
[[nodiscard]] ValueFlow value_flow(const Graph& graph, const std::vector<int>& stage_of_layer, const OwnKinds& classes);

/// True for a value that is made where it is read: None, or a number.
[[nodiscard]] bool is_inline(const FlowNode& node);

/// All tensors in the value of `layer`, in order.
[[nodiscard]] std::vector<Leaf> leaves(const ValueFlow& flow, int layer);

/// The leaf's name in other stages.
[[nodiscard]] std::string leaf_name(const ValueFlow& flow, const Leaf& leaf);

/// Python for the part at `path`, of form `form`, of the value of `layer` in another stage, composed of the leaves that
/// crossed.
[[nodiscard]] std::string received_text(const ValueFlow& flow, int layer, const ValueForm& form,
                                        const std::vector<std::int64_t>& path);

}  // namespace stagecraft::interchange
