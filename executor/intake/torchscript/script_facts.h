#pragma once

#include <ATen/core/function_schema.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/torchscript/script_value.h"

namespace stagecraft {

/// Adds to `node`, a call of `schema`, what it does to memory and whether it is random: what operator_facts says, and
/// what the dry runs show. `where` begins errors. Throws FormatError as operator_facts.
void add_facts(const OperatorGraph& graph, GraphNode& node, const c10::FunctionSchema& schema,
               const std::vector<ScriptValue>& arguments, const std::vector<ScriptValue>& results,
               const std::string& where);

/// Follows the numbers of a model's inputs through its calls, to what says how many classes they are.
class InputNumbers {
 public:
  /// `value` of the graph is input `input`.
  void add(int value, int input) { inputs_behind_[value] = input; }

  /// Learns how many classes a whole-number input of `inputs` has, from the embedding or cross entropy that reads it.
  /// `name` is the operator's without its namespace. Throws std::invalid_argument that begins with `where` if the range
  /// that was told reaches beyond them.
  void follow_classes(const std::string& name, const c10::FunctionSchema& schema,
                      const std::vector<ScriptValue>& arguments, const std::vector<ModelInput>& inputs,
                      const std::string& where);
  /// Learns which results hold the numbers of an input.
  void follow_results(const std::string& name, const c10::FunctionSchema& schema,
                      const std::vector<ScriptValue>& arguments, const std::vector<ScriptValue>& results);

  /// Sets what was learned where nothing was told.
  void set_classes(std::vector<ModelInput>& inputs) const;

 private:
  [[nodiscard]] int input_behind(const c10::FunctionSchema& schema, const std::vector<ScriptValue>& arguments,
                                 const char* wanted) const;

  std::map<int, int> inputs_behind_;     // value -> input whose numbers it holds
  std::map<int, std::int64_t> classes_;  // by input
};

}  // namespace stagecraft
