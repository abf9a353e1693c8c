#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/plan.h"
#include "costmodel/predict.h"
#include "partitioner/strategy.h"

namespace stagecraft {

/// A plan with what it would do.
struct RankedPlan {
  std::string origin;  ///< the strategy and what was asked of it, "profile, 2 stages"
  Plan plan;
  Prediction prediction;
  bool fits = true;  ///< within the memory limit, and the device's memory if the topology states one
};

/// The plan of one candidate, with its devices, warm-ups and steady state. Throws as make_plan does.
[[nodiscard]] Plan plan_of_candidate(const Graph& graph, const Topology& topology, const Candidate& candidate,
                                     const PlanSettings& settings);

/// plan_of_candidate with its prediction. Throws as make_plan and predict do;
/// std::runtime_error if its action lists never end.
[[nodiscard]] RankedPlan predicted_plan(const Graph& graph, const Topology& topology, const Candidate& candidate,
                                        const PlanSettings& settings, const StrategyOptions& options);

/// What a plan may use of a device: the smaller of Constraints::memory_limit and the topology's own; absent: unlimited.
[[nodiscard]] std::optional<Bytes> memory_limit(const Topology& topology, const StrategyOptions& options);

/// The stage with the largest predicted memory where that is above the limit, told for people: "stage 1 needs 2.1 GiB
/// on each device, the limit is 1.0 GiB". Empty if all fit.
[[nodiscard]] std::string memory_excess(const RankedPlan& ranked, const Topology& topology,
                                        const StrategyOptions& options);

/// Candidates that are not in a ranking for one reason.
struct Skipped {
  std::string reason;  ///< of the first
  int count = 0;       ///< reasons that differ in numbers alone are one
};

/// "skipped 3 candidates: schedule ... runs stages without replicas (2); ... (1)"; empty without any.
[[nodiscard]] std::string skipped_text(const std::vector<Skipped>& skipped);

/// Plans whose predicted steps differ by at most this share of the shorter one count as equally fast: less than what
/// one plan's step varies from run to run.
inline constexpr double kTie = 0.01;

struct Ranking {
  std::vector<RankedPlan> plans;  ///< never empty, the first fits
  std::vector<Skipped> skipped;   ///< they do not suit the schedule, the number of microbatches or the constraints
  int slower = 0;                 ///< candidates not simulated: their compute alone takes longer than the best step
};

/// Candidates of all strategies that know no regex: pipedream with priced transfers, with and without replicas, and
/// equal times on 1, 2, ... stages, each of 1, 2, 4, ... replicas, as many as there are microbatches, and on all
/// devices that are left over evenly; each of them also without replicas that have no microbatch; with
/// Constraints::stages or replicas those alone. Those that fit come first: the fastest and what ties with it by
/// devices, then stages, then time; the others by predicted iteration. Plans that are the same stand once. Infeasible
/// if none fits, naming the least excess and what would fit, or if none suits.
[[nodiscard]] std::variant<Ranking, Infeasible> rank_plans(const Graph& graph, const Topology& topology,
                                                           const PlanSettings& settings,
                                                           const StrategyOptions& options);

/// Bytes of the neediest stage of the least needy candidate of rank_plans, which are not simulated; absent if none
/// suits.
[[nodiscard]] std::optional<Bytes> least_need(const Graph& graph, const Topology& topology,
                                              const PlanSettings& settings, const StrategyOptions& options);

/// Bytes of the neediest stage. Precondition: the plan is valid for the graph.
[[nodiscard]] Bytes need_of(const Graph& graph, const Plan& plan);

}  // namespace stagecraft
