#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/candidate.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// Plans whose predicted steps differ by at most this share of the shorter one count as equally fast: less than what
/// one plan's step varies from run to run.
inline constexpr double kTie = 0.01;

/// The predicted plans of candidates of other strategies: pipedream with priced transfers, with and without replicas,
/// and profile on 1, 2, ... stages, each of 1, 2, 4, ... replicas, as many as there are microbatches, and on all
/// devices that are left over evenly; each of them also without replicas that have no microbatch; with
/// Constraints::stages or replicas those alone. Those that fit come first: the fastest and what ties with it by
/// devices, then stages, then time; the others by predicted iteration. Plans that are the same stand once. Infeasible
/// if none fits, naming the least excess and what would fit, or if none suits.
[[nodiscard]] StrategyResult rank_plans(const Graph& graph, const Topology& topology, const CostModel& costs,
                                        const Constraints& constraints);

/// "auto": rank_plans. Its objective is the predicted step.
[[nodiscard]] Strategy auto_strategy();

/// Bytes of the neediest stage of the least needy candidate of rank_plans, which are not simulated; absent if none
/// suits.
[[nodiscard]] std::optional<Bytes> least_need(const Graph& graph, const Topology& topology, const CostModel& costs,
                                              const Constraints& constraints);

/// "skipped 3 candidates: schedule ... runs stages without replicas (2); ... (1)"; empty without any.
[[nodiscard]] std::string skipped_text(const std::vector<Skipped>& skipped);

}  // namespace stagecraft::partitioner
