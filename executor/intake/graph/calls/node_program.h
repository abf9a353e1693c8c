#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "executor/intake/graph/operator_graph.h"

namespace stagecraft::intake {

/// Some nodes of a graph, ready to run. Thread-safe.
class NodeProgram {
 public:
  /// `nodes` ascending; `outputs` are their values. Nodes that compute needed numbers are added. The graph's `compile`
  /// throws FormatError for nodes that cannot run. The graph itself is not needed afterwards.
  NodeProgram(const OperatorGraph& graph, std::vector<int> nodes, std::vector<int> outputs);

  /// Tensors that run() needs, in order: values of other nodes, then inputs of the model, each ascending or in
  /// OperatorGraph::reading_order. An input of the model may only be needed for its shape.
  [[nodiscard]] const std::vector<int>& arguments() const { return arguments_; }
  /// Followed by these: indices into OperatorGraph::tensors, ascending.
  [[nodiscard]] const std::vector<int>& tensors() const { return tensors_; }

  /// The outputs. Arguments that a node writes in place are copied first, `tensors` only in evaluation. An argument
  /// whose strides differ from the file's (contiguous from another rank) is laid out as in the file.
  [[nodiscard]] std::vector<at::Tensor> run(std::span<const at::Tensor> arguments, std::vector<at::Tensor> tensors,
                                            const NodeRun& how) const;

 private:
  struct Step {
    NodeCall call;
    std::vector<int> release;  ///< slots that nobody reads afterwards
    std::string random;        ///< the node's name, if it draws random numbers
    std::size_t stay = 0;      ///< blocks shared with the previous step, outermost first
    std::vector<GraphBlock> enter = {};
  };
  struct SlotArgument {
    int slot = -1;
    bool copy = false;
    std::vector<SizeExpression> strides = {};  ///< empty: any will do
  };
  struct Binding {
    std::string symbol;
    std::size_t argument = 0;
    std::int64_t axis = 0;
    SizeExpression extent;
  };
  void bind(const OperatorGraph& graph, const std::vector<std::string>& symbols);

  std::vector<int> arguments_;
  std::vector<int> tensors_;
  std::vector<SlotArgument> argument_slots_;
  std::vector<std::vector<int>> tensor_slots_;
  std::vector<bool> copied_tensors_;
  std::vector<Binding> bindings_;
  std::vector<std::pair<int, SizeExpression>> numbers_;
  std::vector<Step> steps_;
  std::vector<int> outputs_;
  std::size_t slots_ = 0;
  bool keeps_casts_ = false;  ///< in a block of autocast
};

}  // namespace stagecraft::intake
