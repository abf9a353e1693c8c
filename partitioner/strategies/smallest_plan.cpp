#include "partitioner/strategies/smallest_plan.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "costmodel/index.h"
#include "partitioner/candidate.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/search/local_search.h"
#include "partitioner/search/search_time.h"
#include "partitioner/search/search_tuning.h"
#include "partitioner/strategies/auto.h"
#include "partitioner/strategies/equal_drafts.h"
#include "partitioner/strategies/optimal.h"

namespace stagecraft::partitioner {
namespace {

std::vector<SmallestPlan> starts_of(const Graph& graph, const Topology& topology, const CostModel& model,
                                    const Constraints& constraints) {
  std::vector<SmallestPlan> out;
  const auto add = [&](std::string origin, Candidate candidate, const Plan& plan) {
    const Bytes need = model.memory(graph, topology, BoundPlan(plan)).peak;
    out.push_back({std::move(origin), std::move(candidate), need});
  };
  if (std::optional<EqualDraft> equal = smallest_equal_draft(graph, topology, constraints)) {
    try {
      const Plan plan = plan_of_candidate(graph, topology, equal->candidate, constraints.plan);
      add(std::move(equal->origin), std::move(equal->candidate), plan);
    } catch (const std::invalid_argument&) {}  // the schedule cannot run it
  }
  if (out.empty() || device_count(topology) <= SearchTuning::kCheapDevices) {
    for (Drafted& draft : uneven_drafts(graph, topology, constraints).plans)
      add(std::move(draft.origin), std::move(draft.candidate), draft.plan);
  }
  std::ranges::stable_sort(out, {}, &SmallestPlan::need);
  return out;
}

}  // namespace

std::optional<SmallestPlan> smallest_plan(const Graph& graph, const Topology& topology, const CostModel& model,
                                          const Constraints& constraints, Seconds time) {
  std::vector<SmallestPlan> starts = starts_of(graph, topology, model, constraints);
  if (starts.empty()) return std::nullopt;
  SmallestPlan out = starts.front();
  const PipelineCosts costs(graph, topology, constraints.plan);
  const std::optional<int> microbatches = microbatches_of_a_step(constraints.plan);
  const auto candidate_of = [&](const Split& split) {
    return given_candidate(graph, costs.partition(split), {}, {}, {}, microbatches, split.chunks,
                           costs.schedule().placement);
  };
  // The local search minimises seconds: one for each byte.
  const auto need = [&](const Split& split, Seconds upper_bound) -> std::optional<Seconds> {
    try {
      const BoundPlan plan(plan_of_candidate(graph, topology, candidate_of(split), constraints.plan));
      const Seconds found(static_cast<double>(model.memory(graph, topology, plan).peak.value));
      return found < upper_bound ? std::optional(found) : std::nullopt;
    } catch (const std::invalid_argument&) { return std::nullopt; }  // the schedule cannot run it
  };
  Movable movable;
  movable.stages = !constraints.stages && constraints.replicas.empty();
  movable.replicas = constraints.replicas.empty();
  movable.devices = costs.devices();
  movable.is_step = false;
  SearchTime clock(time);
  clock.allow_some(1);
  for (std::size_t i = 0; i < std::min(SearchTuning::kSmallestStarts, starts.size()) && !clock.is_up(); ++i) {
    const Candidate& start = starts[i].candidate;
    const Split split = improved(costs, costs.split_of(start.partition, start.chunks), movable, need, clock.stop());
    const std::optional<Seconds> found = need(split, Seconds(static_cast<double>(out.need.value)));
    if (found) out = {kOptimalStrategy, candidate_of(split), Bytes(static_cast<std::int64_t>(found->value))};
  }
  return out;
}

}  // namespace stagecraft::partitioner
