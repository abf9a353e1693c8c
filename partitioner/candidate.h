#pragma once

#include <compare>
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

/// How a stage recomputes: Stage::recompute and Stage::recompute_every.
struct StageRecomputation {
  bool recompute = false;
  int every = 0;
  friend auto operator<=>(const StageRecomputation&, const StageRecomputation&) = default;
};

/// The layers and devices of the stages: a strategy's answer before it becomes a plan.
struct Candidate {
  Partition partition;
  std::vector<std::vector<int>> devices;  ///< for each stage, one per replica; empty: as make_plan assigns them
  int chunks = 1;                         ///< Plan::chunks
  std::vector<int> warmups;               ///< Plan::warmups; empty: by warmup_counts
  std::vector<StageRecomputation> recomputation = {};  ///< of each stage; empty: that of the settings
  std::optional<Seconds> steady_state;  ///< slowest stage's time per microbatch, by the strategy's own estimate
  bool endless = false;                 ///< RankedPlan::endless
  friend bool operator==(const Candidate&, const Candidate&) = default;
};

/// The microbatches of one step, where each step ends before the next: replicas beyond this number are idle. Absent if
/// steps overlap.
[[nodiscard]] std::optional<int> microbatches_of_a_step(const PlanSettings& settings);

/// The number of replicas of each stage.
[[nodiscard]] std::vector<int> replicas_of(const Plan& plan);

/// The layers and replicas of the plan's stages. Throws as layer_index does.
[[nodiscard]] Partition partition_of(const Graph& graph, const Plan& plan);

/// The plan of one candidate, with its devices, warm-ups, recomputation and steady state. Throws as make_plan does, and
/// for tied parameters under an asynchronous schedule, which runs do not support.
[[nodiscard]] Plan plan_of_candidate(const Graph& graph, const Topology& topology, const Candidate& candidate,
                                     const PlanSettings& settings);

/// A plan with its prediction; `origin` is Plan::strategy, `endless` is Candidate::endless. Throws as
/// CostModel::predict does; std::runtime_error if its action lists deadlock.
[[nodiscard]] RankedPlan predicted_plan(const std::string& origin, const Graph& graph, const Topology& topology,
                                        const BoundPlan& plan, bool endless, const CostModel& costs,
                                        const Constraints& constraints);

/// plan_of_candidate with its prediction; `origin` is Plan::strategy. Throws as make_plan and CostModel::predict do;
/// std::runtime_error if its action lists deadlock.
[[nodiscard]] RankedPlan predicted_plan(const std::string& origin, const Graph& graph, const Topology& topology,
                                        const Candidate& candidate, const CostModel& costs,
                                        const Constraints& constraints);

/// Memory that a plan may use on a device: the smaller of Constraints::memory_limit and the topology's own (the largest
/// over its device types); absent: unlimited.
[[nodiscard]] std::optional<Bytes> memory_limit(const Topology& topology, const Constraints& constraints);

/// The stage with the largest bound of its memory if that is above the limit, as text: "stage 1 needs up to 2.1 GiB on
/// each device, the limit is 1.0 GiB"; with chunks the stages of a device together, "stages 1, 3 need up to ...". Empty
/// if all fit.
[[nodiscard]] std::string memory_excess(const RankedPlan& ranked, const Topology& topology,
                                        const Constraints& constraints);

/// The candidate of the same request for another graph and topology; absent if it has none.
using CandidateOf = std::function<std::optional<Candidate>(const Graph&, const Topology&)>;

/// The ranking of one candidate: its predicted_plan. Infeasible if that does not fit in memory; the reason lists what
/// would fit among the candidates of `again`.
[[nodiscard]] StrategyResult rank_one(const std::string& origin, const Graph& graph, const Topology& topology,
                                      const Candidate& candidate, const CostModel& costs,
                                      const Constraints& constraints, const CandidateOf& again);

}  // namespace stagecraft::partitioner
