#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/units.h"
#include "partitioner/candidate.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// Plans whose predicted steps differ by at most this share of the shorter one are ties: less than the variation of one
/// plan's step from run to run.
inline constexpr double kTie = 0.01;

/// The predicted plans of these candidates:
///   - pipedream with priced transfers, with and without replicas, for graphs of at most 4000 layers;
///   - profile with 1, 2, ... stages: of 1, 2, 4, ... replicas each, of as many replicas as microbatches, and spread
///     evenly over all devices;
///   - each of these without the replicas that have no microbatch;
///   - if the schedule can run several stages per device: profile on 2, 3, ... devices with 2, 4 and 8 stages each;
///   - the best EqualShares within memory, with devices in order and as in placements.
/// Constraints::stages, chunks and replicas restrict the candidates. Plans that fit come first: the fastest and its
/// ties by devices, then stages, then time; then the others by predicted iteration. Equal plans appear once. Infeasible
/// if no plan fits, with the smallest excess and what would fit, or if no candidate is possible.
[[nodiscard]] StrategyResult rank_plans(const Graph& graph, const Topology& topology, const CostModel& costs,
                                        const Constraints& constraints);

/// A candidate that became a plan.
struct Drafted {
  std::string origin;
  Candidate candidate;
  Plan plan;
};

struct Drafts {
  std::vector<Drafted> plans;
  std::vector<Skipped> skipped;
};

/// The candidates of rank_plans besides equal shares, as plans, without predictions. Throws as check_loss.
[[nodiscard]] Drafts uneven_drafts(const Graph& graph, const Topology& topology, const Constraints& constraints);

/// The candidates of rank_plans as plans, without predictions; `stop` as in equal_drafts. Of `costs`, asks for memory
/// only.
[[nodiscard]] Drafts drafts(
    const Graph& graph, const Topology& topology, const CostModel& costs, const Constraints& constraints,
    const std::function<bool()>& stop = [] { return false; });

/// "auto": rank_plans. Its objective is the predicted step.
[[nodiscard]] Strategy auto_strategy();

/// The smallest memory of the candidates of rank_plans, each by its largest stage, without simulation; absent if no
/// candidate is possible.
[[nodiscard]] std::optional<Bytes> least_need(const Graph& graph, const Topology& topology, const CostModel& costs,
                                              const Constraints& constraints);

/// Says that not even `smallest`, the plan that needs the least memory of those that were tried, fits: by how much, and
/// what would fit by remedies_text with `least_need`. `finding` says what is known: kNoPlanFits if it is proven that no
/// plan does. "no plan fits in memory; in the smallest (pipedream) stage 0 needs up to ...".
[[nodiscard]] Infeasible no_plan_fits(const std::string& finding, const RankedPlan& smallest, const Graph& graph,
                                      const Topology& topology, const CostModel& costs, const Constraints& constraints,
                                      const LeastNeed& least_need);

inline constexpr const char* kNoPlanFits = "no plan fits in memory";

/// Whether some layer needs more memory in a stage of its own than the limit.
[[nodiscard]] bool is_a_layer_too_large(const Graph& graph, const Topology& topology, const Constraints& constraints);

/// "skipped 3 candidates: schedule ... does not support replicas; gpipe, 1f1b, ... do (2); ... (1)"; empty if there are
/// none.
[[nodiscard]] std::string skipped_text(const std::vector<Skipped>& skipped);

}  // namespace stagecraft::partitioner
