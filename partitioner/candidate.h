#pragma once

#include <compare>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/errors.h"
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

/// The number of devices in the plan's stages, each counted once.
[[nodiscard]] int devices_of(const Plan& plan);

/// Whether the stages' devices are 0, 1, 2, ... from stage to stage.
[[nodiscard]] bool is_in_order(const Plan& plan);

/// The predicted memory of the rank that needs the most.
[[nodiscard]] Bytes peak_memory(const Prediction& prediction);

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

/// A given split as a candidate: stages that begin at the layers `names`, see bounds_at, with `replicas` for each
/// (empty: 1 each). The steady state is the slowest stage's forward + backward time over its replicas, of which only as
/// many count as there are `microbatches` (absent: all). Throws std::invalid_argument as bounds_at does, and for
/// replicas that are not one number per stage. With `chunks` stages per device (see check_chunks, which throws) it is
/// that of the slowest device.
[[nodiscard]] Candidate split_candidate(const Graph& graph, const std::vector<std::string>& names,
                                        const std::vector<int>& replicas, std::optional<int> microbatches = {},
                                        int chunks = 1, Placement placement = Placement::Loop);

/// The same for a partition, with `devices` for each stage (empty: in order) and `warmups` (empty: by warmup_counts).
/// `replicas`, if not empty, replace the partition's own. Throws std::invalid_argument for both replicas and devices.
[[nodiscard]] Candidate given_candidate(const Graph& graph, Partition partition, std::vector<std::vector<int>> devices,
                                        std::vector<int> warmups, const std::vector<int>& replicas,
                                        std::optional<int> microbatches = {}, int chunks = 1,
                                        Placement placement = Placement::Loop);

/// What the verifier finds wrong with a plan; absent if it proves that the plan's action lists follow the plan and end,
/// and that no device needs more memory than it has. Memory is not checked of a plan with RankedPlan::fits false, which
/// a strategy with its own memory rule may choose. Precondition: the plan is valid for graph and topology.
[[nodiscard]] std::optional<Infeasible> refutation(const RankedPlan& ranked, const Graph& graph,
                                                   const Topology& topology);

/// Throws NoAnswerError "PLACE: the plan is not proved: REASON" for a plan with a refutation.
void check_proved(const RankedPlan& ranked, const Graph& graph, const Topology& topology, const std::string& place);

}  // namespace stagecraft::partitioner
