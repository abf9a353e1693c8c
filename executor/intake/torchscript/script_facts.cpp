#include "executor/intake/torchscript/script_facts.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"
#include "executor/intake/graph/calls/operator_facts.h"
#include "executor/intake/torchscript/values/script_operators.h"

namespace stagecraft::intake {
namespace {

using Kind = ScriptValue::Kind;

bool shares_memory(const c10::IValue& a, const c10::IValue& b) {
  if (!a.isTensor()) return false;
  if (!b.isTensor()) return true;
  const at::Tensor& x = a.toTensor();
  const at::Tensor& y = b.toTensor();
  if (!x.defined() || !y.defined() || !x.has_storage() || !y.has_storage()) return false;
  return x.storage().unsafeGetStorageImpl() == y.storage().unsafeGetStorageImpl();
}

/// Argument `wanted` of a call, if it is a value.
const ScriptValue* value_argument(const c10::FunctionSchema& schema, const std::vector<ScriptValue>& arguments,
                                  const char* wanted) {
  const auto it = std::ranges::find(schema.arguments(), wanted, &c10::Argument::name);
  const auto at = to_index(it - schema.arguments().begin());
  return at < arguments.size() && arguments[at].kind == Kind::Value ? &arguments[at] : nullptr;
}

}  // namespace

void add_facts(const OperatorGraph& graph, GraphNode& node, const c10::FunctionSchema& schema,
               const std::vector<ScriptValue>& arguments, const std::vector<ScriptValue>& results,
               const std::string& where) {
  const auto op = c10::Dispatcher::singleton().findSchema(schema.operator_name());
  std::vector<CallArgument> given;
  for (const ScriptValue& argument : arguments) {
    CallArgument out;
    for_each_value(argument, [&](const ScriptValue& part) {
      if (part.kind == Kind::Value) out.tensors.push_back(part.value);
    });
    if (argument.kind == Kind::Value) out.value = argument.value;
    if (argument.kind == Kind::Constant) out.constant = argument.constant;
    given.push_back(std::move(out));
  }
  std::vector<std::vector<int>> given_back;
  for (const ScriptValue& result : results) {
    given_back.emplace_back();
    for_each_value(result, [&](const ScriptValue& part) { given_back.back().push_back(part.value); });
  }
  NodeFacts facts = operator_facts(schema, op ? &*op : nullptr, given, given_back, where);
  node.writes = std::move(facts.writes);
  node.aliases = std::move(facts.aliases);
  node.decays = std::move(facts.decays);
  node.random = facts.random;
  node.repeatable = facts.repeatable;
  // Missing from schemas: results that share memory with arguments.
  for (const ScriptValue& result : results) {
    for_each_value(result, [&](const ScriptValue& made) {
      const bool other = graph.values[to_index(made.value)].kind == GraphValue::Kind::Other;
      for (const ScriptValue& argument : arguments) {
        for_each_value(argument, [&](const ScriptValue& read) {
          if (read.kind != Kind::Value) return;
          const std::pair<int, int> pair{made.value, read.value};
          const bool same = other || shares_memory(made.runs.front(), read.runs.front());
          if (same && std::ranges::find(node.aliases, pair) == node.aliases.end()) node.aliases.push_back(pair);
        });
      }
    });
  }
}

/// The input whose numbers that argument holds, or -1.
int InputNumbers::input_behind(const c10::FunctionSchema& schema, const std::vector<ScriptValue>& arguments,
                               const char* wanted) const {
  const ScriptValue* const value = value_argument(schema, arguments, wanted);
  const auto it = value ? inputs_behind_.find(value->value) : inputs_behind_.end();
  return it == inputs_behind_.end() ? -1 : it->second;
}

void InputNumbers::follow_classes(const std::string& name, const c10::FunctionSchema& schema,
                                  const std::vector<ScriptValue>& arguments,
                                  const std::vector<model::ModelInput>& inputs, const std::string& where) {
  const bool scores = name == "cross_entropy_loss" || name == "nll_loss" || name == "nll_loss_nd";
  if (!scores && name != "embedding") return;
  const int input = input_behind(schema, arguments, scores ? "target" : "indices");
  const ScriptValue* const told = value_argument(schema, arguments, scores ? "self" : "weight");
  if (input < 0 || !told || !told->runs.front().isTensor()) return;
  const at::Tensor sizes = told->runs.front().toTensor();
  if (sizes.dim() == 0) return;
  const std::int64_t classes = sizes.size(scores && sizes.dim() > 1 ? 1 : 0);
  classes_.emplace(input, classes);
  const model::ModelInput& model = inputs[to_index(input)];
  if (model.classes > classes) {
    throw std::invalid_argument(where + ": has " + std::to_string(classes) + (scores ? " classes" : " rows") +
                                "; found range " + std::to_string(model.least) + ".." + std::to_string(model.classes) +
                                " of input \"" + model.name + "\", expected one that ends at " +
                                std::to_string(classes) + " or before (upper end excluded)");
  }
}

void InputNumbers::follow_results(const std::string& name, const c10::FunctionSchema& schema,
                                  const std::vector<ScriptValue>& arguments, const std::vector<ScriptValue>& results) {
  if (!moves_numbers(name) || results.size() != 1 || results[0].kind != Kind::Value) return;
  const int input = std::max(input_behind(schema, arguments, "self"), input_behind(schema, arguments, "input"));
  if (input >= 0) inputs_behind_[results[0].value] = input;
}

void InputNumbers::set_classes(std::vector<model::ModelInput>& inputs) const {
  for (const auto& [input, classes] : classes_) {
    model::ModelInput& model = inputs[to_index(input)];
    if (model.classes == 0) model.classes = classes;
  }
}

}  // namespace stagecraft::intake
