#include "executor/intake/graph/program/operator_call.h"

#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <memory>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/intake/graph/program/argument_push.h"
#include "executor/intake/graph/program/dropout_call.h"
#include "executor/intake/graph/program/higher_order.h"
#include "executor/intake/graph/program/number_call.h"
#include "executor/intake/graph/program/typed_call.h"
#include "executor/model/recurrent_weights.h"

namespace stagecraft::intake {
namespace {

c10::OperatorHandle find_operator(const ProgramNode& node, const std::string& place) {
  const c10::OperatorName name = operator_name(node.target, place);
  const auto found = c10::Dispatcher::singleton().findSchema(name);
  if (found) return *found;
  const std::string space = name.name.substr(0, name.name.find("::"));
  if (space != "aten" && space != "prims") {
    throw FormatError(ErrorKind::UnsupportedModel,
                      place + ": operator " + node.target + " belongs to \"" + space +
                          "\", which is a Python library; use PyTorch's own operators, \"aten\"");
  }
  throw FormatError(ErrorKind::UnsupportedModel, place + ": LibTorch 2.11 has no operator " + node.target);
}

/// The given arguments in the schema's order; null: absent.
std::vector<const ProgramArgument*> in_order(const c10::FunctionSchema& schema, const ProgramNode& node,
                                             const std::string& place) {
  std::vector<const ProgramArgument*> out(schema.arguments().size());
  std::size_t next = 0;
  for (const ProgramArgument& given : node.arguments) {
    std::size_t at = next;
    if (!given.name.empty()) {
      const auto it = std::ranges::find(schema.arguments(), given.name, &c10::Argument::name);
      if (it == schema.arguments().end()) {
        std::vector<std::string> known;
        for (const c10::Argument& argument : schema.arguments()) known.push_back(argument.name());
        throw FormatError(ErrorKind::UnsupportedModel, place + ": " + unknown_name("argument", given.name, known));
      }
      at = to_index(it - schema.arguments().begin());
    }
    if (at >= out.size() || out[at]) {
      throw FormatError(ErrorKind::UnsupportedModel, place + ": argument \"" + given.name +
                                                         "\" appears twice, or is one more than the operator has");
    }
    out[at] = &given;
    next = at + 1;
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const c10::Argument& wanted = schema.arguments()[i];
    if (!out[i] && !wanted.default_value())
      throw FormatError(ErrorKind::UnsupportedModel, place + ": argument \"" + wanted.name() + "\" is missing");
  }
  return out;
}

void check_results(const c10::FunctionSchema& schema, const ProgramNode& node, const std::string& place) {
  // An operator without returns may be recorded with one None.
  const bool nothing =
      std::ranges::all_of(node.results, [](const ProgramResult& r) { return r.values.empty() && !r.list; });
  if (schema.returns().empty() && nothing) return;
  if (schema.returns().size() != node.results.size()) {
    throw FormatError(ErrorKind::UnsupportedModel, place + ": found " + std::to_string(node.results.size()) +
                                                       " results, the operator returns " +
                                                       std::to_string(schema.returns().size()));
  }
  for (std::size_t i = 0; i < node.results.size(); ++i) {
    const bool list = schema.returns()[i].type()->kind() == c10::TypeKind::ListType;
    if (node.results[i].values.empty() && !node.results[i].list) continue;
    if (list != node.results[i].list) {
      throw FormatError(ErrorKind::UnsupportedModel, place + ": result " + std::to_string(i) + ": found " +
                                                         (node.results[i].list ? "a list" : "one value") +
                                                         ", expected " + schema.returns()[i].type()->str());
    }
  }
}

/// Tensors of an argument.
std::vector<int> tensors_of(const ProgramGraph& graph, const ArgumentValue& value) {
  std::vector<int> out;
  const auto add = [&](ValueIndex item) {
    if (graph.values[to_index(item.index)].kind == ProgramValue::Kind::Tensor) out.push_back(item.index);
  };
  if (const auto* const one = std::get_if<ValueIndex>(&value)) add(*one);
  if (const auto* const many = std::get_if<std::vector<std::optional<ValueIndex>>>(&value)) {
    for (const auto& item : *many) {
      if (item) add(*item);
    }
  }
  return out;
}

std::optional<model::RecurrentKind> recurrent_kind(const c10::OperatorName& name) {
  if (name.overload_name != "input") return {};
  if (name.name == "aten::lstm") return model::RecurrentKind::Lstm;
  if (name.name == "aten::gru") return model::RecurrentKind::Gru;
  return {};
}

/// `stack`: input, states, weights, has_biases, num_layers, dropout, train, bidirectional, batch_first.
void gather_weights(model::RecurrentKind kind, const std::vector<c10::IValue>& stack) {
  if (!stack.at(0).toTensor().is_cuda()) return;  // spares a list of the weights in every call
  const std::vector<at::Tensor> weights = stack.at(2).toTensorVector();
  model::gather_recurrent_weights({.kind = kind,
                                   .weights = weights,
                                   .layers = stack.at(4).toInt(),
                                   .has_biases = stack.at(3).toBool(),
                                   .bidirectional = stack.at(7).toBool(),
                                   .batch_first = stack.at(8).toBool()});
}

}  // namespace

const c10::FunctionSchema& schema_of(const ProgramNode& node, const std::string& place) {
  return find_operator(node, place).schema();
}

bool is_higher_order(const ProgramNode& node) { return node.target.starts_with("torch.ops.higher_order."); }

c10::OperatorName operator_name(const std::string& target, const std::string& place) {
  const std::string prefix = "torch.ops.";
  const std::size_t space = target.find('.', prefix.size());
  const std::size_t overload = target.rfind('.');
  if (!target.starts_with(prefix) || space == std::string::npos || overload <= space) {
    throw FormatError(ErrorKind::UnsupportedModel,
                      place + ": target \"" + target + "\", expected torch.ops.NAMESPACE.OPERATOR.OVERLOAD");
  }
  const std::string last = target.substr(overload + 1);
  return {target.substr(prefix.size(), space - prefix.size()) + "::" + target.substr(space + 1, overload - space - 1),
          last == "default" ? "" : last};
}

NodeFacts facts_of(const ProgramGraph& graph, const ProgramNode& node, const std::string& place) {
  if (is_higher_order(node)) return higher_order_facts(graph, node, place);
  if (is_dropout(node)) return dropout_facts(graph, node, place);
  const c10::OperatorHandle op = find_operator(node, place);
  const c10::FunctionSchema& schema = op.schema();
  const auto given = in_order(schema, node, place);
  check_results(schema, node, place);
  std::vector<CallArgument> arguments;
  for (std::size_t i = 0; i < given.size(); ++i) {
    CallArgument argument;
    if (!given[i]) {
      argument.constant = *schema.arguments()[i].default_value();
    } else {
      const ArgumentValue& value = given[i]->value;
      argument.tensors = tensors_of(graph, value);
      if (const auto* const one = std::get_if<ValueIndex>(&value)) argument.value = one->index;
      if (const auto* const flag = std::get_if<bool>(&value)) argument.constant = *flag;
      if (const auto* const whole = std::get_if<std::int64_t>(&value)) argument.constant = *whole;
      if (const auto* const number = std::get_if<double>(&value)) argument.constant = *number;
    }
    arguments.push_back(std::move(argument));
  }
  std::vector<std::vector<int>> results;
  for (const ProgramResult& result : node.results) {
    std::vector<int> values;
    for (const ValueIndex value : result.values) values.push_back(value.index);
    results.push_back(std::move(values));
  }
  return operator_facts(schema, &op, arguments, results, place);
}

NodeCall make_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                   const std::function<int(int)>& slot) {
  if (is_higher_order(node)) return higher_order_call(graph, node, place, slot);
  if (is_dropout(node)) return dropout_call(graph, node, place, slot);
  if (computes_numbers(node)) return number_call(graph, node, place, slot);
  const c10::OperatorHandle op = find_operator(node, place);
  const c10::FunctionSchema& schema = op.schema();
  check_results(schema, node, place);
  const auto given = in_order(schema, node, place);
  std::vector<ArgumentPush> arguments;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const c10::Argument& wanted = schema.arguments()[i];
    arguments.push_back(given[i] ? argument_push(graph, wanted, given[i]->value, place, slot)
                                 : ArgumentPush{ArgumentPush::Form::Constant, *wanted.default_value(), {}});
  }
  struct Result {
    bool list = false;
    std::vector<int> slots = {};
  };
  std::vector<Result> results;
  for (std::size_t r = 0; r < std::min(schema.returns().size(), node.results.size()); ++r) {
    Result& result = results.emplace_back(Result{.list = node.results[r].list});
    for (const ValueIndex value : node.results[r].values) result.slots.push_back(slot(value.index));
  }
  if (results.size() == 1 && !results.front().slots.empty()) {
    if (auto typed = typed_call(op.operator_name(), arguments, results.front().slots, place)) return *std::move(typed);
  }
  return [op, recurrent = recurrent_kind(op.operator_name()), arguments = std::move(arguments),
          results = std::move(results), place](Frame& frame) {
    auto& stack = frame.stack;
    stack.clear();
    stack.reserve(arguments.size());
    for (const ArgumentPush& argument : arguments) push(argument, frame);
    if (recurrent) gather_weights(*recurrent, stack);
    op.callBoxed(stack);
    for (std::size_t r = 0; r < results.size(); ++r) {
      const Result& result = results[r];
      if (result.list) {
        put_list(std::move(stack[r]).toTensorVector(), result.slots, frame, place);
      } else if (!result.slots.empty() && result.slots.front() >= 0) {
        frame.slots[to_index(result.slots.front())] = std::move(stack[r]);
      }
    }
    stack.clear();
  };
}

}  // namespace stagecraft::intake
