#include "costmodel/prediction/stage_costs.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <utility>

#include "costmodel/gradient_sums.h"
#include "costmodel/index.h"
#include "costmodel/links/collectives.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/prediction/transfer_costs.h"
#include "costmodel/text/units_text.h"

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

namespace {

/// What the inputs of a microbatch that a stage reads cost it.
struct InputTimes {
  Seconds forward;  ///< in the stage's forward
  Seconds beside;   ///< of the host, while the device computes
};

/// Those of each stage, if they were measured. Times of input layers in imported profiles do not count: PipeDream's
/// include its own data loader.
std::vector<InputTimes> input_times(const Graph& graph, const BoundPlan& plan) {
  std::set<std::pair<int, int>> reads;  // (stage, input)
  for (const Edge& edge : graph.edges) {
    const Layer& source = graph.layers[to_index(edge.source)];
    if (!is_input(source) || source.forward.count == 0) continue;
    reads.emplace(*plan.stage_of(graph.layers[to_index(edge.destination)].id), edge.source);
  }
  std::vector<InputTimes> out(to_index(plan.stages()));
  for (const auto& [stage, input] : reads) {
    const Layer& layer = graph.layers[to_index(input)];
    out[to_index(stage)].forward += layer.forward.median;
    if (layer.loading) out[to_index(stage)].beside += layer.loading->median;
  }
  return out;
}

/// An input-bound rank.
struct DataWait {
  int stage = 0;    ///< the first of the rank's that reads data
  Seconds loading;  ///< of a microbatch
  Seconds work;     ///< of the rank, for a microbatch
};

/// A thread of the host loads microbatches ahead, during updates too. Where that takes longer than all that the rank
/// computes, the rank waits for the rest.
std::vector<DataWait> data_waits(const std::vector<StageCost>& costs, const std::vector<InputTimes>& inputs,
                                 const BoundPlan& plan) {
  std::vector<DataWait> out;
  const auto microbatches = static_cast<double>(plan.plan().microbatches);
  for (int position = 0; position < plan.positions(); ++position) {
    DataWait wait{.stage = -1, .loading = {}, .work = {}};
    for (const int s : plan.stages_at(position)) {
      const StageCost& cost = costs[to_index(s)];
      wait.work += cost.forward;
      if (plan.schedule().trains)
        wait.work += cost.backward + cost.weight_gradient + cost.update * (plan.replicas(s) / microbatches);
      wait.loading += inputs[to_index(s)].beside;
      if (wait.stage < 0 && inputs[to_index(s)].beside > Seconds(0)) wait.stage = s;
    }
    if (wait.stage >= 0 && wait.loading > wait.work) out.push_back(wait);
  }
  return out;
}

/// With parts, the gradients are only scattered.
Seconds sum_time(const GradientSum& sum, const std::vector<int>& devices, const Topology& topology) {
  return sum.parts.empty() ? all_reduce_time(sum.bytes, devices, topology)
                           : reduce_scatter_time(sum.bytes, devices, topology);
}

/// The buckets of a replicated stage's gradients. A `split` backward leaves the gradients to later parts, so all
/// buckets wait for its end.
std::vector<ReduceBucket> reduce_buckets(const std::vector<const Layer*>& layers, const Topology& topology,
                                         const std::vector<int>& devices, const std::vector<GradientSum>& sums,
                                         bool split, double closure) {
  std::vector<ReduceBucket> out;
  Seconds left;
  for (const Layer* layer : layers) left += split ? Seconds(0) : layer->backward.median * closure;
  std::size_t layer = layers.size();
  for (const GradientSum& bucket : sums) {
    if (bucket.tied) continue;
    while (layer > bucket.layer) left -= layers[--layer]->backward.median * closure;
    out.push_back({sum_time(bucket, devices, topology), std::max(left, Seconds(0))});
  }
  return out;
}

/// Costs of a microbatch and an update of a stage, without data loading and reduce. `parts`: of its backward, if the
/// schedule splits it. `creating`: creating_share.
StageCost compute_cost(const std::vector<const Layer*>& layers, bool recompute, const SplitBackwardTimes* parts,
                       double closure, double creating) {
  StageCost out;
  Seconds accumulation;
  const std::vector<Bytes> held = first_held_bytes(layers);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const Layer& layer = *layers[i];
    out.forward += layer.forward.median;
    out.backward += layer.backward.median;
    accumulation += accumulation_time(layer);
    if (layer.update) out.update += layer.update->median * share_updated(layer, held[i]);
  }
  const Seconds spared = accumulation * (creating * closure);
  const auto without = [&](Seconds time) { return std::max(time - spared, Seconds(0)); };
  out.forward = out.forward * closure;
  out.backward = without(out.backward * closure);
  out.update = out.update * closure;
  if (parts) {
    out.whole_backward = out.backward;
    out.backward = parts->inputs * closure;
    out.weight_gradient = parts->weights * closure;
    Seconds& adding = out.weight_gradient > Seconds(0) ? out.weight_gradient : out.backward;
    adding = without(adding);
  }
  if (recompute) {
    out.backward += out.forward;
    if (out.whole_backward) *out.whole_backward += out.forward;
  }
  return out;
}

/// Bytes of activations that a rank at `position` holds at most, if its stages save as much as each other.
double held_bytes(const BoundPlan& plan, const std::vector<std::vector<const Layer*>>& layers, int position) {
  Bytes saved;
  for (const int stage : plan.stages_at(position)) {
    if (plan.plan().stages[to_index(stage)].recompute) continue;
    for (const Layer* layer : layers[to_index(stage)]) saved += bytes_saved(*layer);
  }
  const int in_flight = plan.schedule().in_flight_bound(plan.shape(), position);
  return static_cast<double>(saved.value) * in_flight / plan.plan().chunks;
}

void multiply(StageCost& cost, double factor) {
  for (Seconds StageCost::* part : {&StageCost::forward, &StageCost::backward, &StageCost::weight_gradient})
    cost.*part = cost.*part * factor;
  if (cost.whole_backward) *cost.whole_backward = *cost.whole_backward * factor;
}

/// Of any parameters, for ratios of what is moved.
constexpr Bytes kSample{4};

/// The part of a measured update that an update without division takes: it looks for values that are not finite (reads
/// the gradient), divides the gradient (reads and writes it), and reads and writes the parameter and the optimizer's
/// state, all bound by memory. Without division the gradient is not written.
double undivided_part(const Graph& graph) {
  const Bytes update = update_bytes(graph, kSample);
  const Bytes gradient = gradient_bytes(graph.types, kSample);
  return (update + gradient) / (update + 2 * gradient);
}

/// Time of the copy of its parameters that an asynchronous stage makes in an update, if older versions are in use. It
/// reads and writes each value. The update itself, whose time is known, reads the gradient, and reads and writes the
/// parameter and the optimizer's state; both are bound by memory.
Seconds copy_time(const Graph& graph, const BoundPlan& plan, int stage, Seconds update) {
  if (!plan.asynchronous() || weight_versions_bound(plan.schedule(), plan.shape(), plan.position_of(stage)) < 2) {
    return Seconds(0);
  }
  return update * (2 * kSample / update_bytes(graph, kSample));
}

/// Where sums have parts, a rank updates its own, and then gets the parameters that the others have updated; or before
/// it computes, with StateSharding::Parameters. The rank with the most counts.
void divide_update(StageCost& cost, const std::vector<const Layer*>& layers, const Topology& topology,
                   const BoundPlan& plan, int stage, const std::vector<GradientSum>& sums) {
  const Bytes held = held_parameter_bytes(layers);
  if (held > Bytes(0)) cost.update = cost.update * (most_updated_bytes(sums, plan.ranks_of(stage), held) / held);
  for (const GradientSum& sum : sums) {
    if (sum.parts.empty()) continue;
    (!sum.tied && plan.gathers(stage) ? cost.gather : cost.update) +=
        all_gather_time(gathered_bytes(sum), plan.devices_of(sum.ranks), topology);
  }
}

/// Sets the costs of a stage's `sums` of gradients, which come one after the other.
void add_reduce(StageCost& cost, const std::vector<const Layer*>& layers, const Topology& topology,
                const BoundPlan& plan, int stage, const std::vector<GradientSum>& sums, double closure) {
  const bool buckets = plan.plan().gradient_bucket_bytes && !plan.asynchronous();
  if (buckets) {
    cost.buckets = reduce_buckets(layers, topology, plan.plan().stages[to_index(stage)].devices, sums,
                                  plan.schedule().splits_backward, closure);
  }
  for (const GradientSum& sum : sums) {
    if (!sum.tied && buckets) continue;
    (sum.tied ? cost.tied : cost.reduce) += sum_time(sum, plan.devices_of(sum.ranks), topology);
  }
}

/// Costs of each stage with one type of devices, as if no rank waited for data.
std::vector<StageCost> costs_without_waits(const Graph& graph, const Topology& topology, const BoundPlan& plan,
                                           const std::vector<InputTimes>& inputs) {
  const double closure = closure_factor(graph);
  const auto layers = layers_of_stages(graph, plan.plan());
  const auto sums = gradient_sums(graph, plan);
  std::vector<SplitBackwardTimes> parts;
  if (plan.schedule().splits_backward) parts = split_backward_times(graph, plan);
  const bool slows = graph.in_flight_slowdown && plan.schedule().trains;
  Bytes all;
  for (const Layer& layer : graph.layers) all += is_input(layer) ? Bytes(0) : bytes_saved(layer);
  std::vector<StageCost> out;
  for (int s = 0; s < plan.stages(); ++s) {
    const bool recomputes = plan.plan().stages[to_index(s)].recompute;
    StageCost cost = compute_cost(layers[to_index(s)], recomputes, parts.empty() ? nullptr : &parts[to_index(s)],
                                  closure, creating_share(plan.schedule(), plan.plan().microbatches, plan.replicas(s)));
    if (slows && !recomputes)
      multiply(cost, in_flight_factor(graph, held_bytes(plan, layers, plan.position_of(s)), all));
    cost.forward += inputs[to_index(s)].forward;
    const Seconds copy = copy_time(graph, plan, s, cost.update);
    const bool divides =
        plan.schedule().weights != Weights::Newest || plan.replicas(s) > 1 ||
        std::ranges::none_of(layers[to_index(s)], [](const Layer* layer) { return layer->accumulation.has_value(); });
    if (!divides) cost.update = cost.update * undivided_part(graph);
    cost.update += copy;
    divide_update(cost, layers[to_index(s)], topology, plan, s, sums[to_index(s)]);
    add_reduce(cost, layers[to_index(s)], topology, plan, s, sums[to_index(s)], closure);
    out.push_back(std::move(cost));
  }
  return out;
}

/// Costs of each stage with one type of devices.
std::vector<StageCost> costs_of_one_type(const Graph& graph, const Topology& topology, const BoundPlan& plan) {
  const std::vector<InputTimes> inputs = input_times(graph, plan);
  std::vector<StageCost> out = costs_without_waits(graph, topology, plan, inputs);
  for (const DataWait& wait : data_waits(out, inputs, plan))
    out[to_index(wait.stage)].forward += wait.loading - wait.work;
  return out;
}

}  // namespace

// Layer times are separate medians and do not include the time that an iteration loses between and around the layers.
// If the whole iteration was measured too, this is the factor that makes the layers add up to it.
double closure_factor(const std::vector<Layer>& layers, const std::optional<Timing>& iteration) {
  Seconds sum;
  for (const Layer& layer : layers) {
    if (is_input(layer)) continue;
    sum += layer.forward.median + layer.backward.median;
    if (layer.update) sum += layer.update->median;
  }
  if (!iteration || sum <= Seconds(0) || iteration->median <= Seconds(0)) return 1;
  return iteration->median / sum;
}

Seconds accumulation_time(const Layer& layer) {
  const Seconds weights = backward_parts(layer).weights.median;
  const Seconds most = weights > Seconds(0) ? std::min(weights, layer.backward.median) : layer.backward.median;
  return std::min(most, layer.accumulation.value_or(Timing{}).median);
}

double creating_share(const ScheduleEntry& schedule, int microbatches, int replicas) {
  if (schedule.weights == Weights::Newest) return 1;
  if (schedule.weights == Weights::Flushed && replicas > 1) return 0;
  return std::min(1.0, static_cast<double>(replicas) / std::max(1, microbatches));
}

double in_flight_factor(const Graph& graph, double held_bytes, Bytes all) {
  if (!graph.in_flight_slowdown || all <= Bytes(0)) return 1;
  const auto [microbatches, factor] = *graph.in_flight_slowdown;
  const double models = held_bytes / static_cast<double>(all.value);
  return 1 + (factor - 1) * std::clamp((models - 1) / (microbatches - 1), 0.0, 1.0);
}

double closure_factor(const Graph& graph) { return closure_factor(graph.layers, graph.iteration); }

std::vector<StageCost> stage_costs(const Graph& graph, const Topology& topology, const BoundPlan& plan) {
  if (topology.others.empty()) return costs_of_one_type(graph, topology, plan);
  const auto microbatch = [](const StageCost& cost) { return cost.forward + cost.backward + cost.weight_gradient; };
  std::vector<StageCost> out(plan.plan().stages.size());
  std::vector<bool> is_known(out.size());
  for (const std::string& type : types_of(topology, plan.plan())) {
    const std::vector<StageCost> costs = costs_of_one_type(graph_on(graph, type), topology, plan);
    for (std::size_t s = 0; s < out.size(); ++s) {
      if (!types_of(topology, plan.plan().stages[s].devices).contains(type)) continue;
      if (is_known[s] && microbatch(out[s]) >= microbatch(costs[s])) continue;
      out[s] = costs[s];
      is_known[s] = true;
    }
  }
  return out;
}

std::string data_wait_text(const Graph& graph, const Topology& topology, const BoundPlan& plan) {
  if (!topology.others.empty()) return "";
  const std::vector<InputTimes> inputs = input_times(graph, plan);
  std::string out;
  for (const DataWait& wait : data_waits(costs_without_waits(graph, topology, plan, inputs), inputs, plan)) {
    out += fmt::format(
        "{}stage {} is input-bound: loading a microbatch takes the host {}, computing it takes the device {}",
        out.empty() ? "" : "; ", wait.stage, format_seconds(wait.loading), format_seconds(wait.work));
  }
  return out;
}

}  // namespace stagecraft
