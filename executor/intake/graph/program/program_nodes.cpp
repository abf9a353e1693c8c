#include "executor/intake/graph/program/program_nodes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "costmodel/index.h"
#include "executor/intake/graph/program/higher_order.h"
#include "executor/intake/graph/program/operator_call.h"

namespace stagecraft::intake {
namespace {

GraphValue::Kind kind_of(const ProgramValue& value) {
  return value.kind == ProgramValue::Kind::Tensor ? GraphValue::Kind::Tensor : GraphValue::Kind::Number;
}

void add_once(std::vector<int>& list, int value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

/// Values of the graph that `argument` holds.
void collect(const ArgumentValue& argument, std::vector<int>& out) {
  if (const auto* const one = std::get_if<ValueIndex>(&argument)) add_once(out, one->index);
  if (const auto* const many = std::get_if<std::vector<std::optional<ValueIndex>>>(&argument)) {
    for (const auto& value : *many) {
      if (value) add_once(out, value->index);
    }
  }
  if (const auto* const numbers = std::get_if<std::vector<IntItem>>(&argument)) {
    for (const IntItem& item : *numbers) {
      if (const auto* const value = std::get_if<ValueIndex>(&item)) add_once(out, value->index);
    }
  }
}

}  // namespace

void add_program(OperatorGraph& graph, std::shared_ptr<const ProgramGraph> program) {
  for (const ProgramValue& value : program->values) {
    graph.values.push_back({.name = value.name, .kind = kind_of(value), .meta = value.tensor, .number = value.number});
  }
  std::vector<std::string> places;
  for (const ProgramNode& node : program->nodes) {
    GraphNode out{.name = node.name, .target = node.target, .modules = node.modules};
    const std::string place = places.emplace_back(place_of(graph, out));
    for (const ProgramBlock& block : node.blocks) out.blocks.push_back(graph_block(block, place));
    for (const ProgramArgument& argument : node.arguments) collect(argument.value, out.reads);
    for (const ProgramResult& result : node.results) {
      for (const ValueIndex value : result.values) out.gives.push_back(value.index);
    }
    out.holds_graphs = is_higher_order(node);
    out.number = computes_numbers(node);
    if (!out.number) {
      NodeFacts facts = facts_of(*program, node, place);
      out.writes = std::move(facts.writes);
      out.aliases = std::move(facts.aliases);
      out.decays = std::move(facts.decays);
      out.only_writes = std::move(facts.only_writes);
      out.random = facts.random;
      out.repeatable = facts.repeatable;
    }
    for (const int value : out.gives) graph.values[to_index(value)].source = to_int(graph.nodes.size());
    graph.nodes.push_back(std::move(out));
  }
  graph.program = program;
  graph.compile = [program = std::move(program), places = std::move(places)](int node,
                                                                             const std::function<int(int)>& slot) {
    return make_call(*program, program->nodes[to_index(node)], places[to_index(node)], slot);
  };
}

}  // namespace stagecraft::intake
