#pragma once

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

/// The plan of one candidate, with devices, steady state and predicted iteration. Throws as make_plan and predict do;
/// std::runtime_error if its action lists never end.
[[nodiscard]] RankedPlan predicted_plan(const Graph& graph, const Topology& topology, const Candidate& candidate,
                                        const PlanSettings& settings, const StrategyOptions& options);

/// First stage whose predicted memory is above the limit, told for people: "stage 1 needs 2.1 GiB on each device, the
/// limit is 1.0 GiB". Empty if all fit.
[[nodiscard]] std::string memory_excess(const RankedPlan& ranked, const Topology& topology,
                                        const StrategyOptions& options);

/// Candidates of all strategies that know no regex: pipedream with priced transfers, with and without replicas, and
/// equal times on 1, 2, ... stages, each stage alone or on all devices that are left over evenly. Those that fit come
/// first, then by predicted iteration; plans that are the same stand once. Infeasible if none fits, naming the least
/// excess.
[[nodiscard]] std::variant<std::vector<RankedPlan>, Infeasible> rank_plans(const Graph& graph, const Topology& topology,
                                                                           const PlanSettings& settings,
                                                                           const StrategyOptions& options);

}  // namespace stagecraft
