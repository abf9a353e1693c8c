#include "executor/intake/graph/program/higher_order.h"

#include <c10/core/GradMode.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/device/autocast.h"
#include "executor/intake/graph/memory_sets.h"

namespace stagecraft::intake {
namespace {

enum class Form { Grad, Autocast, Branch };

/// The parts of a higher-order node.
struct Parts {
  Form form = Form::Grad;
  bool enabled = false;
  c10::DeviceType device = c10::kCPU;
  std::optional<c10::ScalarType> dtype = {};
  std::optional<bool> cache = {};
  ArgumentValue condition = {};
  std::vector<std::shared_ptr<const ProgramGraph>> graphs = {};
  std::vector<ArgumentValue> operands = {};
};

std::vector<ArgumentValue> flattened(const ArgumentValue& value) {
  if (const auto* const list = std::get_if<std::vector<std::optional<ValueIndex>>>(&value)) {
    std::vector<ArgumentValue> out;
    for (const auto& item : *list) out.push_back(item ? ArgumentValue(*item) : ArgumentValue());
    return out;
  }
  return {value};
}

Parts parts_of(const ProgramNode& node, const std::string& place) {
  const std::string prefix = "torch.ops.higher_order.";
  const std::string name = node.target.substr(prefix.size());
  const std::map<std::string, Form> known{
      {"wrap_with_set_grad_enabled", Form::Grad}, {"wrap_with_autocast", Form::Autocast}, {"cond", Form::Branch}};
  const auto it = known.find(name);
  if (name.starts_with("autograd_function")) {
    throw FormatError(ErrorKind::UnsupportedModel,
                      place +
                          ": is a custom torch.autograd.Function, whose backward is Python; write it with PyTorch's "
                          "operators: x + (y - x).detach() has the value of y and the gradient of x");
  }
  if (it == known.end()) {
    std::vector<std::string> names;
    for (const auto& [word, form] : known) names.push_back(word);
    throw FormatError(ErrorKind::UnsupportedModel, place + ": " + unknown_name("higher-order operator", name, names));
  }
  Parts out{.form = it->second};
  std::size_t next = 0;
  const auto take = [&]() -> const ArgumentValue& {
    if (next >= node.arguments.size()) throw FormatError(ErrorKind::UnsupportedModel, place + ": too few arguments");
    return node.arguments[next++].value;
  };
  const auto wrong = [&](const std::string& wanted) {
    return FormatError(place + ": argument " + std::to_string(next - 1) + ": expected " + wanted);
  };
  const auto truth = [&]() -> std::optional<bool> {
    const ArgumentValue& value = take();
    if (std::holds_alternative<std::monostate>(value)) return std::nullopt;
    if (!std::holds_alternative<bool>(value)) throw wrong("a boolean");
    return std::get<bool>(value);
  };
  if (out.form == Form::Grad) {
    out.enabled = truth().value_or(false);
  } else if (out.form == Form::Autocast) {
    const auto* const device = std::get_if<std::string>(&take());
    if (!device || (*device != "cpu" && *device != "cuda")) throw wrong("\"cpu\" or \"cuda\"");
    const ArgumentValue& dtype = take();
    if (const auto* const type = std::get_if<c10::ScalarType>(&dtype)) {
      out.dtype = *type;
    } else if (!std::holds_alternative<std::monostate>(dtype)) {
      throw wrong("a type");
    }
    out.enabled = truth().value_or(false);
    out.cache = truth();
  } else {
    out.condition = take();
  }
  for (int i = 0; i < (out.form == Form::Branch ? 2 : 1); ++i) {
    const auto* const graph = std::get_if<std::shared_ptr<const ProgramGraph>>(&take());
    if (!graph || !*graph) throw wrong("a graph");
    out.graphs.push_back(*graph);
  }
  while (next < node.arguments.size()) {
    for (ArgumentValue& operand : flattened(take())) out.operands.push_back(std::move(operand));
  }
  for (const auto& graph : out.graphs) {
    if (graph->inputs.size() != out.operands.size()) {
      throw FormatError(ErrorKind::UnsupportedModel, place + ": found " + std::to_string(out.operands.size()) +
                                                         " operands, its graph needs " +
                                                         std::to_string(graph->inputs.size()));
    }
  }
  return out;
}

/// Checks that torch.export inserts when it traces; not needed afterwards.
bool is_check(const ProgramNode& node) {
  return node.target.starts_with("torch.ops.aten._assert_") ||
         node.target.starts_with("torch.ops.aten.sym_constrain_range");
}

std::string inner_place(const std::string& place, const ProgramNode& node) {
  return place + ", inner node \"" + node.name + "\" (" + node.target + ")";
}

/// A graph that runs on separate slots, one per value.
struct Inner {
  std::vector<std::pair<int, SizeExpression>> numbers;
  std::vector<NodeCall> calls;
  std::vector<ArgumentValue> outputs;
  std::vector<int> inputs;
  std::size_t values = 0;

  [[nodiscard]] std::vector<c10::IValue> run(std::vector<c10::IValue> operands, const Frame& outer) const {
    Frame frame;
    frame.slots.resize(values);
    frame.device = outer.device;
    frame.symbols = outer.symbols;
    for (std::size_t i = 0; i < inputs.size(); ++i) frame.slots[to_index(inputs[i])] = std::move(operands[i]);
    for (const auto& [slot, number] : numbers) frame.slots[to_index(slot)] = evaluate(number, *outer.symbols);
    for (const NodeCall& call : calls) call(frame);
    std::vector<c10::IValue> out;
    for (const ArgumentValue& output : outputs) {
      const auto* const value = std::get_if<ValueIndex>(&output);
      out.push_back(value ? frame.slots[to_index(value->index)] : c10::IValue());
    }
    return out;
  }
};

std::vector<ArgumentValue> flattened_outputs(const ProgramGraph& graph) {
  std::vector<ArgumentValue> out;
  for (const ArgumentValue& output : graph.outputs) {
    for (ArgumentValue& flat : flattened(output)) out.push_back(std::move(flat));
  }
  return out;
}

Inner make_inner(const ProgramGraph& graph, const std::string& place) {
  Inner out;
  out.values = graph.values.size();
  for (const ValueIndex value : graph.inputs) out.inputs.push_back(value.index);
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    if (graph.values[v].number) out.numbers.emplace_back(to_int(v), *graph.values[v].number);
  }
  for (const ProgramNode& node : graph.nodes) {
    if (is_check(node)) continue;
    if (computes_numbers(node) && !node.results.empty() && !node.results[0].values.empty() &&
        graph.values[to_index(node.results[0].values[0].index)].number)
      continue;
    out.calls.push_back(make_call(graph, node, inner_place(place, node), [](int value) { return value; }));
  }
  out.outputs = flattened_outputs(graph);
  return out;
}

/// Values of its graph that `node` reads.
std::vector<int> values_read(const ProgramNode& node) {
  std::vector<int> out;
  for (const ProgramArgument& argument : node.arguments) {
    for (const ArgumentValue& single : flattened(argument.value)) {
      if (const auto* const value = std::get_if<ValueIndex>(&single)) out.push_back(value->index);
    }
    if (const auto* const numbers = std::get_if<std::vector<IntItem>>(&argument.value)) {
      for (const IntItem& number : *numbers) {
        if (const auto* const value = std::get_if<ValueIndex>(&number)) out.push_back(value->index);
      }
    }
  }
  return out;
}

std::vector<int> result_values(const ProgramNode& node) {
  std::vector<int> out;
  for (const ProgramResult& result : node.results) {
    if (result.values.empty()) out.push_back(-1);
    for (const ValueIndex value : result.values) out.push_back(value.index);
  }
  return out;
}

}  // namespace

GraphBlock graph_block(const ProgramBlock& block, const std::string& place) {
  ProgramNode node;
  node.target = block.target;
  node.arguments = block.arguments;
  // What parts_of needs besides the mode.
  node.arguments.push_back({"", std::make_shared<const ProgramGraph>()});
  const Parts parts = parts_of(node, place);
  return {.name = block.name,
          .autocast = parts.form == Form::Autocast,
          .enabled = parts.enabled,
          .dtype = parts.dtype,
          .cache = parts.cache};
}

NodeFacts higher_order_facts(const ProgramGraph& graph, const ProgramNode& node, const std::string& place) {
  const Parts parts = parts_of(node, place);
  NodeFacts out;
  out.repeatable = parts.form == Form::Grad;
  std::set<int> written;
  std::set<int> observed;
  if (const auto* const condition = std::get_if<ValueIndex>(&parts.condition)) observed.insert(condition->index);
  const std::vector<int> results = result_values(node);
  for (const auto& inner : parts.graphs) {
    // The operands with which a value of the inner graph may share memory, including itself.
    std::vector<std::set<int>> reaches(inner->values.size());
    for (std::size_t i = 0; i < inner->inputs.size(); ++i) {
      const auto* const operand = std::get_if<ValueIndex>(&parts.operands[i]);
      if (operand && graph.values[to_index(operand->index)].kind == ProgramValue::Kind::Tensor)
        reaches[to_index(inner->inputs[i].index)].insert(operand->index);
    }
    std::vector<NodeEffects> flows;
    for (const ProgramNode& inner_node : inner->nodes) {
      if (is_check(inner_node)) continue;
      if (computes_numbers(inner_node)) {
        flows.push_back({values_read(inner_node), result_values(inner_node), {}, {}});
        std::erase(flows.back().gives, -1);
        continue;
      }
      const NodeFacts facts = facts_of(*inner, inner_node, inner_place(place, inner_node));
      flows.push_back(
          {values_read(inner_node), result_values(inner_node), facts.writes, facts.aliases, facts.only_writes});
      std::erase(flows.back().gives, -1);
      out.random = out.random || facts.random;
      out.repeatable = out.repeatable && facts.repeatable;
      for (const auto& [given, read] : facts.aliases)
        reaches[to_index(given)].insert(reaches[to_index(read)].begin(), reaches[to_index(read)].end());
      for (const int value : facts.writes)
        written.insert(reaches[to_index(value)].begin(), reaches[to_index(value)].end());
      for (const auto& [value, decay] : facts.decays) {
        for (const int operand : reaches[to_index(value)]) out.decays.emplace_back(operand, decay);
      }
    }
    const std::vector<ArgumentValue> outputs = flattened_outputs(*inner);
    for (std::size_t i = 0; i < std::min(outputs.size(), results.size()); ++i) {
      const auto* const value = std::get_if<ValueIndex>(&outputs[i]);
      if (!value || results[i] < 0) continue;
      for (const int operand : reaches[to_index(value->index)]) out.aliases.emplace_back(results[i], operand);
    }
    // What the results depend on, and what is written besides the operands' old values.
    std::vector<int> roots;
    for (const ArgumentValue& output : outputs) {
      if (const auto* const value = std::get_if<ValueIndex>(&output)) roots.push_back(value->index);
    }
    const std::vector<bool> inner_observed = observed_values(flows, roots, inner->values.size());
    for (std::size_t v = 0; v < reaches.size(); ++v) {
      if (inner_observed[v]) observed.insert(reaches[v].begin(), reaches[v].end());
    }
  }
  out.writes.assign(written.begin(), written.end());
  std::ranges::set_difference(written, observed, std::back_inserter(out.only_writes));
  return out;
}

NodeCall higher_order_call(const ProgramGraph& graph, const ProgramNode& node, const std::string& place,
                           const std::function<int(int)>& slot) {
  const Parts parts = parts_of(node, place);
  std::vector<std::shared_ptr<const Inner>> inner;
  const std::vector<int> values = result_values(node);
  for (const auto& subgraph : parts.graphs) {
    inner.push_back(std::make_shared<const Inner>(make_inner(*subgraph, place)));
    if (inner.back()->outputs.size() != values.size()) {
      throw FormatError(ErrorKind::UnsupportedModel, place + ": found " + std::to_string(values.size()) +
                                                         " results, its graph returns " +
                                                         std::to_string(inner.back()->outputs.size()));
    }
  }
  std::vector<int> results;
  for (const int value : values) results.push_back(value < 0 ? -1 : slot(value));
  struct Operand {
    int slot = -1;
    c10::IValue constant = {};
  };
  const auto operand_of = [&](const ArgumentValue& value) -> Operand {
    if (const auto* const index = std::get_if<ValueIndex>(&value)) return {slot(index->index), {}};
    if (const auto* const number = std::get_if<std::int64_t>(&value)) return {-1, *number};
    if (const auto* const number = std::get_if<double>(&value)) return {-1, *number};
    if (const auto* const truth = std::get_if<bool>(&value)) return {-1, *truth};
    if (std::holds_alternative<std::monostate>(value)) return {};
    throw FormatError(ErrorKind::UnsupportedModel, place + ": operands must be tensors and numbers");
  };
  std::vector<Operand> operands;
  for (const ArgumentValue& operand : parts.operands) operands.push_back(operand_of(operand));
  std::optional<Operand> condition;
  if (parts.form == Form::Branch) condition = operand_of(parts.condition);
  Parts how = parts;
  how.graphs.clear();
  (void)graph;
  return [how = std::move(how), inner = std::move(inner), operands = std::move(operands), condition,
          results = std::move(results)](Frame& frame) {
    const auto value_of = [&](const Operand& operand) {
      return operand.slot < 0 ? operand.constant : frame.slots[to_index(operand.slot)];
    };
    std::vector<c10::IValue> given;
    for (const Operand& operand : operands) given.push_back(value_of(operand));
    std::vector<c10::IValue> out;
    if (how.form == Form::Grad) {
      const c10::AutoGradMode mode(how.enabled);
      out = inner.front()->run(std::move(given), frame);
    } else if (how.form == Form::Autocast) {
      const device::AutocastScope scope(frame.device.type(), how.enabled, how.dtype, how.cache);
      out = inner.front()->run(std::move(given), frame);
    } else {
      const c10::IValue chosen = value_of(*condition);
      const bool first = chosen.isTensor() ? chosen.toTensor().is_nonzero() : chosen.toBool();
      out = inner[first ? 0 : 1]->run(std::move(given), frame);
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (results[i] >= 0) frame.slots[to_index(results[i])] = std::move(out[i]);
    }
  };
}

}  // namespace stagecraft::intake
