#pragma once

#include <functional>
#include <optional>
#include <string>

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// The name of the strategy.
inline constexpr const char* kOptimalStrategy = "optimal";

/// "optimal": the plan with the shortest predicted step among all contiguous stages on the graph, with any number of
/// replicas for each, on devices in order (as make_plan assigns them). Where the constraints do not give the chunks of
/// a schedule that runs several stages on a device, 1, 2, 4 and 8 are compared. Never worse than `auto`. On multi-level
/// topologies, other placements of the best plans are tried too.
/// Ranking::lower_bound says how far the first plan can be from the best one. The option kTimeLimit limits the search
/// beyond the candidates of `auto`.
/// How: best first by a lower bound. The search enumerates splits up to a bound that rises until it reaches the best
/// predicted step, and predicts the splits that a tighter bound does not exclude.
[[nodiscard]] Strategy optimal_strategy();

/// The answer of `optimal` if only plans that are shorter than a known one are of interest.
struct ShorterPlan {
  std::optional<RankedPlan> plan;  ///< the best one that fits; absent: no shorter plan was found
  /// No plan that `optimal` considers has a shorter predicted step. Equals the step of `plan` if `plan` is the best. If
  /// no plan is shorter than the known one, this is the known step; without a known plan, kForever.
  Seconds lower_bound;
  bool is_complete = false;  ///< a longer time limit would prove no more, and find more only by chance
};

/// A lower bound of the predicted step of all plans that `optimal` considers, found in milliseconds: `upper_bound` if
/// all plans are proved to be at least as long, else a smaller bound.
[[nodiscard]] Seconds quick_bound(const Graph& graph, const Topology& topology, const CostModel& costs,
                                  const Constraints& constraints, Seconds upper_bound);

/// The best of the candidates of `auto` whose step is shorter than `upper_bound`; absent `upper_bound`: the best one.
/// Does not search; when `stop` returns true, leaves out what candidates are left. Throws std::invalid_argument as
/// `optimal` does.
[[nodiscard]] ShorterPlan drafted_plan(const Graph& graph, const Topology& topology, const CostModel& costs,
                                       const Constraints& constraints, std::optional<Seconds> upper_bound,
                                       const std::function<bool()>& stop);

/// The answer of `optimal` if its step is shorter than `upper_bound`, in less time than all of its search takes; absent
/// `upper_bound`: its answer. Throws std::invalid_argument as `optimal` does.
[[nodiscard]] ShorterPlan shorter_plan(const Graph& graph, const Topology& topology, const CostModel& costs,
                                       const Constraints& constraints, std::optional<Seconds> upper_bound);

}  // namespace stagecraft::partitioner
