#include "costmodel/prediction/memory.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <unordered_map>

#include "costmodel/index.h"
#include "costmodel/links/channel_traits.h"

namespace stagecraft {
namespace {

Bytes share(Bytes bytes, double of) { return Bytes(std::llround(static_cast<double>(bytes.value) * of)); }

}  // namespace

Bytes memory_bound(const RankMemory& memory, Bytes messages, bool measured, DeviceKind device) {
  const MemoryMargins margins = memory_margins(measured, device);
  Bytes out = memory.total + messages * 2 + share(memory.total, margins.total) +
              share(memory.part(MemoryPart::KeptGradients), margins.kept_gradients);
  out += share(memory.part(MemoryPart::Activations) + memory.part(MemoryPart::Workspace), margins.activations);
  return out;
}

MemoryMargins memory_margins(bool measured, DeviceKind device) {
  // Each share is explained at memory_bound, and fitted by bench/accuracy/fit_memory.
  constexpr double kTensors = 0.02;
  constexpr double kKept = 0.5;
  constexpr double kUnmeasured = 0.39;
  constexpr double kGpuCache = 0.15;
  const bool is_gpu = device == DeviceKind::Gpu;
  return {kTensors + (is_gpu ? kGpuCache : 0), measured ? 0 : kUnmeasured, kKept, is_gpu ? kGpuBase : Bytes(0)};
}

Bytes kept_gradient_bytes(const Layer& layer) {
  if (layer.parameter_bytes == Bytes(0)) return Bytes(0);
  const Bytes saved = layer.saved_bytes.value_or(Bytes(0));
  return std::max(activation_bytes(layer), Bytes(saved.value * 11 / 24));
}

Bytes reduce_buffer_bytes(Bytes values, int ranks, const std::string& channel) {
  const ChannelTraits* traits = find_channel_traits(channel);
  if (traits == nullptr || traits->reduce_buffers == nullptr || ranks < 2 || values <= Bytes(0)) return Bytes(0);
  return traits->reduce_buffers(values, ranks);
}

std::vector<std::vector<Bytes>> message_bytes(const Plan& plan) {
  std::vector<std::vector<Bytes>> out(2);
  for (const Boundary& boundary : plan.boundaries) {
    Bytes forth;
    Bytes back;
    for (const BoundaryTensor& tensor : boundary.tensors) {
      forth += tensor.bytes;
      if (tensor.gradient) back += tensor.bytes;
    }
    out[0].push_back(forth);
    out[1].push_back(back);
  }
  return out;
}

Bytes communication_of(const BoundPlan& plan, const std::vector<GradientSum>& sums, const std::string& channel) {
  Bytes own;
  Bytes out;
  // Shared parameters are summed one after the other: each takes the buffer of an earlier one if that is large enough.
  Bytes largest;
  for (const GradientSum& sum : sums) {
    Bytes bytes = sum.bytes;
    if (!sum.tied && plan.plan().gradient_bucket_bytes && !plan.asynchronous())
      bytes = std::min(bytes, *plan.plan().gradient_bucket_bytes);
    const Bytes buffer = reduce_buffer_bytes(bytes, to_int(sum.ranks.size()), channel);
    if (!sum.tied) {
      own = std::max(own, buffer);
    } else if (buffer > largest) {
      largest = buffer;
      out += buffer;
    }
  }
  return own + out;
}

int in_flight(const std::vector<Action>& list, int stage, bool splits, bool later) {
  // By microbatch, what releases it: its weight gradient, or its backward if it has none, or its forward if it has
  // neither.
  std::vector<ActionKind> release;
  for (const Action& action : list) {
    if (action.stage != stage || action.microbatch < 0) continue;
    const std::size_t microbatch = to_index(action.microbatch);
    if (microbatch >= release.size()) release.resize(microbatch + 1, ActionKind::Forward);
    ActionKind& kind = release[microbatch];
    if (action.kind == ActionKind::Backward && kind == ActionKind::Forward) kind = action.kind;
    if (action.kind == ActionKind::WeightGradient && splits) kind = action.kind;
  }
  int microbatches = 0;
  int most = 0;
  for (const Action& action : list) {
    if (action.stage != stage || action.microbatch < 0) continue;
    const ActionKind kind = release[to_index(action.microbatch)];
    if (action.kind == ActionKind::Forward) {
      if (!later) most = std::max(most, microbatches + 1);
      microbatches += kind != ActionKind::Forward ? 1 : 0;
    } else if (kind == action.kind) {
      --microbatches;
      later = false;
    }
  }
  return most;
}

std::vector<Bytes> first_held_bytes(const std::vector<const Layer*>& layers) {
  std::vector<Bytes> out;
  std::set<std::string> seen;
  for (const Layer* layer : layers) {
    out.push_back(layer->parameter_bytes);
    for (const TiedParameter& tied : layer->tied) {
      if (!seen.insert(tied.name).second) out.back() -= tied.bytes;
    }
  }
  return out;
}

Bytes held_parameter_bytes(const std::vector<const Layer*>& layers) {
  Bytes out;
  for (const Bytes bytes : first_held_bytes(layers)) out += bytes;
  return out;
}

Bytes held_parameter_bytes(const Graph& graph) {
  std::vector<const Layer*> layers;
  for (const Layer& layer : graph.layers) layers.push_back(&layer);
  return held_parameter_bytes(layers);
}

double share_updated(const Layer& layer, Bytes held) {
  return held < layer.parameter_bytes ? held / layer.parameter_bytes : 1;
}

StageMemories::StageMemories(const Graph& graph, const BoundPlan& plan)
    : graph_(graph), plan_(plan), layers_(graph), members_(to_index(plan.stages())) {
  if (plan.plan().sharding != StateSharding::None) sums_ = gradient_sums(graph, plan);
  std::vector<int> stage_of(graph.layers.size(), -1);
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    stage_of[i] = plan.stage_of(graph.layers[i].id).value_or(-1);
    if (stage_of[i] >= 0) members_[to_index(stage_of[i])].layers.push_back(to_int(i));
  }
  for (std::size_t e = 0; e < graph.edges.size(); ++e) {
    const int stage = stage_of[to_index(graph.edges[e].destination)];
    if (stage >= 0) members_[to_index(stage)].edges.push_back(to_int(e));
  }
}

StageMemories::Recomputed StageMemories::recomputed(int stage) const {
  const Stage& planned_stage = plan_.plan().stages[to_index(stage)];
  const int length =
      planned_stage.recompute_every > 0 ? planned_stage.recompute_every : to_int(planned_stage.layers.size());
  std::unordered_map<int, int> segment_of;
  for (std::size_t i = 0; i < planned_stage.layers.size(); ++i)
    segment_of[layers_.index(planned_stage.layers[i])] = to_int(i) / length;
  std::map<int, Bytes> saved;
  Recomputed out;
  for (const int i : members_[to_index(stage)].layers) {
    const Layer& layer = graph_.layers[to_index(i)];
    Bytes& sum = saved[segment_of.at(i)];
    sum += bytes_saved(layer);
    out.largest = std::max(out.largest, sum);
  }
  std::set<std::pair<int, int>> crossing;  // layer and output, -1: all of them
  for (const int e : members_[to_index(stage)].edges) {
    const Edge& edge = graph_.edges[to_index(e)];
    const auto source = segment_of.find(edge.source);
    if (source != segment_of.end() && segment_of.at(edge.destination) > source->second)
      crossing.emplace(edge.source, edge.output.value_or(-1));
  }
  for (const auto& [source, output] : crossing) {
    const Layer& layer = graph_.layers[to_index(source)];
    out.kept += output < 0 ? activation_bytes(layer) : layer.outputs[to_index(output)].bytes;
  }
  return out;
}

Bytes StageMemories::loaded(int stage) const {
  std::set<int> inputs;
  for (const int e : members_[to_index(stage)].edges) {
    const int source = graph_.edges[to_index(e)].source;
    if (is_input(graph_.layers[to_index(source)])) inputs.insert(source);
  }
  Bytes out;
  for (const int i : inputs) out += activation_bytes(graph_.layers[to_index(i)]);
  return out;
}

RankMemory StageMemories::operator()(int stage, int in_flight) const {
  const Stage& planned_stage = plan_.plan().stages[to_index(stage)];
  const ScheduleEntry& schedule = plan_.schedule();
  std::vector<const Layer*> layers;
  Bytes frozen;
  Bytes written;
  Bytes saved;
  Bytes largest;
  Bytes workspace;
  for (const int i : members_[to_index(stage)].layers) {
    const Layer& layer = graph_.layers[to_index(i)];
    layers.push_back(&layer);
    frozen += layer.frozen_bytes;
    written += layer.written_bytes;
    saved += bytes_saved(layer);
    largest = std::max(largest, activation_bytes(layer));
    workspace = std::max(workspace, layer.workspace_bytes.value_or(activation_bytes(layer)));
  }
  const Bytes parameters = held_parameter_bytes(layers);
  Bytes received;
  Bytes unsaved;  // received tensors that a layer released where the model was whole, as nothing saves them
  Bytes receiving;
  Bytes sending;
  const auto tensors = [&](int boundary) -> const std::vector<BoundaryTensor>& {
    return plan_.plan().boundaries[to_index(boundary)].tensors;
  };
  for (const int b : plan_.incoming(stage)) {
    for (const BoundaryTensor& tensor : tensors(b)) {
      received += tensor.bytes;
      if (schedule.trains && tensor.gradient) sending += tensor.bytes;
      const std::vector<Output>& outputs = graph_.layers[to_index(layers_.index(tensor.layer))].outputs;
      const bool kept = !tensor.output || outputs[to_index(*tensor.output)].saved.value_or(true);
      if (!kept) unsaved += tensor.bytes;
    }
  }
  receiving = received;
  for (const int b : plan_.outgoing(stage)) {
    for (const BoundaryTensor& tensor : tensors(b)) {
      if (schedule.trains && tensor.gradient) receiving += 2 * tensor.bytes;
    }
  }

  RankMemory out;
  out.parts[MemoryPart::Parameters] = parameters;
  if (frozen > Bytes(0)) out.parts[MemoryPart::Frozen] = frozen;
  if (schedule.trains) {
    out.parts[MemoryPart::Gradients] = gradient_bytes(graph_.types, parameters);
    const Bytes updated =
        sums_.empty() ? parameters : most_updated_bytes(sums_[to_index(stage)], plan_.ranks_of(stage), parameters);
    out.parts[MemoryPart::Optimizer] = optimizer_bytes(graph_, updated);
    out.parts[MemoryPart::Activations] = in_flight * (saved + received + unsaved);
    if (planned_stage.recompute) {
      const Recomputed again = recomputed(stage);
      const Bytes run_again = schedule.splits_backward ? in_flight * (saved + unsaved) : again.largest + unsaved;
      out.parts[MemoryPart::Activations] = in_flight * (received + again.kept + written) + run_again;
    }
    out.parts[MemoryPart::Sending] = sending;
  } else {
    out.parts[MemoryPart::Activations] = in_flight * received + largest;
  }
  const int versions = weight_versions_bound(schedule, plan_.shape(), plan_.position_of(stage));
  if (versions > 1) out.parts[MemoryPart::OlderVersions] = parameters * (versions - 1);
  out.parts[MemoryPart::Inputs] = in_flight * loaded(stage);
  out.parts[MemoryPart::Receiving] = receiving;
  out.parts[MemoryPart::Workspace] = workspace;
  if (graph_.library_bytes > Bytes(0)) out.parts[MemoryPart::Libraries] = graph_.library_bytes;
  if (schedule.trains) {
    const bool copies = plan_.replicas(stage) > 1 && schedule.weights != Weights::Flushed;
    out.parts[MemoryPart::Reduction] = copies ? gradient_bytes(graph_.types, parameters) : Bytes(0);
  }
  for (const auto& [name, bytes] : out.parts) out.total += bytes;
  return out;
}

}  // namespace stagecraft
