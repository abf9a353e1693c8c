#include "executor/intake/graph/calls/evaluation.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/intake/graph/calls/operator_call.h"
#include "executor/intake/graph/observed_values.h"

namespace stagecraft::intake {
namespace {

const c10::FunctionSchema* schema_of(const ProgramNode& node) {
  // Others compute numbers or contain graphs.
  if (!node.target.starts_with("torch.ops.") || node.target.starts_with("torch.ops.higher_order.")) return nullptr;
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

std::optional<c10::IValue> evaluation_value(const c10::FunctionSchema& schema, std::size_t index,
                                            const c10::IValue& given, bool statistics) {
  const std::string& name = schema.arguments()[index].name();
  if (name == "dropout_p") {
    const bool drops = (given.isDouble() && given.toDouble() != 0) || (given.isInt() && given.toInt() != 0);
    return drops ? std::optional<c10::IValue>(0.0) : std::nullopt;
  }
  if (name != "train" && name != "training" && name != "use_input_stats") return std::nullopt;
  const bool normalises =
      std::ranges::find(schema.arguments(), "running_mean", &c10::Argument::name) != schema.arguments().end();
  // Without running statistics, it normalises by the batch's in both modes.
  if (normalises && !statistics) return std::nullopt;
  // native_dropout drops if its argument `train` is absent.
  const bool trains = given.isBool() ? given.toBool() : given.isNone() && name == "train";
  return trains ? std::optional<c10::IValue>(false) : std::nullopt;
}

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

void check_evaluation(const OperatorGraph& graph, int root) {
  std::vector<NodeEffects> flows;
  for (const GraphNode& node : graph.nodes) {
    flows.push_back({node.reads, node.gives, node.writes, node.aliases, node.only_writes});
  }
  const std::vector<bool> observed = observed_values(flows, {root}, graph.values.size());
  for (const GraphNode& node : graph.nodes) {
    const auto is_observed = [&](int value) { return observed[to_index(value)]; };
    for (const int written : node.writes) {
      if (!is_observed(written)) continue;
      // `written` may be a view: the buffer is the first value in its memory.
      const int first = first_of_memory(flows, written, graph.values.size());
      const GraphValue& value = graph.values[to_index(first)];
      if (value.origin != GraphValue::Origin::Buffer && value.origin != GraphValue::Origin::Constant) continue;
      const std::string& name = graph.tensors[to_index(value.source)].name;
      const std::string what = place_of(graph, node) + ": changes buffer \"" + name + "\", on which the loss depends, ";
      if (graph.exact_evaluation) {
        throw FormatError(ErrorKind::UnsupportedModel,
                          what + "also in evaluation; change it only in training, as batch norm does");
      }
      throw FormatError(
          ErrorKind::UnsupportedModel,
          what + "and the file does not say whether it does so in evaluation; " + graph.evaluation_advice);
    }
    if (node.random && !graph.exact_evaluation &&
        (std::ranges::any_of(node.gives, is_observed) || std::ranges::any_of(node.writes, is_observed))) {
      throw FormatError(ErrorKind::UnsupportedModel,
                        place_of(graph, node) +
                            ": draws random numbers, and the file does not say whether it does so in evaluation; " +
                            graph.evaluation_advice);
    }
  }
}

}  // namespace stagecraft::intake
