#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/torchscript/dry_sizes.h"
#include "executor/intake/torchscript/script_call.h"
#include "executor/intake/torchscript/script_state.h"
#include "executor/intake/torchscript/script_value.h"

namespace stagecraft {

/// The graph of a module while its code is laid out: the values, nodes and tensors that the code's names refer to.
class ScriptGraph {
 public:
  /// Of a module in `file`; `samples` is the only batch size. The tensors that `state` holds are the first values.
  /// Throws FormatError, naming the tensor, for one that cannot be held.
  ScriptGraph(const std::string& file, ScriptState& state, std::optional<std::int64_t> samples);

  [[nodiscard]] const OperatorGraph& graph() const { return graph_; }
  [[nodiscard]] const DryRuns& runs() const { return runs_; }

  /// Modules around the nodes to come, outermost first.
  [[nodiscard]] const std::vector<ModuleFrame>& modules() const { return modules_; }
  void enter(ModuleFrame module) { modules_.push_back(std::move(module)); }
  void leave() { modules_.pop_back(); }

  /// The tensor that the code refers to: one that the module holds, or a new constant.
  ScriptValue held_tensor(const at::Tensor& tensor);
  /// A new input of the graph.
  ScriptValue add_input(const ModelInput& model);
  /// Adds what `result` holds to the outputs.
  void add_output(const ScriptValue& result);

  /// A node in the current modules that reads and gives nothing yet; finish adds it to the graph.
  [[nodiscard]] GraphNode new_node(const std::string& name, const std::string& target);
  /// What `node` pushes for `value`; values that it reads are added to it.
  ScriptArgument argument_of(const ScriptValue& value, GraphNode& node);
  /// Result `index` of `node` as it came out of the dry runs, `found`. Where it is not `sure`, nothing is said of its
  /// shape.
  ScriptValue add_result(GraphNode& node, ScriptCall& made, const c10::Type& type, std::vector<c10::IValue> found,
                         std::size_t index, bool sure);
  /// Adds `node`, which `made` runs.
  void finish(GraphNode node, ScriptCall made);

  /// The graph, whose nodes can run. Nothing is added afterwards.
  [[nodiscard]] OperatorGraph take();

 private:
  ScriptValue held_value(int tensor);
  std::string unique(const std::string& wanted);
  int number_value(const ScriptValue& value);

  ScriptState& state_;
  DryRuns runs_;
  OperatorGraph graph_;
  std::vector<ScriptCall> calls_;           // by node
  std::map<int, ScriptValue> held_values_;  // by index into state_.held()
  std::vector<ModuleFrame> modules_;
  std::map<std::string, int> names_;
};

}  // namespace stagecraft
