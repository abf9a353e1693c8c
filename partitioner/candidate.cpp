#include "partitioner/candidate.h"

#include <algorithm>
#include <set>
#include <stdexcept>
#include <utility>
#include <variant>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/index.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/prediction/verify.h"
#include "costmodel/text/units_text.h"
#include "partitioner/remedies.h"

namespace stagecraft::partitioner {

std::optional<int> microbatches_of_a_step(const PlanSettings& settings) {
  if (schedule_by_name(settings.schedule).weights != Weights::Flushed) return std::nullopt;
  return settings.microbatches;
}

std::vector<int> replicas_of(const Plan& plan) {
  std::vector<int> out;
  for (const Stage& stage : plan.stages) out.push_back(to_int(stage.devices.size()));
  return out;
}

int devices_of(const Plan& plan) {
  std::set<int> devices;
  for (const Stage& stage : plan.stages) devices.insert(stage.devices.begin(), stage.devices.end());
  return to_int(devices.size());
}

bool is_in_order(const Plan& plan) {
  int next = 0;
  for (std::size_t s = 0; s < plan.stages.size() / to_index(plan.chunks); ++s) {
    for (const int device : plan.stages[s].devices) {
      if (device != next++) return false;
    }
  }
  return true;
}

Bytes peak_memory(const Prediction& prediction) {
  Bytes most;
  for (const RankMemory& memory : prediction.timeline.memory) most = std::max(most, memory.total);
  return most;
}

Partition partition_of(const Graph& graph, const Plan& plan) {
  const LayersById layers(graph);
  Partition out;
  out.stage_of_layer.assign(graph.layers.size(), -1);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::string& id : plan.stages[s].layers) out.stage_of_layer[to_index(layers.index(id))] = to_int(s);
  }
  out.replicas = replicas_of(plan);
  return out;
}

Plan plan_of_candidate(const Graph& graph, const Topology& topology, const Candidate& candidate,
                       const PlanSettings& settings) {
  PlanSettings with_chunks = settings;
  with_chunks.chunks = candidate.chunks;
  Plan out = make_plan(graph, topology, candidate.partition, with_chunks);
  if (!out.tied.empty() && schedule_of(out).weights != Weights::Flushed) {
    throw std::invalid_argument("parameter \"" + out.tied.front().parameter +
                                "\" is shared by several layers, which schedule \"" + out.schedule +
                                "\" cannot keep equal; use 1f1b");
  }
  for (std::size_t s = 0; s < candidate.devices.size(); ++s) out.stages[s].devices = candidate.devices[s];
  if (!candidate.warmups.empty()) out.warmups = candidate.warmups;
  for (std::size_t s = 0; s < candidate.recomputation.size(); ++s) {
    out.stages[s].recompute = candidate.recomputation[s].recompute;
    out.stages[s].recompute_every = candidate.recomputation[s].every;
  }
  if (!candidate.devices.empty() || !candidate.warmups.empty()) validate(out, graph, topology);
  out.steady_state = candidate.steady_state;
  return out;
}

RankedPlan predicted_plan(const std::string& origin, const Graph& graph, const Topology& topology,
                          const BoundPlan& plan, bool endless, const CostModel& costs, const Constraints& constraints) {
  RankedPlan out;
  out.origin = origin;
  out.endless = endless;
  out.plan = plan.plan();
  out.plan.strategy = origin;
  auto predicted = costs.predict(graph, topology, plan);
  if (const auto* infeasible = std::get_if<Infeasible>(&predicted)) throw NoAnswerError("", *infeasible);
  out.prediction = std::move(std::get<Prediction>(predicted));
  set_times(out.plan, out.prediction);
  out.plan.sample_work = sample_work(graph, topology, out.plan);
  out.fits = memory_excess(out, topology, constraints).empty();
  return out;
}

RankedPlan predicted_plan(const std::string& origin, const Graph& graph, const Topology& topology,
                          const Candidate& candidate, const CostModel& costs, const Constraints& constraints) {
  const BoundPlan plan(plan_of_candidate(graph, topology, candidate, constraints.plan));
  return predicted_plan(origin, graph, topology, plan, candidate.endless, costs, constraints);
}

namespace {

std::optional<Bytes> smaller(const std::optional<Bytes>& a, const std::optional<Bytes>& b) {
  if (!a || !b) return a ? a : b;
  return std::min(*a, *b);
}

}  // namespace

std::optional<Bytes> memory_limit(const Topology& topology, const Constraints& constraints) {
  std::optional<Bytes> most = topology.device.memory;
  for (const DeviceRange& range : topology.others)
    most = most && range.device.memory ? std::optional(std::max(*most, *range.device.memory)) : std::nullopt;
  return smaller(constraints.memory_limit, most);
}

std::string memory_excess(const RankedPlan& ranked, const Topology& topology, const Constraints& constraints) {
  const std::vector<std::vector<int>> stages = stages_of_positions(ranked.prediction);
  const std::size_t positions = stages.size();
  std::vector<Bytes> needs(positions);
  for (std::size_t p = 0; p < positions; ++p) {
    for (const int s : stages[p]) {
      const StagePrediction& stage = ranked.prediction.stages[to_index(s)];
      needs[p] += std::max(stage.memory_bound, stage.memory.total);
    }
  }
  // The position that needs the most above what its devices have.
  std::size_t first = positions;
  std::optional<Bytes> limit;
  for (std::size_t p = 0; p < positions; ++p) {
    const auto device_limit = smaller(constraints.memory_limit, least_memory(topology, ranked.plan.stages[p].devices));
    if (!device_limit || needs[p] <= *device_limit || (limit && needs[p] - *device_limit <= needs[first] - *limit))
      continue;
    first = p;
    limit = device_limit;
  }
  if (!limit) return "";
  std::string who = ranked.plan.chunks > 1 ? "stages " : "stage ";
  for (const int s : stages[first]) who += (s == stages[first].front() ? "" : ", ") + std::to_string(s);
  return who + (ranked.plan.chunks > 1 ? " need up to " : " needs up to ") + format_bytes(needs[first]) +
         " on each device, the limit is " + format_bytes(*limit);
}

StrategyResult rank_one(const std::string& origin, const Graph& graph, const Topology& topology,
                        const Candidate& candidate, const CostModel& costs, const Constraints& constraints,
                        const CandidateOf& again) {
  const ToldSearch told(costs.progress, origin);
  RankedPlan ranked = predicted_plan(origin, graph, topology, candidate, costs, constraints);
  if (!ranked.fits) {
    const NeedOf need = [&](const Graph& g, const Topology& t, const PlanSettings& settings) -> std::optional<Bytes> {
      const auto other = again(g, t);
      if (!other) return std::nullopt;
      return costs.memory(g, t, BoundPlan(plan_of_candidate(g, t, *other, settings))).peak;
    };
    return Infeasible{memory_excess(ranked, topology, constraints) +
                          remedies_text(graph, topology, constraints.plan, *memory_limit(topology, constraints), need),
                      ErrorKind::DoesNotFit};
  }
  Ranking out;
  out.plans.push_back(std::move(ranked));
  return out;
}

Candidate given_candidate(const Graph& graph, Partition partition, std::vector<std::vector<int>> devices,
                          std::vector<int> warmups, const std::vector<int>& replicas, std::optional<int> microbatches,
                          int chunks, Placement placement) {
  if (!replicas.empty()) {
    if (!devices.empty()) throw std::invalid_argument("--replicas: the plan that was read already has replicas");
    if (replicas.size() != 1 && replicas.size() != partition.replicas.size()) {
      throw std::invalid_argument("replicas: found " + count_text(replicas.size(), "number") + " for " +
                                  count_text(partition.replicas.size(), "stage") + ", expected one, or one per stage");
    }
    for (std::size_t s = 0; s < partition.replicas.size(); ++s)
      partition.replicas[s] = replicas.size() == 1 ? replicas.front() : replicas[s];
  }
  std::vector<Seconds> times(partition.replicas.size());
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const int stage = partition.stage_of_layer[i];
    if (stage < 0) continue;
    times[to_index(stage)] += graph.layers[i].forward.median + graph.layers[i].backward.median;
  }
  check_chunks(to_int(times.size()), chunks);
  Candidate out;
  const int positions = to_int(times.size()) / chunks;
  std::vector<Seconds> of_device(to_index(positions));
  for (std::size_t s = 0; s < times.size(); ++s) {
    const int replicas_at_work = std::min(partition.replicas[s], microbatches.value_or(partition.replicas[s]));
    of_device[to_index(position_of(to_int(s), positions, placement))] += times[s] / replicas_at_work;
  }
  out.partition = std::move(partition);
  out.devices = std::move(devices);
  out.warmups = std::move(warmups);
  out.chunks = chunks;
  out.steady_state = *std::ranges::max_element(of_device);
  return out;
}

Candidate split_candidate(const Graph& graph, const std::vector<std::string>& names, const std::vector<int>& replicas,
                          std::optional<int> microbatches, int chunks, Placement placement) {
  return given_candidate(graph, partition_of_bounds(graph, bounds_at(layer_ids(graph), names)), {}, {}, replicas,
                         microbatches, chunks, placement);
}

std::optional<Infeasible> refutation(const RankedPlan& ranked, const Graph& graph, const Topology& topology) {
  const BoundPlan bound(ranked.plan);
  VerifyOptions options;
  options.steps = bound.step_window().steps;
  const auto lists = bound.action_lists(options.steps);
  auto proof = ranked.fits ? verify(bound, lists, graph, topology, options) : verify(bound, lists, options);
  if (auto* infeasible = std::get_if<Infeasible>(&proof)) return std::move(*infeasible);
  return std::nullopt;
}

void check_proved(const RankedPlan& ranked, const Graph& graph, const Topology& topology, const std::string& place) {
  if (const auto refuted = refutation(ranked, graph, topology))
    throw NoAnswerError(place + ": the plan is not proved: ", *refuted);
}

}  // namespace stagecraft::partitioner
