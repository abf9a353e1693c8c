#include "costmodel/prediction/backward_parts.h"

#include <algorithm>
#include <unordered_map>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

// Half: see backward_parts.
constexpr double kEstimatedWeightShare = 0.5;

bool is_estimated(const Layer& layer) {
  return !is_input(layer) && !layer.backward_parts && layer.parameter_bytes > Bytes(0) &&
         layer.backward.median > Seconds(0);
}

/// Layers whose backward the executor splits together: a stage, or a segment of one that recomputes.
struct BackwardUnits {
  std::vector<int> of_layer;  ///< by layer of the graph; -1: an input
  std::vector<int> stage_of;  ///< by unit
};

BackwardUnits units_of(const Graph& graph, const BoundPlan& plan) {
  std::unordered_map<std::string, int> unit_of;
  BackwardUnits out;
  for (int s = 0; s < plan.stages(); ++s) {
    const Stage& stage = plan.plan().stages[to_index(s)];
    const bool segments = stage.recompute && stage.recompute_every > 0;
    const std::size_t length = segments ? to_index(stage.recompute_every) : stage.layers.size();
    for (std::size_t i = 0; i < stage.layers.size(); ++i) {
      if (i % length == 0) out.stage_of.push_back(s);
      unit_of[stage.layers[i]] = to_int(out.stage_of.size()) - 1;
    }
  }
  for (const Layer& layer : graph.layers) out.of_layer.push_back(is_input(layer) ? -1 : unit_of.at(layer.id));
  return out;
}

/// For each layer, whether a gradient flows through it to a value that its unit receives from another one.
std::vector<bool> leads_out(const Graph& graph, const BackwardUnits& units) {
  std::vector<std::vector<const Edge*>> incoming(graph.layers.size());
  for (const Edge& edge : graph.edges) incoming[to_index(edge.destination)].push_back(&edge);
  std::vector<bool> out(graph.layers.size());
  for (const int layer : topological_order(graph)) {
    const int unit = units.of_layer[to_index(layer)];
    if (unit < 0) continue;
    out[to_index(layer)] = std::ranges::any_of(incoming[to_index(layer)], [&](const Edge* edge) {
      const Layer& source = graph.layers[to_index(edge->source)];
      if (is_input(source) || (edge->output && !source.outputs[to_index(*edge->output)].requires_grad)) return false;
      return units.of_layer[to_index(edge->source)] != unit || out[to_index(edge->source)];
    });
  }
  return out;
}

/// Which layers and units of a graph have a backward that can be split.
struct SplitUnits {
  BackwardUnits units;
  std::vector<bool> leads;   ///< for each layer: leads_out
  std::vector<bool> splits;  ///< for each unit: it sends gradients back, and all of its layers are separable
};

SplitUnits split_units(const Graph& graph, const BoundPlan& plan) {
  SplitUnits out{units_of(graph, plan), {}, {}};
  out.leads = leads_out(graph, out.units);
  std::vector<bool> sends_back(out.units.stage_of.size(), false);
  out.splits.assign(out.units.stage_of.size(), true);
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    if (out.units.of_layer[i] < 0) continue;
    const auto unit = to_index(out.units.of_layer[i]);
    if (out.leads[i]) sends_back[unit] = true;
    if (!backward_parts(graph.layers[i]).separable) out.splits[unit] = false;
  }
  for (std::size_t unit = 0; unit < out.splits.size(); ++unit) out.splits[unit] = out.splits[unit] && sends_back[unit];
  return out;
}

}  // namespace

BackwardParts backward_parts(const Layer& layer) {
  if (layer.backward_parts) return *layer.backward_parts;
  const double weights = layer.parameter_bytes > Bytes(0) ? kEstimatedWeightShare : 0;
  const auto part = [&](double share) { return Timing{layer.backward.median * share, std::nullopt, 0}; };
  return {part(1 - weights), part(weights)};
}

std::vector<SplitBackwardTimes> split_backward_times(const Graph& graph, const BoundPlan& plan) {
  const auto [units, leads, splits] = split_units(graph, plan);
  std::vector<SplitBackwardTimes> out(to_index(plan.stages()));
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    if (units.of_layer[i] < 0) continue;
    const auto unit = to_index(units.of_layer[i]);
    const Layer& layer = graph.layers[i];
    SplitBackwardTimes& stage = out[to_index(units.stage_of[unit])];
    if (!splits[unit]) {
      stage.inputs += layer.backward.median;
    } else if (!leads[i]) {
      stage.weights += layer.backward.median;
    } else {
      const BackwardParts parts = backward_parts(layer);
      stage.inputs += parts.inputs.median;
      stage.weights += parts.weights.median;
    }
  }
  return out;
}

std::vector<bool> splits_backward(const Graph& graph, const BoundPlan& plan) {
  std::vector<bool> out(to_index(plan.stages()), false);
  if (!plan.schedule().splits_backward) return out;
  const auto [units, leads, splits] = split_units(graph, plan);
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    if (units.of_layer[i] < 0 || !splits[to_index(units.of_layer[i])]) continue;
    const bool has_rest = !leads[i] || graph.layers[i].parameter_bytes > Bytes(0);
    if (has_rest) out[to_index(units.stage_of[to_index(units.of_layer[i])])] = true;
  }
  return out;
}

std::string backward_parts_assumption(const Graph& graph, const BoundPlan& plan) {
  if (!plan.schedule().splits_backward) return "";
  const auto layers = std::ranges::count_if(graph.layers, is_estimated);
  if (layers == 0) return "";
  return "the graph has no weight-gradient times for " + std::to_string(layers) + (layers == 1 ? " layer" : " layers") +
         " with parameters: half of the backward is assumed (Qi et al., ICLR 2024); profile the model again to measure "
         "them";
}

}  // namespace stagecraft
