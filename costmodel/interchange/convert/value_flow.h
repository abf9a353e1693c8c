#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/interchange/convert/layer_kinds.h"

namespace stagecraft {

/// A tensor that a layer gives: its value, or the item of its tuple to which `path` leads. In the order of computing.
struct Leaf {
  int position = 0;  ///< FlowNode::position
  int layer = 0;
  std::vector<std::int64_t> path;
  friend auto operator<=>(const Leaf&, const Leaf&) = default;
};

/// A layer, and what happens to its value.
struct FlowNode {
  std::string name;          ///< in Python
  int stage = -1;            ///< -1: an input
  int position = 0;          ///< in execution order; below 0 for inputs
  PythonCall call;           ///< of an input: nothing
  ValueForm form;            ///< what it gives
  std::vector<int> sources;  ///< layers it reads, in order
  std::vector<int> readers;
  bool used = false;    ///< the model gives it, or something that is used reads it
  bool output = false;  ///< the model gives it
};

/// A model's layers in stages, with all that crosses between them.
struct ValueFlow {
  std::vector<int> order;       ///< layers, every source before its readers
  std::vector<FlowNode> nodes;  ///< one per layer of the graph
  std::vector<std::vector<Leaf>>
      inputs;  ///< one list a stage, in order: what it takes from the model's inputs and stages before it
  std::vector<std::vector<Leaf>> outputs;  ///< one list a stage, in order: what it gives later stages and the model
};

/// The flow of `graph` with layer i in stage `stage_of_layer[i]`; stage_modules.h says how values are named and which
/// of them the model gives. Throws std::invalid_argument as package_of does.
[[nodiscard]] ValueFlow value_flow(const Graph& graph, const std::vector<int>& stage_of_layer, const OwnKinds& own);

/// True for a value that is made where it is read: None, or a number.
[[nodiscard]] bool is_inline(const FlowNode& node);

/// All tensors in the value of `layer`, in order.
[[nodiscard]] std::vector<Leaf> leaves(const ValueFlow& flow, int layer);

/// The leaf's name in all stages but its own.
[[nodiscard]] std::string leaf_name(const ValueFlow& flow, const Leaf& leaf);

/// A value of another stage as Python, put together from the leaves that crossed: what `path` leads to in that of
/// `layer`, whose form is `form`.
[[nodiscard]] std::string received_text(const ValueFlow& flow, int layer, const ValueForm& form,
                                        const std::vector<std::int64_t>& path);

}  // namespace stagecraft
