#include "executor/intake/graph/layers/two_modes.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/index.h"
#include "executor/intake/graph/layers/graph_model.h"
#include "executor/intake/graph/layers/layer_groups.h"

namespace stagecraft::intake {
namespace {

using NodeKey = std::pair<std::string, std::string>;

NodeKey key_of(const GraphNode& node) { return {node.modules.empty() ? "" : node.modules.back().path, node.name}; }

int root_of(const OperatorGraph& graph) { return graph.outputs.at(to_index(graph.loss)); }

/// `grouping` of `from`, with the nodes and values of `to`.
Grouping translated(Grouping grouping, const OperatorGraph& from, const OperatorGraph& to) {
  std::map<NodeKey, int> place;
  for (std::size_t n = 0; n < to.nodes.size(); ++n) place[key_of(to.nodes[n])] = to_int(n);
  const auto there = [&](int n) {
    const auto it = place.find(key_of(from.nodes[to_index(n)]));
    return it == place.end() ? -1 : it->second;
  };
  const auto translate = [&](std::vector<int>& nodes) {
    std::vector<int> out;
    for (const int n : nodes) {
      if (there(n) >= 0) out.push_back(there(n));
    }
    std::ranges::sort(out);
    nodes = std::move(out);
  };
  for (LayerGroup& group : grouping.groups) translate(group.nodes);
  translate(grouping.shared);
  for (int& value : grouping.derived) {
    const int source = from.values[to_index(value)].source;
    const std::vector<int>& gives = from.nodes[to_index(source)].gives;
    const auto at = std::ranges::find(gives, value) - gives.begin();
    value = to.nodes.at(to_index(there(source))).gives.at(to_index(at));
  }
  return grouping;
}

void check_match(const OperatorGraph& training, const OperatorGraph& evaluation) {
  std::map<NodeKey, int> times;
  for (const GraphNode& node : training.nodes) ++times[key_of(node)];
  for (const GraphNode& node : evaluation.nodes) {
    if (times[key_of(node)] != 1)
      throw std::logic_error(place_of(evaluation, node) + " does not match exactly one node of training");
  }
}

/// Whether both layers read the same values, and have the same outputs and parameters.
bool are_alike(const model::LayerSpec& a, const model::LayerSpec& b) {
  const auto same_value = [](const model::ValueRef& x, const model::ValueRef& y) {
    return x.layer == y.layer && x.output == y.output && x.input == y.input;
  };
  const auto same_name = [](const model::ParameterSpec& x, const model::ParameterSpec& y) { return x.name == y.name; };
  return a.outputs == b.outputs && std::ranges::equal(a.inputs, b.inputs, same_value) &&
         std::ranges::equal(a.parameters, b.parameters, same_name);
}

}  // namespace

model::Model model_of_modes(const OperatorGraph& training, const OperatorGraph& evaluation,
                            const Granularity& granularity) {
  check_match(training, evaluation);
  const Grouping grouping = layer_groups(training, root_of(training), granularity);
  model::Model out = layers_of_groups(training, grouping, root_of(training));
  model::Model other = layers_of_groups(evaluation, translated(grouping, training, evaluation), root_of(evaluation));
  for (std::size_t i = 0; i < out.layers.size(); ++i) {
    model::LayerSpec& layer = out.layers[i];
    if (!are_alike(layer, other.layers[i]))
      throw std::logic_error(training.file + ": layer \"" + layer.name + "\" differs in evaluation");
    layer.forward = [trains = std::move(layer.forward), evaluates = std::move(other.layers[i].forward)](
                        const model::LayerCall& call) { return call.training ? trains(call) : evaluates(call); };
  }
  return out;
}

}  // namespace stagecraft::intake
