#include "costmodel/interchange/convert/stage_modules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "costmodel/index.h"
#include "costmodel/interchange/convert/python_package.h"
#include "costmodel/text/number.h"

namespace stagecraft::interchange {
namespace {

using Kind = ValueForm::Kind;

using Path = std::vector<std::int64_t>;

const char* form_text(const ValueForm& form) {
  switch (form.kind) {
    case Kind::Tensor:
      return "a tensor";
    case Kind::Tuple:
      return "a tuple";
    case Kind::Number:
      return "a number";
    case Kind::Nothing:
      return "None";
    case Kind::Unknown:
      return "any value";
  }
  return "";
}

bool may_be_tensor(const ValueForm& form) { return form.kind == Kind::Tensor || form.kind == Kind::Unknown; }

Path below(const Path& path, std::size_t item) {
  Path out = path;
  out.push_back(static_cast<std::int64_t>(item));
  return out;
}

void add_leaves(const ValueFlow& flow, int layer, const ValueForm& form, const Path& path, std::vector<Leaf>& out) {
  if (form.kind != Kind::Tuple) return out.push_back({flow.nodes[to_index(layer)].position, layer, path});
  for (std::size_t i = 0; i < form.items.size(); ++i) add_leaves(flow, layer, form.items[i], below(path, i), out);
}

class FlowBuilder {
 public:
  FlowBuilder(const Graph& graph, const std::vector<int>& stage_of_layer, const OwnKinds& classes) : graph_(graph) {
    flow_.order = topological_order(graph);
    flow_.nodes.resize(graph.layers.size());
    read_layers(stage_of_layer, classes);
    read_edges();
    name_nodes();
    for (const int layer : flow_.order) take_form(layer);
    find_used();
    collect_crossings();
  }

  ValueFlow flow() { return std::move(flow_); }

 private:
  FlowNode& node(int layer) { return flow_.nodes[to_index(layer)]; }
  const std::string& id(int layer) const { return graph_.layers[to_index(layer)].id; }
  const std::string& kind(int layer) const { return graph_.layers[to_index(layer)].kind; }
  bool is_input_layer(int layer) const { return is_input(graph_.layers[to_index(layer)]); }
  [[noreturn]] void refuse(int layer, const std::string& what) const {
    throw std::invalid_argument(fmt::format("layer \"{}\": {}", id(layer), what));
  }

  void read_layers(const std::vector<int>& stage_of_layer, const OwnKinds& classes) {
    std::map<std::string, PythonCall> calls;  // networks repeat a few descriptions
    for (std::size_t i = 0; i < flow_.order.size(); ++i) {
      const int layer = flow_.order[i];
      if (is_input_layer(layer)) continue;
      FlowNode& n = node(layer);
      n.stage = stage_of_layer.at(to_index(layer));
      n.position = to_int(i);
      const std::string& description = graph_.layers[to_index(layer)].name;
      auto known = calls.find(description);
      if (known == calls.end()) {
        try {
          known = calls.emplace(description, layer_call(parse_description(description), classes)).first;
        } catch (const std::invalid_argument& e) { refuse(layer, e.what()); }
      }
      n.call = known->second;
    }
  }

  void read_edges() {
    for (const Edge& edge : graph_.edges) {
      if (edge.output && graph_.layers[to_index(edge.source)].outputs.size() > 1) {
        refuse(edge.destination,
               fmt::format("reads output {} of layer \"{}\", expected a __getitem__ layer between them", *edge.output,
                           id(edge.source)));
      }
      node(edge.destination).sources.push_back(edge.source);
      node(edge.source).readers.push_back(edge.destination);
    }
  }

  void name_nodes() {
    std::vector<std::string> ids;
    std::vector<int> inputs;
    for (std::size_t i = 0; i < flow_.nodes.size(); ++i) {
      ids.push_back(graph_.layers[i].id);
      if (is_input_layer(to_int(i))) inputs.push_back(to_int(i));
    }
    const std::vector<std::string> names = python_names(ids);
    for (std::size_t i = 0; i < names.size(); ++i) flow_.nodes[i].name = names[i];
    std::stable_sort(inputs.begin(), inputs.end(), [this](int a, int b) { return input_number(a) < input_number(b); });
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      node(inputs[k]).name = fmt::format("input{}", k);
      node(inputs[k]).position = to_int(k) - to_int(inputs.size());
    }
  }

  /// The number in "Input1"; 0 if there is none.
  int input_number(int layer) const {
    std::string_view text = graph_.layers[to_index(layer)].name;
    text.remove_prefix(std::min(text.find_first_of("0123456789"), text.size()));
    return take_number<int>(text).value_or(0);
  }

  void take_form(int layer) {
    if (is_input_layer(layer)) return;
    FlowNode& n = node(layer);
    const int count = to_int(n.sources.size());
    const int least = n.call.least_inputs;
    const int most = n.call.most_inputs;
    if (count < least || count > most) {
      const std::string wanted = most == least        ? fmt::format("{}", least)
                                 : most == kAnyNumber ? fmt::format("{} or more", least)
                                                      : fmt::format("{} to {}", least, most);
      refuse(layer, fmt::format("{} reads {} layers, expected {}", kind(layer), count, wanted));
    }
    n.form = n.call.operation == Operation::Item ? item_form(layer) : n.call.gives;
    if (n.call.operation == Operation::View) return check_view(layer);
    for (std::size_t i = 0; i < n.sources.size(); ++i) check_source(layer, i);
  }

  ValueForm item_form(int layer) {
    const ValueForm& source = node(node(layer).sources.front()).form;
    if (source.kind == Kind::Nothing || source.kind == Kind::Unknown) return source;
    const std::int64_t item = node(layer).call.numbers.front();
    if (source.kind != Kind::Tuple) refuse(layer, fmt::format("takes an item of {}", form_text(source)));
    if (item >= static_cast<std::int64_t>(source.items.size())) {
      refuse(layer, fmt::format("takes item {}, there are {}, from 0", item, source.items.size()));
    }
    return source.items[to_index(item)];
  }

  void check_source(int layer, std::size_t i) {
    const FlowNode& n = node(layer);
    const ValueForm& form = node(n.sources[i]).form;
    const bool takes_all = n.call.operation == Operation::Item || n.call.gives.kind == Kind::Unknown;
    const bool state = n.call.recurrent && i == 1;
    if (takes_all || may_be_tensor(form)) return;
    if (state && (form.kind == Kind::Nothing || form.kind == Kind::Tuple)) return;
    refuse(layer, fmt::format("reads {} of layer \"{}\", {} takes {} there", form_text(form), id(n.sources[i]),
                              kind(layer), state ? "a state or None" : "a tensor"));
  }

  void check_view(int layer) {
    int tensors = 0;
    for (const int source : node(layer).sources) {
      const ValueForm& form = node(source).form;
      if (may_be_tensor(form)) {
        ++tensors;
      } else if (form.kind != Kind::Number) {
        refuse(layer, fmt::format("reads {} of layer \"{}\", View takes a tensor and lengths of axes", form_text(form),
                                  id(source)));
      }
    }
    if (tensors != 1) refuse(layer, fmt::format("View reads {} tensors, expected one", tensors));
  }

  void find_used() {
    for (auto it = flow_.order.rbegin(); it != flow_.order.rend(); ++it) {
      FlowNode& n = node(*it);
      const bool read = std::any_of(n.readers.begin(), n.readers.end(), [this](int r) { return node(r).used; });
      if (read) {
        n.used = true;
      } else if (n.stage >= 0 && !is_inline(n) && n.call.operation != Operation::Item) {
        n.used = true;
        n.output = !give_items(*it);
      }
    }
  }

  /// Makes the items that are read from `layer` outputs of the model; false if none are read.
  bool give_items(int layer) {
    bool taken = false;
    for (const int reader : node(layer).readers) {
      FlowNode& n = node(reader);
      if (n.call.operation != Operation::Item || is_inline(n)) continue;
      taken = n.used = true;
      n.output = !give_items(reader);
    }
    return taken;
  }

  void collect_crossings() {
    int stages = 0;
    for (const FlowNode& n : flow_.nodes) stages = std::max(stages, n.stage + 1);
    inputs_.resize(to_index(stages));
    outputs_.resize(to_index(stages));
    for (const int layer : flow_.order) {
      const FlowNode& n = node(layer);
      if (!n.used || n.stage < 0 || is_inline(n)) continue;
      for (const int source : n.sources) cross(source, layer);
      if (!n.output) continue;
      for (const Leaf& leaf : leaves(flow_, layer)) outputs_[to_index(n.stage)].insert(leaf);
    }
    for (const std::set<Leaf>& set : inputs_) flow_.inputs.emplace_back(set.begin(), set.end());
    for (const std::set<Leaf>& set : outputs_) flow_.outputs.emplace_back(set.begin(), set.end());
  }

  /// Notes what `reader` needs from `source`, if that is in another stage.
  void cross(int source, int reader) {
    const FlowNode& n = node(reader);
    while (node(source).form.kind == Kind::Number) source = node(source).sources.front();
    const FlowNode& from = node(source);
    if (from.form.kind == Kind::Nothing || from.stage == n.stage) return;
    if (from.stage > n.stage) {
      refuse(reader, fmt::format("is in stage {} and reads layer \"{}\" of the later stage {}", n.stage, id(source),
                                 from.stage));
    }
    const bool item = n.call.operation == Operation::Item;
    std::vector<Leaf> crossing;
    add_leaves(flow_, source, item ? n.form : from.form, item ? n.call.numbers : Path{}, crossing);
    inputs_[to_index(n.stage)].insert(crossing.begin(), crossing.end());
    if (from.stage >= 0) outputs_[to_index(from.stage)].insert(crossing.begin(), crossing.end());
  }

  const Graph& graph_;
  ValueFlow flow_;
  std::vector<std::set<Leaf>> inputs_;
  std::vector<std::set<Leaf>> outputs_;
};

}  // namespace

ValueFlow value_flow(const Graph& graph, const std::vector<int>& stage_of_layer, const OwnKinds& classes) {
  return FlowBuilder(graph, stage_of_layer, classes).flow();
}

bool is_inline(const FlowNode& node) { return node.form.kind == Kind::Number || node.form.kind == Kind::Nothing; }

std::vector<Leaf> leaves(const ValueFlow& flow, int layer) {
  std::vector<Leaf> out;
  add_leaves(flow, layer, flow.nodes[to_index(layer)].form, {}, out);
  return out;
}

std::string leaf_name(const ValueFlow& flow, const Leaf& leaf) {
  const std::string& layer = flow.nodes[to_index(leaf.layer)].name;
  if (leaf.path.empty()) return layer;
  std::string out = "item";
  for (const std::int64_t item : leaf.path) out += fmt::format("{}_", item);
  return out + "of_" + layer;
}

std::string received_text(const ValueFlow& flow, int layer, const ValueForm& form, const Path& path) {
  if (form.kind != Kind::Tuple) return leaf_name(flow, {0, layer, path});
  std::vector<std::string> items;
  for (std::size_t i = 0; i < form.items.size(); ++i) {
    items.push_back(received_text(flow, layer, form.items[i], below(path, i)));
  }
  return python_tuple(items);
}

namespace {

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
