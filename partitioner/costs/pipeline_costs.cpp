#include "partitioner/costs/pipeline_costs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <stdexcept>

#include "costmodel/bound_plan.h"
#include "costmodel/gradient_sums.h"
#include "costmodel/index.h"
#include "costmodel/links/collectives.h"
#include "costmodel/prediction/stage_costs.h"
#include "partitioner/costs/action_replay.h"
#include "partitioner/costs/round_trips.h"

namespace stagecraft::partitioner {
namespace {

/// Of a period that a prediction measures over a window of steps: stages are not equally far ahead at both ends.
constexpr double kOfWindow = 0.99;
/// The most actions in the lists that are remembered.
constexpr std::size_t kMostActions = 4'000'000;

/// Microbatches for each pipeline position after which a stage holds its maximum.
constexpr int kFillings = 4;

/// The action lists of a split depend on its replicas and chunks alone.
std::vector<int> list_key(const Split& split) {
  std::vector<int> out = split.replicas;
  out.push_back(split.chunks);
  return out;
}

ScheduleEntry entry_of(const PlanSettings& settings) {
  ScheduleEntry out = schedule_by_name(settings.schedule);
  if (settings.listed.empty()) return out;
  out.trains = false;
  out.placement = placement_of(settings);
  for (const auto& list : settings.listed) {
    for (const Action& action : list) out.trains = out.trains || action.kind == ActionKind::Backward;
  }
  return out;
}

/// What replicas divide of parameters: the optimizer's state and, by the sharding, gradients and themselves.
Bytes divided_bytes(const Graph& graph, const PlanSettings& settings, Bytes parameters) {
  const bool gradients = settings.sharding >= StateSharding::Gradients;
  return optimizer_bytes(graph, parameters) + (gradients ? gradient_bytes(graph.types, parameters) : Bytes(0)) +
         (settings.sharding == StateSharding::Parameters ? parameters : Bytes(0));
}

/// The costs of a layer. `held`: the bytes of the layer's parameters that no earlier node holds. `devices`: among the
/// replicas of a stage at most.
NodeCosts costs_of(const Layer& layer, Bytes held, const ScheduleEntry& schedule, const PlanSettings& settings,
                   double closure, const Graph& graph, double waiting_factor, int devices) {
  NodeCosts out;
  out.forward = layer.forward.median * closure;
  out.least = out.forward;
  out.gradients = gradient_bytes(graph.types, held);
  out.untied = gradient_bytes(graph.types, untied_bytes(layer));
  if (settings.gradient_bucket_bytes) {
    for (const Bytes parameter : untied_parameters(layer))
      out.untied_gradients.push_back(gradient_bytes(graph.types, parameter));
  }
  out.bytes.state = held + layer.frozen_bytes;
  if (!schedule.trains) return out;
  const bool listed = !settings.listed.empty();  // its lists may leave a backward out
  const BackwardParts parts = backward_parts(layer);
  const Seconds again = settings.recompute ? out.forward : Seconds(0);
  // The most that replicas would spare.
  const double creating = schedule.weights == Weights::Flushed ? creating_share(schedule, settings.microbatches, 1) : 1;
  const Seconds spared = accumulation_time(layer) * creating;
  const auto without = [&](Seconds time) { return std::max(Seconds(0), time - spared) * closure; };
  const Seconds whole = without(layer.backward.median);
  out.backward = whole + again;
  out.inputs = parts.weights.median > Seconds(0) ? parts.inputs.median * closure : without(parts.inputs.median);
  out.weights = without(parts.weights.median);
  out.separable = parts.separable;
  if (layer.update) out.update = layer.update->median * (closure * share_updated(layer, held));
  const Seconds split = std::min(whole, out.inputs + out.weights);
  if (!listed) out.least += again + (schedule.splits_backward ? split : whole);
  if (!schedule.splits_backward && !listed) out.least_return = out.backward;
  if (settings.sharding == StateSharding::None) {
    out.bytes.state += optimizer_bytes(graph, held);
  } else {
    // Stages that share a parameter divide its state among all their replicas, however many these are.
    out.bytes.divided = divided_bytes(graph, settings, std::min(held, untied_bytes(layer)));
    out.update = out.update * (1.0 / devices);
  }
  if (settings.sharding == StateSharding::Parameters) out.bytes.state -= std::min(held, untied_bytes(layer));
  // Of sharded gradients, a stage has all for a while only.
  if (settings.sharding < StateSharding::Gradients) out.bytes.gradients = out.gradients;
  if (settings.recompute) out.bytes.per_microbatch = layer.written_bytes;
  const Bytes saved = bytes_saved(layer);
  const bool is_kept = !settings.recompute || schedule.splits_backward;
  (is_kept ? out.bytes.per_microbatch : settings.recompute_every > 0 ? out.bytes.segment : out.bytes.once) = saved;
  if (schedule.splits_backward)
    out.waiting =
        Bytes(static_cast<std::int64_t>(waiting_factor * static_cast<double>(kept_gradient_bytes(layer).value)));
  out.workspace = layer.workspace_bytes.value_or(activation_bytes(layer));
  return out;
}

}  // namespace

PipelineCosts::PipelineCosts(const Graph& graph, const Topology& topology, const PlanSettings& settings)
    : graph_(graph), topology_(topology), settings_(settings), schedule_(entry_of(settings)), least_reduce_(topology) {
  devices_ = device_count(topology);
  waits_ = schedule_.weights == Weights::Flushed && settings.listed.empty();
  margins_ = memory_margins(true, topology.others.empty() ? topology.device.kind : DeviceKind::Unknown);
  if (waits_ && schedule_.trains) {
    PipelineShape alone;
    alone.microbatches = 2;
    alone.stages = alone.chunks = least_chunks(schedule_);
    alone.replicas.assign(to_index(alone.stages), 1);
    alone.warmups = warmup_counts(alone.replicas);
    holds_all_ = schedule_.in_flight_bound(alone, 0) == alone.microbatches * alone.chunks;
  }
  closure_ = closure_factor(graph);
  const double waiting_factor = 1 + margins_.kept_gradients / (1 + margins_.total);
  unmeasured_factor_ = 1 + memory_margins(false, DeviceKind::Unknown).activations / (1 + margins_.total);
  std::vector<int> node_of(graph.layers.size(), -1);
  std::vector<const Layer*> layers;  // by node
  for (const int layer : topological_order(graph)) {
    if (is_input(graph.layers[to_index(layer)])) continue;
    node_of[to_index(layer)] = to_int(layer_of_node_.size());
    layer_of_node_.push_back(layer);
    layers.push_back(&graph.layers[to_index(layer)]);
  }
  const std::vector<Bytes> held = first_held_bytes(layers);
  for (std::size_t v = 0; v < layers.size(); ++v) {
    nodes_.push_back(costs_of(*layers[v], held[v], schedule_, settings, closure_, graph, waiting_factor, devices_));
    if (graph.estimate || !layers[v]->saved_bytes || !layers[v]->workspace_bytes) nodes_.back().bytes.unmeasured = 1;
    if (!layers[v]->replicable && schedule_.trains && schedule_.weights == Weights::Flushed)
      single_.push_back(to_int(v));
  }
  for (int v = 0; v < to_int(nodes_.size()); ++v) {
    for (const TiedParameter& tied : graph.layers[to_index(layer_of_node_[to_index(v)])].tied) {
      tied_[tied.name].bytes = tied.bytes;
      tied_[tied.name].nodes.push_back(v);
    }
  }
  dag_.nodes = to_int(nodes_.size());
  read_.resize(nodes_.size());
  made_.resize(nodes_.size());
  loads_.resize(nodes_.size());
  std::map<std::pair<int, int>, std::set<int>> readers;  // of (producer, output; -1: all)
  std::vector<std::set<int>> loaded(nodes_.size());
  std::map<int, std::set<int>> readers_of_input;
  for (const Edge& edge : graph.edges) {
    const int to = node_of[to_index(edge.destination)];
    const Layer& source = graph.layers[to_index(edge.source)];
    if (is_input(source)) {
      readers_of_input[edge.source].insert(to);
      if (source.forward.count == 0 || !loaded[to_index(to)].insert(edge.source).second) continue;
      loads_[to_index(to)].emplace_back(edge.source, source.forward.median);
      if (source.loading && topology.others.empty()) nodes_[to_index(to)].loading += source.loading->median;
      continue;
    }
    const int from = node_of[to_index(edge.source)];
    dag_.edges.emplace_back(from, to);
    readers[{from, edge.output.value_or(-1)}].insert(to);
  }
  // A stage holds an input once, however many of its layers read it.
  for (const auto& [input, nodes] : readers_of_input) {
    const std::int64_t bytes = activation_bytes(graph.layers[to_index(input)]).value;
    for (const int node : nodes) nodes_[to_index(node)].bytes.loaded += Bytes(bytes / to_int(nodes.size()));
  }
  for (const auto& [key, nodes] : readers) {
    const Layer& layer = graph.layers[to_index(layer_of_node_[to_index(key.first)])];
    CrossingValue value;
    value.producer = key.first;
    value.readers.assign(nodes.begin(), nodes.end());
    Bytes bytes = activation_bytes(layer);
    int copies = 1;  // a stage that receives the value keeps two copies if no layer saves the value
    if (key.second >= 0) {
      const Output& output = layer.outputs[to_index(key.second)];
      bytes = output.bytes;
      value.gradient = output.requires_grad;
      if (!output.saved.value_or(true) && !settings.recompute) copies = 2;
    }
    value.gradient = value.gradient && schedule_.trains;
    // Between segments of single layers, every value is kept like a received one, so each value counts here, once.
    const bool is_counted = settings.recompute && settings.recompute_every == 1;
    const Bytes kept = bytes * copies;
    nodes_[to_index(value.producer)].outgoing += bytes;
    if (schedule_.trains && !is_counted) value.bytes = kept;
    for (const int reader : value.readers) {
      NodeCosts& node = nodes_[to_index(reader)];
      node.received += value.bytes;
      node.incoming += bytes;
      if (schedule_.trains && is_counted) node.bytes.per_microbatch += Bytes(kept.value / to_int(value.readers.size()));
    }
    for (const Level& level : topology.levels) {
      value.forward.push_back(transfer_time(level.link, bytes));
      value.back.push_back(value.gradient ? value.forward.back() : Seconds(0));
      const Seconds all = level.link.processing ? Seconds(0) : value.forward.back();
      value.ports.push_back(all - std::min(all, level.link.latency));
    }
    if (topology.levels.size() == 1) {
      value.port = value.ports.front();
      if (value.gradient) value.port_back = value.port;
    }
    value.least_forward = *std::min_element(value.forward.begin(), value.forward.end());
    value.least_back = *std::min_element(value.back.begin(), value.back.end());
    const int number = to_int(values_.size());
    made_[to_index(value.producer)].push_back(number);
    for (const int node : value.readers) read_[to_index(node)].push_back(number);
    values_.push_back(std::move(value));
  }
}

double PipelineCosts::share(int replicas) const {
  const int m = settings_.microbatches;
  if (schedule_.weights != Weights::Flushed) return kOfWindow * m / replicas;
  return (m + replicas - 1) / replicas;
}

/// A rank that works w and updates u of a step of m microbatches computes max(w, loading - u r / m) seconds for each of
/// at least m / r of them. With the update, that is at least m loading / r.
Seconds PipelineCosts::least_loading(Seconds loading, int replicas) const {
  if (!waits_) return Seconds(0);
  return loading * ((1 - kEqual) * settings_.microbatches / replicas);
}

Seconds PipelineCosts::least_reduce(Bytes bytes, int replicas, Seconds backward, std::optional<int> first) const {
  return reduce_time(bytes, replicas, backward, false, first);
}

Seconds PipelineCosts::least_reduce_of_more(Bytes bytes, int replicas, Seconds backward) const {
  return reduce_time(bytes, replicas, backward, true, {});
}

/// `is_least`: the time is a bound for any number of bytes from `bytes` on. The same holds if parameters are tied, as
/// stages may share them.
Seconds PipelineCosts::reduce_time(Bytes bytes, int replicas, Seconds backward, bool is_least,
                                   std::optional<int> first) const {
  if (replicas < 2 || !waits_ || !schedule_.trains || bytes <= Bytes(0)) return Seconds(0);
  // Early sums may fit in where a device waits.
  if (schedule_.chunked && settings_.sharding >= StateSharding::Gradients) return Seconds(0);
  const bool may_be_more = is_least || !tied_.empty();
  // By formula, a reduce-scatter and an all-gather take no less than an all-reduce of what is gathered; measured curves
  // say nothing. Gathers before the computation may be hidden.
  if (divides() && (!reduce_grows() || settings_.sharding == StateSharding::Parameters)) return Seconds(0);
  if (divides()) bytes = gathered(bytes);
  if (!settings_.gradient_bucket_bytes) return least_reduce_.time(bytes, replicas, may_be_more, first);
  // A stage's buckets are summed one after the other, none before the last backward begins. If the schedule splits the
  // backward, gradients come with the second part.
  if (schedule_.splits_backward) return Seconds(0);
  const Bytes bucket = divides() ? gathered(*settings_.gradient_bucket_bytes) : *settings_.gradient_bucket_bytes;
  const Seconds sums = least_reduce_.time_in_parts(bytes, replicas, bucket, dag_.nodes, may_be_more, first);
  return std::max(Seconds(0), sums - backward);
}

ReduceLine PipelineCosts::reduce_line(Bytes most, int replicas) const {
  if (replicas < 2 || !waits_ || !schedule_.trains || settings_.sharding == StateSharding::Parameters) return {};
  if (schedule_.chunked && settings_.sharding >= StateSharding::Gradients) return {};
  if (settings_.gradient_bucket_bytes && schedule_.splits_backward) return {};
  ReduceLine out = least_reduce_.line_below(most, replicas, settings_.gradient_bucket_bytes ? dag_.nodes : 1);
  if (divides()) out.per_byte = out.per_byte * (gathered(Bytes(4)) / Bytes(4));
  return out;
}

const std::vector<std::vector<Action>>& PipelineCosts::lists_of(const Split& split) const {
  std::vector<int> key = list_key(split);
  const auto known = lists_.find(key);
  if (known != lists_.end()) return known->second;
  if (actions_ > kMostActions) {
    lists_.clear();
    actions_ = 0;
  }
  std::vector<std::vector<Action>> lists = compute_lists(schedule_, shape_of(split));
  for (const std::vector<Action>& list : lists) actions_ += list.size();
  return lists_.emplace(std::move(key), std::move(lists)).first->second;
}

const std::vector<std::vector<Action>>* PipelineCosts::lists(const std::vector<int>& replicas) const {
  Split split;
  split.replicas = replicas;
  return can_run(split) ? &lists_of(split) : nullptr;
}

PipelineShape PipelineCosts::shape_of(const Split& split) const {
  PipelineShape out;
  out.stages = to_int(split.replicas.size());
  out.microbatches = settings_.microbatches;
  out.chunks = split.chunks;
  out.replicas = split.replicas;
  out.warmups = warmup_counts(split.replicas);
  return out;
}

bool PipelineCosts::can_run(const Split& split) const {
  const int stages = to_int(split.replicas.size());
  if (stages % split.chunks != 0) return false;
  if (!runs_chunks(schedule_, split.chunks)) return false;
  if (schedule_.check || schedule_.equal_replicas || schedule_.weights == Weights::StepBefore) {
    try {
      check_shape(schedule_, shape_of(split));
    } catch (const std::invalid_argument&) { return false; }
  }
  const auto is_unequal = [&](int replicas) { return settings_.microbatches % replicas != 0; };
  if (settings_.sharding == StateSharding::Parameters && std::ranges::any_of(split.replicas, is_unequal)) return false;
  // A stage with one of these layers has a single replica. If the stages are open, some stage must have one.
  for (const int v : single_) {
    const int replicas = split.stage_of_node.empty() ? *std::ranges::min_element(split.replicas)
                                                     : split.replicas[to_index(split.stage_of_node[to_index(v)])];
    if (replicas > 1) return false;
  }
  return std::accumulate(split.replicas.begin(), split.replicas.begin() + positions_of(split), 0) <= devices_;
}

Bytes PipelineCosts::countable(Bytes limit) const {
  // The share of the margins is rounded for each stage of a device.
  constexpr Bytes kRounding{64};
  const double most = static_cast<double>((limit - margins_.base + kRounding).value) / (1 + margins_.total);
  return Bytes(static_cast<std::int64_t>(std::floor(most))) - graph_.library_bytes;
}

Bytes PipelineCosts::message_margin(Bytes messages) const {
  // memory_bound adds each message twice, countable() divides by the margins.
  return Bytes(static_cast<std::int64_t>(2 * static_cast<double>(messages.value) / (1 + margins_.total)));
}

std::int64_t PipelineCosts::least_in_flight(std::int64_t flight, int replicas) const {
  if (!waits_ || !schedule_.trains) return 1;
  const std::int64_t share = (settings_.microbatches + replicas - 1) / replicas;
  return holds_all_ ? share : std::min(share, flight / replicas);
}

Seconds PipelineCosts::reduce_of_devices(Bytes bytes, int devices, int distance) const {
  if (devices < 2 || !waits_ || !schedule_.trains || (devices - 1) * distance >= devices_) return Seconds(0);
  std::vector<int> all;
  for (int i = 0; i < devices; ++i) all.push_back(i * distance);
  return sum_time(bytes, all) + gather_time(bytes, all);
}

Seconds PipelineCosts::sum_time(Bytes gradients, const std::vector<int>& devices) const {
  return divides() ? reduce_scatter_time(gradients, devices, topology_)
                   : all_reduce_time(gradients, devices, topology_);
}

Seconds PipelineCosts::gather_time(Bytes gradients, const std::vector<int>& devices) const {
  const bool counts = divides() && settings_.sharding != StateSharding::Parameters;
  return counts ? all_gather_time(gathered(gradients), devices, topology_) : Seconds(0);
}

std::size_t PipelineCosts::level_of(int a, int b) const { return to_index(joining_level(topology_, a, b)); }

int PipelineCosts::microbatches_that_fill(const Split& split) const {
  if (holds_all_ || !waits_) return settings_.microbatches;
  // The order of work repeats itself after the warm-up.
  const int filling = positions_of(split) * *std::ranges::max_element(split.replicas);
  return std::min(settings_.microbatches, kFillings * filling);
}

std::vector<int> PipelineCosts::held(const Split& split, bool splits) const {
  const std::size_t stages = split.replicas.size();
  std::vector<int> out(stages, 1);
  if (!schedule_.trains || !settings_.listed.empty()) return out;
  if (holds_all_ || schedule_.alternates || !waits_) {
    std::int64_t all = 0;
    for (std::size_t s = stages; s-- > 0;) {
      all = flight(all, split.replicas[s]);
      out[s] = static_cast<int>(waits_ ? least_in_flight(all, split.replicas[s]) : all / split.replicas[s]);
    }
    return out;
  }
  return held_of(split, splits).most;
}

std::vector<int> PipelineCosts::held_later(const Split& split, bool splits) const {
  if (!schedule_.trains || !settings_.listed.empty() || !waits_) return std::vector<int>(split.replicas.size(), 0);
  return held_of(split, splits).later;
}

const PipelineCosts::Held& PipelineCosts::held_of(const Split& split, bool splits) const {
  const auto [known, is_new] = held_.try_emplace(list_key(split));
  if (!is_new) return known->second[splits ? 1 : 0];
  PipelineShape shape = shape_of(split);
  shape.microbatches = microbatches_that_fill(split);
  const std::vector<int> first = first_ranks(split.replicas, positions_of(split), schedule_.placement);
  const std::vector<std::vector<Action>> lists = compute_lists(schedule_, shape);
  for (int s = 0; s < shape.stages; ++s) {
    const std::vector<Action>& list = lists[to_index(first[to_index(s)])];
    for (const bool split_too : {false, true}) {
      Held& held = known->second[split_too ? 1 : 0];
      held.most.push_back(in_flight(list, s, split_too));
      held.later.push_back(in_flight(list, s, split_too, /*later=*/true));
    }
  }
  return known->second[splits ? 1 : 0];
}

std::vector<int> PipelineCosts::held_together(const Split& split) const {
  if (split.chunks == 1) return held(split, /*splits=*/false);
  std::vector<int> out(split.replicas.size(), 1);
  if (!schedule_.trains || !waits_) return out;
  PipelineShape shape = shape_of(split);
  shape.microbatches = microbatches_that_fill(split);
  const int positions = positions_of(split);
  const std::vector<int> first = first_ranks(split.replicas, positions, schedule_.placement);
  const std::vector<std::vector<Action>> lists = compute_lists(schedule_, shape);
  for (int position = 0; position < positions; ++position) {
    std::vector<int> now(out.size());
    std::vector<int> fullest = now;
    int all = 0;
    int most = 0;
    for (const Action& action : lists[to_index(first[to_index(position)])]) {
      const int change = action.kind == ActionKind::Forward ? 1 : action.kind == ActionKind::Backward ? -1 : 0;
      now[to_index(action.stage)] += change;
      all += change;
      if (all <= most) continue;
      most = all;
      fullest = now;
    }
    for (const int s : stages_at(position, shape.stages, positions, schedule_.placement))
      out[to_index(s)] = fullest[to_index(s)];
  }
  return out;
}

Bytes PipelineCosts::least_peak(const StageBytes& stage, std::int64_t in_flight, int replicas, Bytes workspace,
                                bool later, std::optional<int> most) const {
  // Replicas keep their gradients. A single replica holds as many microbatches again after the first backward if more
  // follow.
  const bool accumulates = (schedule_.alternates || in_flight == 1) && settings_.microbatches > in_flight;
  const bool with_gradients = later || (waits_ && schedule_.trains && (replicas > 1 || accumulates));
  return peak_bytes(stage, in_flight, with_gradients, schedule_.trains ? workspace : Bytes(0),
                    stage.unmeasured > 0 ? unmeasured_factor_ : 1) -
         stage.state + least_state(stage, most.value_or(devices_));
}

// The replica with the most microbatches may update the fewest values. A cut is at most half a block from an equal one,
// see owned_values, so each part of a sum lacks at most a block; each full bucket is a sum, and so is the rest.
Bytes PipelineCosts::least_state(const StageBytes& stage, int replicas) const {
  if (stage.divided <= Bytes(0)) return stage.state;
  const Bytes value = value_bytes(graph_.types.parameters);
  const std::int64_t state = divided_bytes(graph_, settings_, value).value;
  const std::int64_t gradient = gradient_bytes(graph_.types, value).value;
  const std::int64_t later = settings_.sharding >= StateSharding::Gradients ? gradient : 0;
  if (replicas < 2) return stage.state + Bytes(stage.divided.value / state * (state - later));
  const std::optional<Bytes>& bucket = settings_.gradient_bucket_bytes;
  const std::int64_t sums = bucket ? stage.divided.value / state * gradient / bucket->value + 1 : 1;
  const std::int64_t block = kOwnedBlock * state;
  return stage.state + Bytes(std::max<std::int64_t>(0, stage.divided.value / replicas - sums * block));
}

Bytes PipelineCosts::least_memory(const Split& split) const {
  std::vector<StageSums> sums = sums_of(split);
  for (const CrossingValue& value : values_) {
    const int from = split.stage_of_node[to_index(value.producer)];
    std::set<int> stages;
    for (const int reader : value.readers) stages.insert(split.stage_of_node[to_index(reader)]);
    for (const int stage : stages) {
      if (stage != from) sums[to_index(stage)].bytes.per_microbatch += value.bytes;
    }
  }
  std::int64_t in_flight_all = 0;
  Bytes most;
  for (int p = positions_of(split); p-- > 0;) {
    const int replicas = split.replicas[to_index(p)];
    in_flight_all = flight(in_flight_all, replicas);
    Bytes states;
    Bytes largest;  // of one stage, beside its state
    for (const int s : stages_at(p, to_int(sums.size()), positions_of(split), schedule_.placement)) {
      // With chunks, the other stages of the device may hold most of the microbatches in flight.
      const std::int64_t held = split.chunks == 1 ? least_in_flight(in_flight_all, replicas) : 1;
      const StageBytes& stage = sums[to_index(s)].bytes;
      const Bytes state = least_state(stage, replicas);
      states += state;
      largest =
          std::max(largest, least_peak(stage, held, replicas, sums[to_index(s)].workspace, false, replicas) - state);
    }
    most = std::max(most, states + largest);
  }
  most += graph_.library_bytes;
  const auto margin = static_cast<std::int64_t>(static_cast<double>(most.value) * margins_.total);
  return most + Bytes(std::max<std::int64_t>(0, margin - 2)) + margins_.base;
}

Partition PipelineCosts::partition(const Split& split) const {
  Partition out;
  out.stage_of_layer.assign(graph_.layers.size(), -1);
  for (int v = 0; v < dag_.nodes; ++v)
    out.stage_of_layer[to_index(layer_of_node_[to_index(v)])] = split.stage_of_node[to_index(v)];
  out.replicas = split.replicas;
  return out;
}

Split PipelineCosts::split_of(const Partition& partition, int chunks) const {
  Split out;
  for (const int layer : layer_of_node_) out.stage_of_node.push_back(partition.stage_of_layer[to_index(layer)]);
  out.replicas = partition.replicas;
  out.chunks = chunks;
  return out;
}

}  // namespace stagecraft::partitioner
