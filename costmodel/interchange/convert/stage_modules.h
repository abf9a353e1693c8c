#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/interchange/convert/layer_kinds.h"
#include "costmodel/interchange/convert/python_package.h"
#include "costmodel/plan.h"

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

/// Each layer's stage in a plan for `graph`, -1 for inputs. Throws std::invalid_argument naming the layer that is not
/// in any stage or in two, is not in the graph, or is an input.
[[nodiscard]] std::vector<int> stages_of(const Graph& graph, const Plan& plan);

/// The same for an already partitioned graph, from Layer::stage. Throws std::invalid_argument naming the layer without
/// a stage, or the stage without layers.
[[nodiscard]] std::vector<int> stages_of(const Graph& graph);

/// The model of `graph`'s descriptions (Layer::name), in stages. Inputs are "input0", "input1", ... by the number after
/// "Input", then in the graph's order; a layer's value and module have the name that python_names gives its id, item K
/// of a tuple "itemK_of_NAME". The model returns what no layer reads, in the graph's order; unread items are omitted if
/// another item is read. `hidden` is None and `Size` the axis' length, both made where they are read.
///
/// Defaults where a description does not say: View keeps the batch first, followed by the numbers it gives, or -1;
/// "inplace" applies where nothing else can see it. Weights are torch's defaults.
/// Throws std::invalid_argument naming the layer: a description that cannot be read, an unknown kind, inputs of a
/// number or form that the kind does not take, an item that does not exist, data from a later stage; a stage that
/// computes nothing.
[[nodiscard]] PythonPackage package_of(const Graph& graph, const std::vector<int>& stage_of_layer,
                                       const OwnKinds& classes);

}  // namespace stagecraft::interchange
