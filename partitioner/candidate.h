#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

// From stages to ranked plans, for the strategies.

/// Which layers make up the stages, on which devices: what a strategy finds before it is a plan.
struct Candidate {
  Partition partition;
  std::vector<std::vector<int>> devices;  ///< of each stage, one per replica; empty: in order 0.. stage by stage
  std::vector<int> warmups;               ///< Plan::warmups; empty: by warmup_counts
  std::optional<Seconds> steady_state;    ///< slowest stage's time per microbatch, as the strategy itself reckons it
  bool endless = false;                   ///< RankedPlan::endless
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

/// The microbatches of one step, where each step ends before the next: replicas beyond them have nothing to do. Absent
/// where steps run into each other.
[[nodiscard]] std::optional<int> microbatches_of_a_step(const PlanSettings& settings);

/// The plan of one candidate, with its devices, warm-ups and steady state. Throws as make_plan does.
[[nodiscard]] Plan plan_of_candidate(const Graph& graph, const Topology& topology, const Candidate& candidate,
                                     const PlanSettings& settings);

/// plan_of_candidate with its prediction; `origin` is Plan::strategy. Throws as make_plan and CostModel::predict do;
/// std::runtime_error if its action lists never end.
[[nodiscard]] RankedPlan predicted_plan(const std::string& origin, const Graph& graph, const Topology& topology,
                                        const Candidate& candidate, const CostModel& costs,
                                        const Constraints& constraints);

/// What a plan may use of a device: the smaller of Constraints::memory_limit and the topology's own; absent: unlimited.
[[nodiscard]] std::optional<Bytes> memory_limit(const Topology& topology, const Constraints& constraints);

/// The stage with the largest predicted memory where that is above the limit, told for people: "stage 1 needs 2.1 GiB
/// on each device, the limit is 1.0 GiB". Empty if all fit.
[[nodiscard]] std::string memory_excess(const RankedPlan& ranked, const Topology& topology,
                                        const Constraints& constraints);

/// The candidate of the same request for another graph and topology; absent if it has none.
using CandidateOf = std::function<std::optional<Candidate>(const Graph&, const Topology&)>;

/// The ranking of one candidate: its predicted_plan. Infeasible if that needs more memory than there is, with what
/// would fit among the candidates that `again` gives.
[[nodiscard]] StrategyResult rank_one(const std::string& origin, const Graph& graph, const Topology& topology,
                                      const Candidate& candidate, const CostModel& costs,
                                      const Constraints& constraints, const CandidateOf& again);

}  // namespace stagecraft::partitioner
