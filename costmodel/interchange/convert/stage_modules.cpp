#include "costmodel/interchange/convert/stage_modules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "costmodel/index.h"
#include "costmodel/interchange/convert/python_package.h"
#include "costmodel/interchange/convert/value_flow.h"

namespace stagecraft::interchange {
namespace {

using Kind = ValueForm::Kind;

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

bool is_own(const FlowNode& node) { return node.call.gives.kind == Kind::Unknown; }
bool is_in_layers(const FlowNode& node) { return !is_own(node) && node.call.constructor.starts_with("layers."); }

/// The value of `source` as a line of `stage` writes it.
std::string value_text(const ValueFlow& flow, int source, int stage) {
  const FlowNode& n = flow.nodes[to_index(source)];
  if (n.form.kind == Kind::Nothing) return "None";
  if (n.form.kind == Kind::Number) {
    return fmt::format("{}.size({})", value_text(flow, n.sources.front(), stage), n.call.numbers.front());
  }
  return n.stage == stage ? n.name : received_text(flow, source, n.form, {});
}

std::string view_text(const ValueFlow& flow, const FlowNode& node, const std::vector<std::string>& values) {
  std::string tensor;
  std::vector<std::string> lengths;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (flow.nodes[to_index(node.sources[i])].form.kind == Kind::Number) {
      lengths.push_back(values[i]);
    } else {
      tensor = values[i];
    }
  }
  if (lengths.empty()) lengths.push_back(tensor + ".size(0)");
  for (const std::int64_t number : node.call.numbers) lengths.push_back(std::to_string(number));
  if (lengths.size() == 1) lengths.emplace_back("-1");
  return fmt::format("{}.view({})", tensor, joined(lengths));
}

std::string item_text(const ValueFlow& flow, const FlowNode& node, const std::string& value) {
  const int source = node.sources.front();
  if (flow.nodes[to_index(source)].stage != node.stage)
    return received_text(flow, source, node.form, node.call.numbers);
  return fmt::format("{}[{}]", value, node.call.numbers.front());
}

std::string call_text(const ValueFlow& flow, const FlowNode& node) {
  std::vector<std::string> values;
  for (const int source : node.sources) values.push_back(value_text(flow, source, node.stage));
  const std::vector<std::int64_t>& numbers = node.call.numbers;
  switch (node.call.operation) {
    case Operation::Add:
      return fmt::format("{}", fmt::join(values, " + "));
    case Operation::Multiply:
      return fmt::format("{}", fmt::join(values, " * "));
    case Operation::Concatenate:
      return fmt::format("torch.cat([{}], {})", joined(values), numbers[0]);
    case Operation::Transpose:
      return fmt::format("{}.transpose({}, {})", values[0], numbers[0], numbers[1]);
    case Operation::View:
      return view_text(flow, node, values);
    case Operation::Item:
      return item_text(flow, node, values[0]);
    default:
      return fmt::format("self.{}({})", node.name, joined(values));
  }
}

/// Whether it does not matter if the module overwrites its input.
bool may_overwrite(const ValueFlow& flow, const FlowNode& node) {
  const FlowNode& from = flow.nodes[to_index(node.sources.front())];
  const auto reads_values = [&](int reader) {
    const FlowNode& n = flow.nodes[to_index(reader)];
    return n.used && n.form.kind != Kind::Number;
  };
  return from.stage == node.stage && from.call.fresh && from.form.kind == Kind::Tensor && !from.output &&
         std::count_if(from.readers.begin(), from.readers.end(), reads_values) == 1;
}

std::string constructor_text(const ValueFlow& flow, const FlowNode& node) {
  std::vector<std::string> arguments = node.call.arguments;
  if (node.call.inplace && may_overwrite(flow, node)) arguments.emplace_back("inplace=True");
  return fmt::format("{}({})", node.call.constructor, joined(arguments));
}

std::string names_text(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) out.push_back(python_string(name));
  return python_tuple(out);
}

constexpr const char* kStage = R"python({imports}

class Stage{number}(torch.nn.Module):
    """Takes the tensors of INPUTS in order; returns those of OUTPUTS, a tuple if there are several."""

    INPUTS = {inputs}
    OUTPUTS = {outputs}

    def __init__(self):
        super().__init__()
{modules}
    def forward({arguments}):
{lines}        return {result}
)python";

StageModule stage_module(const ValueFlow& flow, int stage) {
  std::set<std::string> imports;
  bool layers = false;
  std::string modules;
  std::string lines;
  for (const int layer : flow.order) {
    const FlowNode& n = flow.nodes[to_index(layer)];
    if (n.stage != stage || !n.used || is_inline(n)) continue;
    lines += fmt::format("        {} = {}\n", n.name, call_text(flow, n));
    if (n.call.operation != Operation::Module) continue;
    modules += fmt::format("        self.{} = {}\n", n.name, constructor_text(flow, n));
    layers = layers || is_in_layers(n);
    if (is_own(n)) imports.insert(n.call.constructor.substr(0, n.call.constructor.rfind('.')));
  }
  if (lines.empty()) refuse(fmt::format("stage {} computes no tensor; move its layers to an adjacent stage", stage));

  StageModule out;
  for (const Leaf& leaf : flow.inputs[to_index(stage)]) out.inputs.push_back(leaf_name(flow, leaf));
  std::vector<std::string> results;
  for (const Leaf& leaf : flow.outputs[to_index(stage)]) {
    out.outputs.push_back(leaf_name(flow, leaf));
    results.push_back(flow.nodes[to_index(leaf.layer)].name);
    for (const std::int64_t item : leaf.path) results.back() += fmt::format("[{}]", item);
  }
  std::string import_lines = "import torch\n";
  for (const std::string& module : imports) import_lines += "import " + module + "\n";
  if (layers) import_lines += "\nfrom . import layers\n";
  std::vector<std::string> arguments = out.inputs;
  arguments.insert(arguments.begin(), "self");
  out.text = fmt::format(fmt::runtime(kStage), fmt::arg("imports", import_lines), fmt::arg("number", stage),
                         fmt::arg("inputs", names_text(out.inputs)), fmt::arg("outputs", names_text(out.outputs)),
                         fmt::arg("modules", modules), fmt::arg("arguments", joined(arguments)),
                         fmt::arg("lines", lines), fmt::arg("result", python_result(results)));
  return out;
}

}  // namespace

std::vector<int> stages_of(const Graph& graph, const Plan& plan) {
  std::unordered_map<std::string, std::size_t> layers;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) layers.emplace(graph.layers[i].id, i);
  std::vector<int> out(graph.layers.size(), -1);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::string& id : plan.stages[s].layers) {
      const auto it = layers.find(id);
      if (it == layers.end()) refuse(fmt::format("stage {}: layer \"{}\" is not in the graph", s, id));
      int& stage = out[it->second];
      if (is_input(graph.layers[it->second])) refuse(fmt::format("stage {}: layer \"{}\" is an input", s, id));
      if (stage >= 0) refuse(fmt::format("stage {}: layer \"{}\" is already in stage {}", s, id, stage));
      stage = to_int(s);
    }
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Layer& layer = graph.layers[i];
    if (out[i] < 0 && !is_input(layer)) refuse(fmt::format("layer \"{}\" is not in any stage", layer.id));
  }
  return out;
}

std::vector<int> stages_of(const Graph& graph) {
  std::vector<int> out(graph.layers.size(), -1);
  std::set<int> stages;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const Layer& layer = graph.layers[i];
    if (is_input(layer)) continue;
    if (!layer.stage) refuse(fmt::format("layer \"{}\" has no stage_id, expected one for each layer", layer.id));
    out[i] = *layer.stage;
    stages.insert(*layer.stage);
  }
  if (stages.empty()) refuse("there are no layers other than inputs");
  for (int s = 0; s < to_int(stages.size()); ++s) {
    if (!stages.contains(s)) refuse(fmt::format("stage {} has no layers, but a later stage does", s));
  }
  return out;
}

PythonPackage package_of(const Graph& graph, const std::vector<int>& stage_of_layer, const OwnKinds& classes) {
  const ValueFlow flow = value_flow(graph, stage_of_layer, classes);
  PythonPackage out;
  out.arch = graph.name.empty() ? "model" : graph.name;
  std::set<Leaf> read;
  for (const std::vector<Leaf>& stage : flow.inputs) read.insert(stage.begin(), stage.end());
  for (const Leaf& leaf : read) {
    if (flow.nodes[to_index(leaf.layer)].stage < 0) out.inputs.push_back(leaf_name(flow, leaf));
  }
  for (std::size_t i = 0; i < flow.nodes.size(); ++i) {
    const FlowNode& node = flow.nodes[i];
    if (node.used && is_in_layers(node)) out.more_files["layers.py"] = layers_text();
    if (!node.output) continue;
    for (const Leaf& leaf : leaves(flow, to_int(i))) out.outputs.push_back(leaf_name(flow, leaf));
  }
  for (int s = 0; s < to_int(flow.inputs.size()); ++s) out.stages.push_back(stage_module(flow, s));
  return out;
}

}  // namespace stagecraft::interchange
