#include "costmodel/prediction/memory.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>

#include "costmodel/index.h"
#include "costmodel/prediction/memory_replay.h"

namespace stagecraft {

int in_flight(const std::vector<Action>& list, int stage, bool splits) {
  // A microbatch is released by its weight gradient, or its backward if it has none, or immediately if it has neither.
  std::map<int, ActionKind> release;
  for (const Action& action : list) {
    if (action.stage != stage) continue;
    if (action.kind == ActionKind::Backward) release.emplace(action.microbatch, action.kind);
    if (action.kind == ActionKind::WeightGradient && splits) release[action.microbatch] = action.kind;
  }
  int held = 0;
  int most = 0;
  for (const Action& action : list) {
    if (action.stage != stage) continue;
    const auto it = release.find(action.microbatch);
    if (action.kind == ActionKind::Forward) {
      most = std::max(most, held + 1);
      held += it != release.end() ? 1 : 0;
    } else if (it != release.end() && it->second == action.kind) {
      --held;
    }
  }
  return most;
}

std::vector<Bytes> bytes_of_tied(const Graph& graph, const BoundPlan& plan) {
  std::vector<Bytes> out;
  if (plan.tied().empty()) return out;
  std::unordered_map<std::string, Bytes> bytes;
  for (const Layer& layer : graph.layers) {
    for (const TiedParameter& tied : layer.tied) bytes[tied.name] = tied.bytes;
  }
  for (const TiedHolders& tied : plan.tied()) out.push_back(bytes.at(tied.parameter));
  return out;
}

std::vector<Bytes> tied_bytes(const Graph& graph, const BoundPlan& plan) {
  const std::vector<Bytes> bytes = bytes_of_tied(graph, plan);
  std::vector<Bytes> out(plan.plan().stages.size());
  for (int s = 0; s < plan.stages(); ++s) {
    for (const int parameter : plan.shared(s)) out[to_index(s)] += bytes[to_index(parameter)];
  }
  return out;
}

namespace {

/// Bytes of a stage that recomputes, for one microbatch.
struct Recomputed {
  Bytes kept;     ///< values that one segment produces and a later one reads
  Bytes largest;  ///< saved bytes of the segment with the most
};

Recomputed recomputed(const Graph& graph, const Stage& stage) {
  const int length = stage.recompute_every > 0 ? stage.recompute_every : to_int(stage.layers.size());
  std::unordered_map<std::string, int> segment_of;
  for (std::size_t i = 0; i < stage.layers.size(); ++i) segment_of[stage.layers[i]] = to_int(i) / length;
  std::map<int, Bytes> saved;
  const auto segment = [&](int layer) {
    const auto it = segment_of.find(graph.layers[to_index(layer)].id);
    return it == segment_of.end() ? -1 : it->second;
  };
  Recomputed out;
  for (int i = 0; i < to_int(graph.layers.size()); ++i) {
    const Layer& layer = graph.layers[to_index(i)];
    if (segment(i) < 0) continue;
    Bytes& sum = saved[segment(i)];
    sum += layer.saved_bytes.value_or(activation_bytes(layer));
    out.largest = std::max(out.largest, sum);
  }
  std::set<std::pair<int, int>> crossing;  // layer and output, -1: all of them
  for (const Edge& edge : graph.edges) {
    if (segment(edge.source) >= 0 && segment(edge.destination) > segment(edge.source))
      crossing.emplace(edge.source, edge.output.value_or(-1));
  }
  for (const auto& [source, output] : crossing) {
    const Layer& layer = graph.layers[to_index(source)];
    out.kept += output < 0 ? activation_bytes(layer) : layer.outputs[to_index(output)].bytes;
  }
  return out;
}

}  // namespace

RankMemory stage_memory(const Graph& graph, const BoundPlan& plan, int stage, int in_flight) {
  const Stage& own = plan.plan().stages[to_index(stage)];
  const ScheduleEntry& schedule = plan.schedule();
  std::vector<bool> mine(graph.layers.size());
  for (std::size_t i = 0; i < graph.layers.size(); ++i) mine[i] = plan.stage_of(graph.layers[i].id) == stage;

  Bytes parameters;
  Bytes frozen;
  Bytes saved;
  Bytes largest;
  Bytes workspace;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    if (!mine[i]) continue;
    const Layer& layer = graph.layers[i];
    parameters += layer.parameter_bytes;
    frozen += layer.frozen_bytes;
    saved += layer.saved_bytes.value_or(activation_bytes(layer));
    largest = std::max(largest, activation_bytes(layer));
    workspace = std::max(workspace, layer.workspace_bytes.value_or(activation_bytes(layer)));
  }
  std::set<int> inputs;
  for (const Edge& edge : graph.edges) {
    if (mine[to_index(edge.destination)] && is_input(graph.layers[to_index(edge.source)])) {
      inputs.insert(edge.source);
    }
  }
  Bytes loaded;
  for (const int i : inputs) loaded += activation_bytes(graph.layers[to_index(i)]);
  Bytes received;
  Bytes unsaved;  // received tensors that a layer released where the model was whole, as nothing saves them
  Bytes receiving;
  Bytes sending;
  const auto tensors = [&](int boundary) -> const std::vector<BoundaryTensor>& {
    return plan.plan().boundaries[to_index(boundary)].tensors;
  };
  for (const int b : plan.incoming(stage)) {
    for (const BoundaryTensor& tensor : tensors(b)) {
      received += tensor.bytes;
      if (schedule.trains && tensor.gradient) sending += tensor.bytes;
      const std::vector<Output>& outputs = graph.layers[to_index(layer_index(graph, tensor.layer))].outputs;
      const bool kept = !tensor.output || outputs[to_index(*tensor.output)].saved.value_or(true);
      if (!kept) unsaved += tensor.bytes;
    }
  }
  receiving = received;
  for (const int b : plan.outgoing(stage)) {
    for (const BoundaryTensor& tensor : tensors(b)) {
      if (schedule.trains && tensor.gradient) receiving += 2 * tensor.bytes;
    }
  }

  RankMemory out;
  out.parts["parameters"] = parameters;
  if (frozen > Bytes(0)) out.parts["frozen"] = frozen;
  if (schedule.trains) {
    out.parts["gradients"] = parameters;
    out.parts["optimizer"] = parameters * graph.optimizer_state_values;
    out.parts["activations"] = in_flight * (saved + received + unsaved);
    if (own.recompute) {
      const Recomputed again = recomputed(graph, own);
      const Bytes run_again = schedule.splits_backward ? in_flight * (saved + unsaved) : again.largest + unsaved;
      out.parts["activations"] = in_flight * (received + again.kept) + run_again;
    }
    out.parts["sending"] = sending;
  } else {
    out.parts["activations"] = in_flight * received + largest;
  }
  const int versions = weight_versions_bound(schedule, plan.shape(), plan.position_of(stage));
  if (versions > 1) out.parts["older versions"] = parameters * (versions - 1);
  out.parts["inputs"] = in_flight * loaded;
  out.parts["receiving"] = receiving;
  out.parts["workspace"] = workspace;
  if (schedule.trains) {
    const bool copies = plan.replicas(stage) > 1 && schedule.weights != Weights::Flushed;
    out.parts["reduction"] = copies ? parameters : Bytes(0);
  }
  for (const auto& [name, bytes] : out.parts) out.total += bytes;
  return out;
}

std::vector<RankMemory> rank_memories(const Graph& graph, const BoundPlan& plan,
                                      const std::vector<std::vector<Action>>& lists) {
  std::vector<RankMemory> out;
  for (MemoryReplay& replay : replay_memory(graph, plan, lists)) out.push_back(std::move(replay.peak));
  return out;
}

}  // namespace stagecraft
