#pragma once

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "executor/intake/graph/dry_sizes.h"
#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/torchscript/script_module.h"
#include "executor/intake/torchscript/script_value.h"

namespace stagecraft::intake {

/// The graph of a module during layout: the values, nodes and tensors to which the code's names refer.
class ScriptGraph {
 public:
  /// For a module in `file`; `samples` is the only batch size. The tensors of `state` are the first values. Throws
  /// FormatError naming a tensor that is not supported.
  ScriptGraph(const std::string& file, ScriptState& state, std::optional<std::int64_t> samples);

  [[nodiscard]] const OperatorGraph& graph() const { return graph_; }
  [[nodiscard]] const DryRuns& runs() const { return runs_; }

  /// Modules around the next nodes, outermost first.
  [[nodiscard]] const std::vector<ModuleFrame>& modules() const { return modules_; }
  void enter(ModuleFrame module) { modules_.push_back(std::move(module)); }
  void leave() { modules_.pop_back(); }

  /// The value of a tensor in the code: one of the module's, or a new constant.
  ScriptValue held_tensor(const at::Tensor& tensor);
  /// A new input of the graph.
  ScriptValue add_input(const model::ModelInput& model);
  /// Adds the values in `result` to the outputs.
  void add_output(const ScriptValue& result);

  /// A node in the current modules, without arguments and results yet; finish adds it to the graph.
  [[nodiscard]] GraphNode new_node(const std::string& name, const std::string& target);
  /// The argument of `node` for `value`; adds the values that it reads to the node.
  ScriptArgument argument_of(const ScriptValue& value, GraphNode& node);
  /// Result `index` of `node` from the dry runs' `found`. If not `sure`, its shape is left open.
  ScriptValue add_result(GraphNode& node, ScriptCall& made, const c10::Type& type, std::vector<c10::IValue> found,
                         std::size_t index, bool sure);
  /// Adds `node`, run by `made`.
  void finish(GraphNode node, ScriptCall made);

  /// The graph, ready to run. Nothing may be added afterwards.
  [[nodiscard]] OperatorGraph take();

 private:
  ScriptValue held_value(int tensor);
  std::string unique(const std::string& wanted);
  int number_value(const ScriptValue& value);

  ScriptState& state_;
  DryRuns runs_;
  OperatorGraph graph_;
  std::vector<ScriptCall> calls_;           // by node
  std::map<int, ScriptValue> held_values_;  // by index into state_.tensors()
  std::vector<ModuleFrame> modules_;
  std::map<std::string, int> names_;
};

/// Adds to `node`, a call of `schema`, what it does to memory and whether it is random, from operator_facts and from
/// the dry runs. `where` begins errors. Throws FormatError as operator_facts.
void add_facts(const OperatorGraph& graph, GraphNode& node, const c10::FunctionSchema& schema,
               const std::vector<ScriptValue>& arguments, const std::vector<ScriptValue>& results,
               const std::string& where);

/// Follows the values of a model's inputs through its calls to operators that determine their number of classes.
class InputNumbers {
 public:
  /// `value` of the graph is input `input`.
  void add(int value, int input) { inputs_behind_[value] = input; }

  /// Finds how many classes an integer input of `inputs` has, from the embedding or cross entropy that reads it. `name`
  /// is the operator's without its namespace. Throws std::invalid_argument that begins with `where` if the given range
  /// exceeds them.
  void follow_classes(const std::string& name, const c10::FunctionSchema& schema,
                      const std::vector<ScriptValue>& arguments, const std::vector<model::ModelInput>& inputs,
                      const std::string& where);
  /// Finds which results contain the values of an input.
  void follow_results(const std::string& name, const c10::FunctionSchema& schema,
                      const std::vector<ScriptValue>& arguments, const std::vector<ScriptValue>& results);

  /// Sets the number of classes that was found where no range was given.
  void set_classes(std::vector<model::ModelInput>& inputs) const;

 private:
  [[nodiscard]] int input_behind(const c10::FunctionSchema& schema, const std::vector<ScriptValue>& arguments,
                                 const char* wanted) const;

  std::map<int, int> inputs_behind_;     // value -> input whose numbers it holds
  std::map<int, std::int64_t> classes_;  // by input
};

}  // namespace stagecraft::intake
