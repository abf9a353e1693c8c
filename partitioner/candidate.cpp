#include "partitioner/candidate.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/layers_by_id.h"
#include "costmodel/prediction/device_types.h"
#include "costmodel/prediction/throughput.h"
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
  out.plan.iteration = out.prediction.iteration;
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

}  // namespace stagecraft::partitioner
