#include "executor/intake/torchscript/script_graph.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "executor/intake/graph/calls/operator_facts.h"
#include "executor/intake/torchscript/dry_run.h"
#include "executor/intake/torchscript/script_value.h"

namespace stagecraft::intake {
namespace {

using Kind = ScriptValue::Kind;
using Origin = GraphValue::Origin;

TensorMeta fixed_meta(const at::Tensor& tensor) {
  TensorMeta out;
  out.dtype = tensor.scalar_type();
  out.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  out.strides.assign(tensor.strides().begin(), tensor.strides().end());
  out.storage_offset = SizeExpression(tensor.storage_offset());
  return out;
}

void add_once(std::vector<int>& list, int value) {
  if (std::ranges::find(list, value) == list.end()) list.push_back(value);
}

}  // namespace

ScriptGraph::ScriptGraph(const std::string& file, ScriptState& state, std::optional<std::int64_t> samples)
    : state_(state) {
  graph_.file = file;
  graph_.mode = state.mode();
  graph_.evaluation_advice = "trace or script it after model.eval()";
  runs_.samples = samples ? std::vector<std::int64_t>{*samples, *samples} : std::vector<std::int64_t>{2, 3, 5, 3};
  if (!samples) {
    graph_.symbols = {kBatch};
  } else {
    graph_.least_samples = graph_.most_samples = *samples;
  }
  const c10::NoGradGuard no_grad;
  for (std::size_t t = 0; t < state_.tensors().size(); ++t) (void)held_value(to_int(t));
}

ScriptValue ScriptGraph::held_value(int tensor) {
  const HeldTensor& stored = state_.tensors()[to_index(tensor)];
  if (const auto it = held_values_.find(tensor); it != held_values_.end()) return it->second;
  const bool trainable = stored.parameter && stored.tensor.requires_grad();
  if (trainable && stored.tensor.scalar_type() != c10::ScalarType::Float) {
    throw FormatError(
        ErrorKind::UnsupportedModel,
        graph_.file + ": " + untrainable_text(stored.name, stored.tensor.scalar_type(), "save model.float()"));
  }
  if (stored.tensor.layout() != c10::kStrided || stored.tensor.is_quantized())
    throw FormatError(ErrorKind::UnsupportedModel,
                      graph_.file + ": tensor \"" + stored.name + "\" is sparse or quantized, expected a plain tensor");
  const at::Tensor plain = stored.tensor.detach();
  GraphValue value{.name = stored.name,
                   .origin = trainable                           ? Origin::Parameter
                             : stored.parameter || stored.buffer ? Origin::Buffer
                                                                 : Origin::Constant,
                   .source = to_int(graph_.tensors.size())};
  ScriptValue out{.kind = Kind::Value, .value = to_int(graph_.values.size())};
  // A dry run may write to buffers.
  for (std::size_t run = 0; run < runs_.samples.size(); ++run) out.runs.emplace_back(trainable ? plain : plain.clone());
  value.meta = fixed_meta(plain);
  graph_.values.push_back(std::move(value));
  graph_.tensors.push_back({stored.name, plain.sizes().vec(), plain.scalar_type(), trainable,
                            !stored.parameter && !stored.buffer, [plain] { return plain.clone(); }});
  return held_values_[tensor] = out;
}

ScriptValue ScriptGraph::held_tensor(const at::Tensor& tensor) {
  return held_value(state_.index_of(tensor, "constant" + std::to_string(graph_.tensors.size())));
}

ScriptValue ScriptGraph::add_input(const model::ModelInput& model) {
  const std::vector<at::Tensor> tensors = random_inputs(runs_, model, graph_.inputs.size());
  const int value = to_int(graph_.values.size());
  graph_.values.push_back({.name = unique(model.name),
                           .origin = Origin::Input,
                           .source = to_int(graph_.inputs.size()),
                           .meta = meta_of(runs_, tensors)});
  graph_.inputs.push_back(model);
  return {.kind = Kind::Value, .value = value, .runs = {tensors.begin(), tensors.end()}};
}

void ScriptGraph::add_output(const ScriptValue& result) {
  if (result.kind == Kind::Items) {
    for (const ScriptValue& item : result.items->items) add_output(item);
    return;
  }
  const bool tensor =
      result.kind == Kind::Value && graph_.values[to_index(result.value)].kind == GraphValue::Kind::Tensor;
  graph_.outputs.push_back(tensor ? result.value : -1);
}

std::string ScriptGraph::unique(const std::string& wanted) {
  const int times = names_[wanted]++;
  return times == 0 ? wanted : unique(wanted + "_" + std::to_string(times));
}

GraphNode ScriptGraph::new_node(const std::string& name, const std::string& target) {
  return {.name = unique(name), .target = target, .modules = modules_};
}

ScriptArgument ScriptGraph::argument_of(const ScriptValue& value, GraphNode& node) {
  switch (value.kind) {
    case Kind::Constant:
      if (value.constant.isDevice()) return {.form = ScriptArgument::Form::Device};
      if (value.constant.isTensor() && value.constant.toTensor().defined())
        return argument_of(held_tensor(value.constant.toTensor()), node);
      return {.form = ScriptArgument::Form::Constant, .constant = value.constant};
    case Kind::Value:
      add_once(node.reads, value.value);
      return {.form = ScriptArgument::Form::Value, .value = value.value};
    case Kind::Number: {
      const int index = number_value(value);
      add_once(node.reads, index);
      return {.form = ScriptArgument::Form::Value, .value = index};
    }
    case Kind::Module:
      throw FormatError(ErrorKind::UnsupportedModel, place_of(graph_, node) + ": takes a module as an argument");
    case Kind::Items:
      break;
  }
  ScriptArgument out{.form = value.items->tuple ? ScriptArgument::Form::Tuple : ScriptArgument::Form::List};
  out.element = value.items->element;
  for (const ScriptValue& item : value.items->items) out.parts.push_back(argument_of(item, node));
  return out;
}

/// The graph's value of a number, made at its first use.
int ScriptGraph::number_value(const ScriptValue& value) {
  ScriptNumber& number = *value.number;
  if (number.value >= 0) return number.value;
  const bool tensor = value.runs.front().isTensor();
  if (number.expression && !tensor) {
    number.value = to_int(graph_.values.size());
    graph_.values.push_back({.name = unique("size"), .kind = GraphValue::Kind::Number, .number = number.expression});
    return number.value;
  }
  const std::string last = number.target.substr(number.target.rfind(':') + 1);
  GraphNode node =
      new_node(last, "torch.ops." + number.target.substr(0, number.target.find(':')) + "." + last + ".default");
  ScriptCall made{.run = number.call, .arguments = {}, .results = {}, .place = {}};
  for (const ScriptValue& argument : number.arguments) made.arguments.push_back(argument_of(argument, node));
  made.place = place_of(graph_, node);
  node.number = !tensor && std::ranges::all_of(node.reads, [&](int read) {
    return graph_.values[to_index(read)].kind == GraphValue::Kind::Number;
  });
  node.repeatable = tensor;
  number.value = to_int(graph_.values.size());
  GraphValue out{.name = node.name};
  out.kind = tensor ? GraphValue::Kind::Tensor : node.number ? GraphValue::Kind::Number : GraphValue::Kind::Other;
  if (tensor) out.meta = fixed_meta(value.runs.front().toTensor());
  graph_.values.push_back(std::move(out));
  node.gives = {number.value};
  made.results = {{number.value}};
  finish(std::move(node), std::move(made));
  return number.value;
}

void ScriptGraph::finish(GraphNode node, ScriptCall made) {
  for (const int value : node.gives) graph_.values[to_index(value)].source = to_int(graph_.nodes.size());
  graph_.nodes.push_back(std::move(node));
  calls_.push_back(std::move(made));
}

ScriptValue ScriptGraph::add_result(GraphNode& node, ScriptCall& made, const c10::Type& type,
                                    std::vector<c10::IValue> found, std::size_t index, bool sure) {
  const auto name = [&](const std::string& suffix) {
    return index == 0 && suffix.empty() ? node.name : unique(node.name + "." + std::to_string(index) + suffix);
  };
  const auto add = [&](std::vector<c10::IValue> runs, const std::string& suffix) -> ScriptValue {
    GraphValue value{.name = name(suffix)};
    const bool tensors =
        std::ranges::all_of(runs, [](const c10::IValue& found_value) { return found_value.isTensor(); });
    if (!tensors) value.kind = GraphValue::Kind::Other;
    if (tensors && sure) {
      std::vector<at::Tensor> samples;
      for (const c10::IValue& run : runs) samples.push_back(run.toTensor());
      value.meta = meta_of(runs_, samples);
    }
    const int at = to_int(graph_.values.size());
    graph_.values.push_back(std::move(value));
    node.gives.push_back(at);
    return {.kind = Kind::Value, .value = at, .runs = std::move(runs)};
  };
  const bool list = type.kind() == c10::TypeKind::ListType && std::ranges::all_of(found, [&](const c10::IValue& run) {
                      return run.isTensorList() && run.toListRef().size() == found.front().toListRef().size();
                    });
  if (!list || !sure) {
    ScriptValue out = add(std::move(found), "");
    made.results.push_back({out.value});
    return out;
  }
  auto items = std::make_shared<ScriptItems>();
  items->element = c10::TensorType::get();
  std::vector<int> parts;
  for (std::size_t i = 0; i < found.front().toListRef().size(); ++i) {
    std::vector<c10::IValue> runs;
    for (const c10::IValue& run : found) runs.push_back(run.toListRef()[i]);
    items->items.push_back(add(std::move(runs), "." + std::to_string(i)));
    parts.push_back(items->items.back().value);
  }
  made.results.push_back({-1, std::move(parts)});
  return {.kind = Kind::Items, .items = std::move(items)};
}

OperatorGraph ScriptGraph::take() {
  graph_.compile = [calls = std::make_shared<const std::vector<ScriptCall>>(std::move(calls_))](
                       int node, const std::function<int(int)>& slot) {
    return script_call((*calls)[to_index(node)], slot);
  };
  return std::move(graph_);
}

namespace {

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
