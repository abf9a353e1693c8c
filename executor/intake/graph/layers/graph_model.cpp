#include "executor/intake/graph/layers/graph_model.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <set>
#include <stdexcept>
#include <tuple>
#include <variant>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/text/number.h"
#include "executor/intake/graph/calls/evaluation.h"
#include "executor/intake/graph/calls/node_program.h"
#include "executor/model/losses.h"

namespace stagecraft::intake {
namespace {

using Origin = GraphValue::Origin;

/// How a buffer changes in a training forward.
struct Movement {
  std::optional<double> decay;
  bool written = false;
};

Movement movement_of(const OperatorGraph& graph, const std::vector<int>& nodes, int buffer) {
  std::set<int> same{buffer};
  Movement out;
  for (const int n : nodes) {
    const GraphNode& node = graph.nodes[to_index(n)];
    const auto is_same = [&](int v) { return same.contains(v); };
    if (std::ranges::none_of(node.reads, is_same)) continue;
    const auto decay = std::ranges::find_if(node.decays, [&](const auto& d) { return is_same(d.first); });
    if (decay != node.decays.end()) {
      out.decay = out.decay.value_or(1) * decay->second;
    } else {
      out.written = out.written || std::ranges::any_of(node.writes, is_same);
    }
    for (const auto& [result, read] : node.aliases) {
      if (is_same(read)) same.insert(result);
    }
  }
  if (!out.decay && !out.written) return out;
  // Replaying begins from zero, so only the updates may read it.
  for (const int n : nodes) {
    const GraphNode& node = graph.nodes[to_index(n)];
    for (const int v : node.reads) {
      if (same.contains(v) && std::ranges::none_of(node.decays, [&](const auto& d) { return d.first == v; }))
        out.written = true;
    }
  }
  if (out.written) out.decay.reset();
  return out;
}

/// Without values, a tensor on the device "meta".
at::Tensor value_or_shape(const GraphTensor& tensor) {
  if (tensor.has_values) return tensor.load();
  return at::empty(tensor.shape, at::TensorOptions().dtype(tensor.dtype).device(at::kMeta));
}

/// Makes the layers of a model from a graph and its groups.
class Assembler {
 public:
  Assembler(const OperatorGraph& graph, Grouping grouping, int root)
      : graph_(graph), grouping_(std::move(grouping)), root_(root) {
    for (std::size_t g = 0; g < grouping_.groups.size(); ++g) {
      for (const int n : grouping_.groups[g].nodes) {
        for (const int value : graph_.nodes[to_index(n)].gives) made_in_[value] = to_int(g);
      }
    }
    for (const LayerGroup& group : grouping_.groups) all_.insert(all_.end(), group.nodes.begin(), group.nodes.end());
    std::ranges::sort(all_);
  }

  model::Model run() {
    find_outputs();
    std::vector<NodeProgram> programs;
    for (std::size_t g = 0; g < grouping_.groups.size(); ++g)
      programs.emplace_back(graph_, grouping_.groups[g].nodes, outputs_[g]);
    std::vector<std::tuple<int, NodeProgram, std::vector<at::Tensor>>> derived;
    for (const int value : grouping_.derived) {
      NodeProgram program(graph_, shared_nodes_for(graph_, grouping_, value), {value});
      std::vector<at::Tensor> tensors;
      for (const int tensor : program.tensors()) tensors.push_back(value_or_shape(graph_.tensors[to_index(tensor)]));
      derived.emplace_back(value, std::move(program), std::move(tensors));
    }
    add_inputs(programs, derived);
    for (std::size_t g = 0; g < grouping_.groups.size(); ++g) add_layer(g, std::move(programs[g]));
    add_unused();
    model_.merged = std::move(grouping_.merged);
    model_.least_samples = graph_.least_samples;
    model_.most_samples = graph_.most_samples;
    return std::move(model_);
  }

  /// Call after run(). Throws FormatError if it does not follow from the model's inputs.
  [[nodiscard]] std::optional<model::LossWeight> loss_weight() const {
    if (!graph_.loss_terms) return std::nullopt;
    const LossTerms& terms = *graph_.loss_terms;
    std::vector<int> wanted{terms.count};
    if (terms.class_weights >= 0) wanted.push_back(terms.class_weights);
    std::set<int> nodes;
    std::vector<int> computed;
    for (std::vector<int> open = wanted; !open.empty();) {
      const GraphValue& value = graph_.values[to_index(open.back())];
      open.pop_back();
      if (value.origin != Origin::Node || !nodes.insert(value.source).second) continue;
      const std::vector<int>& reads = graph_.nodes[to_index(value.source)].reads;
      open.insert(open.end(), reads.begin(), reads.end());
    }
    std::ranges::copy_if(wanted, std::back_inserter(computed),
                         [&](int value) { return graph_.values[to_index(value)].origin == Origin::Node; });
    const NodeProgram program(graph_, {nodes.begin(), nodes.end()}, computed);
    model::LossWeight out{.sources = {}, .count = {}, .least = terms.least, .added = terms.added};
    const auto add_source = [&](int value) {
      const GraphValue& read = graph_.values[to_index(value)];
      if (read.origin != Origin::Input || !input_of_.contains(read.source))
        throw FormatError(ErrorKind::UnsupportedModel,
                          fmt::format("{}: the weight of the loss reads \"{}\", which is not "
                                      "an input",
                                      graph_.file, read.name));
      out.sources.push_back(input_of_.at(read.source));
    };
    const auto stored = [&](int tensor) { return value_or_shape(graph_.tensors[to_index(tensor)]); };
    for (const int argument : program.arguments()) add_source(argument);
    std::vector<at::Tensor> tensors;
    for (const int tensor : program.tensors()) tensors.push_back(stored(tensor));
    // Values that no node computes come from their places: stored, or a source.
    std::vector<std::variant<std::monostate, std::size_t, at::Tensor>> places;
    for (const int value : wanted) {
      const GraphValue& read = graph_.values[to_index(value)];
      auto& place = places.emplace_back();
      if (read.origin == Origin::Node) continue;
      if (read.origin != Origin::Input) {
        place = stored(read.source);
        continue;
      }
      place = out.sources.size();
      add_source(value);
    }
    out.count = [=, arguments = program.arguments().size(), ignored = terms.ignored](auto sources) {
      const std::vector<at::Tensor> made =
          computed.empty() ? std::vector<at::Tensor>() : program.run(sources.first(arguments), tensors, {});
      std::vector<at::Tensor> found;
      for (std::size_t i = 0, next = 0; i < places.size(); ++i) {
        const auto* const source = std::get_if<std::size_t>(&places[i]);
        const auto* const tensor = std::get_if<at::Tensor>(&places[i]);
        found.push_back(source ? sources[*source] : tensor ? *tensor : made[next++]);
      }
      if (!ignored) return found[0].sum().to(at::kDouble);
      const at::Tensor counted = found[0].ne(*ignored);
      if (found.size() == 1) return counted.sum().to(at::kDouble);
      return found[1].index_select(0, found[0].masked_select(counted)).to(at::kDouble).sum();
    };
    return out;
  }

  /// Where a layer finds `value`; only valid after run().
  [[nodiscard]] model::ValueRef reference(int value) const {
    const GraphValue& read = graph_.values[to_index(value)];
    if (read.origin == Origin::Input) return {-1, 0, input_of_.at(read.source)};
    if (const auto it = derived_input_.find(value); it != derived_input_.end()) return {-1, 0, it->second};
    const auto made = made_in_.find(value);
    if (made == made_in_.end())
      throw std::logic_error(graph_.file + ": value \"" + read.name +
                             "\" is read by a layer, but no layer computes it");
    const std::vector<int>& outputs = outputs_[to_index(made->second)];
    return {made->second, to_int(std::ranges::find(outputs, value) - outputs.begin()), -1};
  }

 private:
  void find_outputs() {
    outputs_.resize(grouping_.groups.size());
    const auto cross = [&](int value, int reader) {
      const auto made = made_in_.find(value);
      if (made == made_in_.end() || made->second == reader) return;
      std::vector<int>& sent = outputs_[to_index(made->second)];
      if (std::ranges::find(sent, value) == sent.end()) sent.push_back(value);
    };
    for (std::size_t g = 0; g < grouping_.groups.size(); ++g) {
      for (const int n : grouping_.groups[g].nodes) {
        for (const int value : graph_.nodes[to_index(n)].reads) {
          if (graph_.values[to_index(value)].kind != GraphValue::Kind::Number) cross(value, to_int(g));
        }
      }
    }
    for (std::vector<int>& sent : outputs_) std::ranges::sort(sent);
    cross(root_, -1);
  }

  /// The model's inputs that are read, then those derived from them.
  void add_inputs(const std::vector<NodeProgram>& programs,
                  std::vector<std::tuple<int, NodeProgram, std::vector<at::Tensor>>>& derived) {
    std::set<int> used;
    const auto use = [&](const NodeProgram& program) {
      for (const int value : program.arguments()) {
        if (graph_.values[to_index(value)].origin == Origin::Input) used.insert(graph_.values[to_index(value)].source);
      }
    };
    for (const NodeProgram& program : programs) use(program);
    for (const auto& [value, program, tensors] : derived) use(program);
    for (const int input : used) {
      input_of_[input] = to_int(model_.inputs.size());
      model_.inputs.push_back(graph_.inputs[to_index(input)]);
    }
    for (auto& [value, program, tensors] : derived) {
      const GraphValue& made = graph_.values[to_index(value)];
      model::ModelInput input{.name = made.name, .dtype = "", .shape = {}};
      for (const int argument : program.arguments())
        input.sources.push_back(input_of_.at(graph_.values[to_index(argument)].source));
      const bool has_values = std::ranges::none_of(tensors, [](const at::Tensor& tensor) { return tensor.is_meta(); });
      input.derive = [shared = std::make_shared<const NodeProgram>(std::move(program)), stored = std::move(tensors),
                      has_values](std::span<const at::Tensor> sources) {
        if (has_values) return shared->run(sources, stored, {}).front();
        std::vector<at::Tensor> shapes;
        for (const at::Tensor& source : sources) shapes.push_back(source.to(at::kMeta));
        return shared->run(shapes, stored, {}).front();
      };
      derived_input_[value] = to_int(model_.inputs.size());
      model_.inputs.push_back(std::move(input));
    }
  }

  [[nodiscard]] model::ParameterSpec spec_of(int tensor) {
    const GraphTensor& stored = graph_.tensors[to_index(tensor)];
    used_.insert(tensor);
    model::ParameterSpec out{.name = stored.name, .shape = stored.shape};
    out.trainable = stored.trainable;
    out.dtype = stored.dtype;
    out.load = stored.load;
    out.init = stored.init;
    out.scale = stored.scale;
    if (stored.trainable) return out;
    for (std::size_t v = 0; v < graph_.values.size(); ++v) {
      const GraphValue& value = graph_.values[v];
      const bool is_value =
          (value.origin == Origin::Buffer || value.origin == Origin::Constant) && value.source == tensor;
      if (!is_value) continue;
      const Movement movement = movement_of(graph_, all_, to_int(v));
      out.decay = movement.decay;
      out.written = out.written || movement.written;
    }
    out.constant = stored.constant && !out.decay && !out.written;
    out.in_state_dict = !stored.constant;
    return out;
  }

  void add_layer(std::size_t g, NodeProgram program) {
    model::LayerSpec layer;
    layer.name = grouping_.groups[g].name;
    layer.kind = grouping_.groups[g].kind;
    layer.outputs = to_int(outputs_[g].size());
    for (const int value : program.arguments()) layer.inputs.push_back(reference(value));
    // LayerCall separates parameters and buffers; this locates each tensor of the program.
    std::vector<std::pair<bool, std::size_t>> places;
    std::size_t parameters = 0;
    std::size_t buffers = 0;
    for (const int tensor : program.tensors()) {
      layer.parameters.push_back(spec_of(tensor));
      const bool trainable = layer.parameters.back().trainable;
      places.emplace_back(trainable, trainable ? parameters++ : buffers++);
    }
    layer.forward = [program = std::make_shared<const NodeProgram>(std::move(program)),
                     places = std::move(places)](const model::LayerCall& call) {
      std::vector<at::Tensor> tensors;
      tensors.reserve(places.size());
      for (const auto& [trainable, place] : places)
        tensors.push_back(trainable ? call.parameters[place] : call.buffers[place]);
      return program->run(call.inputs, std::move(tensors), {call.seed, call.step, call.microbatch});
    };
    model_.layers.push_back(std::move(layer));
  }

  /// Parameters and buffers that the loss does not need go to the last layer, so that they are kept.
  void add_unused() {
    for (std::size_t t = 0; t < graph_.tensors.size(); ++t) {
      if (used_.contains(to_int(t)) || graph_.tensors[t].constant) continue;
      model_.layers.back().parameters.push_back(spec_of(to_int(t)));
    }
  }

  const OperatorGraph& graph_;
  Grouping grouping_;
  int root_;
  std::vector<int> all_;  // nodes of all groups
  std::map<int, int> made_in_;
  std::vector<std::vector<int>> outputs_;  // by group: values
  std::map<int, int> input_of_;            // of the graph -> of the model
  std::map<int, int> derived_input_;       // value -> input of the model
  std::set<int> used_;
  model::Model model_;
};

int output_index(const OperatorGraph& graph, const ModelSettings& settings) {
  if (!settings.contains("loss_output") && setting(settings, "loss", "none") != "none" && !graph.output_keys.empty()) {
    if (graph.scores) return *graph.scores;
    std::string keys;
    for (const std::string& key : graph.output_keys)
      keys += fmt::format("{}{} {}", keys.empty() ? "" : ", ", &key - graph.output_keys.data(), key);
    throw std::invalid_argument(fmt::format(
        "{}: the model returns several tensors, {}; say which one the loss reads with --loss-output (setting "
        "loss_output)",
        graph.file, keys));
  }
  const std::string text = setting(settings, "loss_output", std::to_string(std::max(graph.loss, 0)));
  const int output = number_in<int>(text).value_or(-1);
  const int count = to_int(graph.outputs.size());
  if (output < 0 || output >= count || graph.outputs[to_index(output)] < 0)
    throw std::invalid_argument(graph.file + ": setting loss_output is \"" + text +
                                "\", expected the index of a tensor among the model's " + std::to_string(count) +
                                " outputs, from 0");
  return output;
}

/// The output that a named loss takes.
model::LossOutput loss_output(const OperatorGraph& graph, const GraphValue& value, model::ValueRef reference) {
  if (!value.meta) throw std::invalid_argument(graph.file + ": output \"" + value.name + "\" has no known shape");
  model::LossOutput out{reference, {}, value.meta->dtype, 0};
  for (std::size_t axis = 0; axis < value.meta->sizes.size(); ++axis) {
    const auto number = constant_value(value.meta->sizes[axis]);
    if (!number) {
      out.batch_axis = to_int(axis);
    } else if (axis > 0 || !graph.symbols.empty()) {
      out.shape.push_back(*number);
    }
  }
  return out;
}

/// The first integer input: the tokens of a language model.
std::string tokens_of(const model::Model& model) {
  const auto it = std::ranges::find_if(
      model.inputs, [](const model::ModelInput& input) { return input.dtype == "int64" && !input.derive; });
  return it == model.inputs.end() ? "" : it->name;
}

/// Layers of an evaluation graph that match those of `training`, as far as they compute anything.
Grouping groups_like(const OperatorGraph& graph, int loss, const ModelSettings& settings, const Grouping& training) {
  Grouping out = layer_groups(graph, loss, parse_granularity(setting(settings, "layers", "auto")), &training);
  for (const LayerGroup& group : training.groups) {
    const bool found = std::ranges::find(out.groups, group.name, &LayerGroup::name) != out.groups.end();
    if (!found) {
      out.merged.emplace(group.name, "is unused in evaluation; trace the model after model.eval() and plan that file");
    }
  }
  return out;
}

}  // namespace

int loss_of_graph(const OperatorGraph& graph, const ModelSettings& settings) {
  check_import_settings(settings);
  const int root = graph.outputs.empty() ? -1 : graph.outputs[to_index(output_index(graph, settings))];
  if (root < 0) throw FormatError(ErrorKind::UnsupportedModel, graph.file + ": the model returns nothing");
  const GraphValue& value = graph.values[to_index(root)];
  const std::string loss = setting(settings, "loss", "none");
  const bool is_loss = value.meta && value.meta->sizes.empty() && c10::isFloatingType(value.meta->dtype);
  if (loss == "none" && !is_loss) {
    std::vector<std::string> known;
    for (const model::Loss& entry : model::losses()) known.push_back(entry.name);
    throw std::invalid_argument(
        fmt::format("{}: output \"{}\" is not a loss (one floating-point number); export the model with its loss, or "
                    "use --loss: {}",
                    graph.file, value.name, fmt::join(known, ", ")));
  }
  return root;
}

Grouping groups_of_graph(const OperatorGraph& graph, int loss, const ModelSettings& settings) {
  return layer_groups(graph, loss, parse_granularity(setting(settings, "layers", "auto")));
}

model::Model layers_of_groups(const OperatorGraph& graph, Grouping grouping, int root) {
  return Assembler(graph, std::move(grouping), root).run();
}

model::Model model_of_graph(OperatorGraph graph, const ModelSettings& settings, std::optional<Grouping> grouping) {
  const int root = loss_of_graph(graph, settings);
  if (!grouping) grouping = groups_of_graph(graph, root, settings);
  Assembler assembler(graph, std::move(*grouping), root);
  model::Model model = assembler.run();
  const std::string loss = setting(settings, "loss", "none");
  if (loss == "none") {
    model.loss_kind = graph.loss_kind;
    model.loss_weight = assembler.loss_weight();
  } else {
    const GraphValue& value = graph.values[to_index(root)];
    model::append_loss(model, loss, loss_output(graph, value, assembler.reference(root)), tokens_of(model));
  }
  return model;
}

model::Model model_of_file(const std::string& path, const ModelSettings& settings, model::ModelMode mode,
                           const GraphReader& reader) {
  check_import_settings(settings);
  OperatorGraph graph = reader.read(path, settings, model::ModelMode::Training);
  std::optional<Grouping> grouping;
  if (mode == model::ModelMode::Evaluation) {
    // Plans refer to the layers that the model has in training.
    const int trained = loss_of_graph(graph, settings);
    grouping = groups_of_graph(graph, trained, settings);
    graph = reader.read(path, settings, model::ModelMode::Evaluation);
    const int evaluated = loss_of_graph(graph, settings);
    check_evaluation(graph, evaluated);
    if (!reader.same_nodes) grouping = groups_like(graph, evaluated, settings, *grouping);
  }
  model::Model model = model_of_graph(std::move(graph), settings, std::move(grouping));
  model.mode = mode;
  model.name = path;
  model.options = settings;
  for (model::ModelInput& input : model.inputs) input.range_setting = true;
  if (setting(settings, "layers", "auto") == "auto") model.options.erase("layers");
  return model;
}

}  // namespace stagecraft::intake
