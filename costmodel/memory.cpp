#include "costmodel/memory.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

namespace stagecraft {

int in_flight(const std::vector<Action>& list, int stage) {
  const auto of_stage = [&](const Action& a, ActionKind kind) { return a.stage == stage && a.kind == kind; };
  const bool split =
      std::any_of(list.begin(), list.end(), [&](const Action& a) { return of_stage(a, ActionKind::WeightGradient); });
  int held = 0;
  int most = 0;
  for (const Action& action : list) {
    if (of_stage(action, ActionKind::Forward)) most = std::max(most, ++held);
    if (of_stage(action, split ? ActionKind::WeightGradient : ActionKind::Backward)) --held;
  }
  return most;
}

std::vector<Bytes> tied_bytes(const Graph& graph, const Plan& plan) {
  std::unordered_map<std::string, int> stage_of;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::string& id : plan.stages[s].layers) stage_of[id] = static_cast<int>(s);
  }
  std::map<std::string, std::map<int, Bytes>> holders;  // parameter -> stage -> bytes
  for (const Layer& layer : graph.layers) {
    const auto it = stage_of.find(layer.id);
    if (it == stage_of.end()) continue;
    for (const TiedParameter& tied : layer.tied) holders[tied.name][it->second] = tied.bytes;
  }
  std::vector<Bytes> out(plan.stages.size());
  for (const auto& [name, stages] : holders) {
    if (stages.size() < 2) continue;
    for (const auto& [stage, bytes] : stages) out[static_cast<std::size_t>(stage)] += bytes;
  }
  return out;
}

RankMemory stage_memory(const Graph& graph, const Plan& plan, int stage, int held) {
  const Stage& own = plan.stages[static_cast<std::size_t>(stage)];
  const std::set<std::string> ids(own.layers.begin(), own.layers.end());
  std::vector<bool> mine(graph.layers.size());
  for (std::size_t i = 0; i < graph.layers.size(); ++i) mine[i] = ids.contains(graph.layers[i].id);

  Bytes parameters;
  Bytes saved;
  Bytes workspace;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    if (!mine[i]) continue;
    const Layer& layer = graph.layers[i];
    parameters += layer.parameter_bytes;
    saved += layer.saved_bytes.value_or(activation_bytes(layer));
    workspace = std::max(workspace, layer.workspace_bytes.value_or(activation_bytes(layer)));
  }
  std::set<int> inputs;
  for (const Edge& edge : graph.edges) {
    if (mine[static_cast<std::size_t>(edge.destination)] &&
        is_input(graph.layers[static_cast<std::size_t>(edge.source)])) {
      inputs.insert(edge.source);
    }
  }
  Bytes loaded;
  for (const int i : inputs) loaded += activation_bytes(graph.layers[static_cast<std::size_t>(i)]);
  Bytes received;
  Bytes receiving;
  for (const Boundary& boundary : plan.boundaries) {
    for (const BoundaryTensor& tensor : boundary.tensors) {
      if (boundary.destination == stage) received += tensor.bytes;
      if (boundary.destination == stage || (boundary.source == stage && tensor.gradient)) receiving += tensor.bytes;
    }
  }

  RankMemory out;
  out.parts["parameters"] = parameters;
  out.parts["gradients"] = parameters;
  out.parts["optimizer"] = parameters * graph.optimizer_state_values;
  out.parts["activations"] = own.recompute ? held * received + saved : held * (saved + received);
  out.parts["inputs"] = held * loaded;
  out.parts["receiving"] = receiving;
  out.parts["workspace"] = workspace;
  out.parts["reduction"] = own.devices.size() > 1 ? parameters : Bytes(0);
  for (const auto& [name, bytes] : out.parts) out.total += bytes;
  return out;
}

}  // namespace stagecraft
