#include "executor/intake/graph/calls/evaluation.h"

#include <algorithm>
#include <string>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/intake/graph/memory_sets.h"

namespace stagecraft::intake {

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
  if (!graph.evaluates) {
    throw FormatError(ErrorKind::UnsupportedModel,
                      graph.file +
                          ": in evaluation mode the model computes something else than with dropout off and "
                          "running statistics; " +
                          graph.evaluation_advice);
  }
}

}  // namespace stagecraft::intake
