#include "executor/intake/graph/program/evaluating.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "costmodel/index.h"
#include "executor/intake/graph/calls/evaluation.h"
#include "executor/intake/graph/program/operator_call.h"

namespace stagecraft::intake {
namespace {

const c10::FunctionSchema* schema_of(const ProgramNode& node) {
  // Others compute numbers or contain graphs.
  if (!node.target.starts_with("torch.ops.") || is_higher_order(node)) return nullptr;
  const auto found = c10::Dispatcher::singleton().findSchema(operator_name(node.target, node.name));
  return found ? &found->schema() : nullptr;
}

/// The place in the schema of argument `i` of `node`; past its end if there is none.
std::size_t place_in(const c10::FunctionSchema& schema, const ProgramNode& node, std::size_t i) {
  if (node.arguments[i].name.empty()) return i;
  const auto it = std::ranges::find(schema.arguments(), node.arguments[i].name, &c10::Argument::name);
  return to_index(it - schema.arguments().begin());
}

std::optional<c10::IValue> constant_of(const ArgumentValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return c10::IValue();
  if (const auto* const flag = std::get_if<bool>(&value)) return *flag;
  if (const auto* const number = std::get_if<double>(&value)) return *number;
  if (const auto* const whole = std::get_if<std::int64_t>(&value)) return *whole;
  return std::nullopt;
}

void set_for_evaluation(ProgramNode& node, const c10::FunctionSchema& schema) {
  const auto is_argument = [&](std::size_t i, const char* name) {
    const std::size_t at = place_in(schema, node, i);
    return at < schema.arguments().size() && schema.arguments()[at].name() == name;
  };
  bool statistics = false;
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    statistics = statistics ||
                 (is_argument(i, "running_mean") && !std::holds_alternative<std::monostate>(node.arguments[i].value));
  }
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    const std::size_t at = place_in(schema, node, i);
    const auto given = constant_of(node.arguments[i].value);
    if (!given || at >= schema.arguments().size()) continue;
    const auto value = evaluation_value(schema, at, *given, statistics);
    if (!value) continue;
    if (value->isBool()) {
      node.arguments[i].value = value->toBool();
    } else {
      node.arguments[i].value = value->toDouble();
    }
  }
}

}  // namespace

ProgramGraph evaluating(ProgramGraph graph) {
  for (ProgramNode& node : graph.nodes) {
    for (ProgramArgument& argument : node.arguments) {
      if (const auto* const inner = std::get_if<std::shared_ptr<const ProgramGraph>>(&argument.value); inner && *inner)
        argument.value = std::make_shared<const ProgramGraph>(evaluating(**inner));
    }
    if (const c10::FunctionSchema* const schema = schema_of(node)) set_for_evaluation(node, *schema);
  }
  return graph;
}

}  // namespace stagecraft::intake
