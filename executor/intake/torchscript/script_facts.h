#pragma once

#include <ATen/core/function_schema.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "executor/intake/graph/operator_graph.h"
#include "executor/intake/torchscript/values/script_value.h"

namespace stagecraft::intake {

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
