#pragma once

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
/// Its ranking says how far from the best its first plan can be at most: see Ranking::lower_bound. The option
/// kTimeLimit is how long it may search, beyond the candidates of `auto`.
/// How: best first by a lower bound. Splits are enumerated up to a bound that rises until it reaches the best predicted
/// step; those that a tighter bound does not exclude are predicted.
[[nodiscard]] Strategy optimal_strategy();

/// What `optimal` finds where only a plan that is shorter than a known one is of interest.
struct ShorterPlan {
  std::optional<RankedPlan> plan;  ///< the best one that fits; absent: none that is shorter was found
  /// No plan that `optimal` considers has a shorter predicted step. The plan's own step if that is the best; the known
  /// step, or if there is none kForever, if no plan is shorter.
  Seconds lower_bound;
  bool is_complete = false;  ///< a longer time limit proves no more, and finds no more except by chance
};

/// A lower bound of the predicted step of all plans that `optimal` considers, found in milliseconds: `upper_bound` if
/// it proves that none is shorter than that, else a smaller one.
[[nodiscard]] Seconds quick_bound(const Graph& graph, const Topology& topology, const CostModel& costs,
                                  const Constraints& constraints, Seconds upper_bound);

/// The best of the candidates of `auto` whose step is shorter than `upper_bound`; absent `upper_bound`: the best one.
/// Does not search. Throws std::invalid_argument as `optimal` does.
[[nodiscard]] ShorterPlan drafted_plan(const Graph& graph, const Topology& topology, const CostModel& costs,
                                       const Constraints& constraints, std::optional<Seconds> upper_bound);

/// The answer of `optimal` if its step is shorter than `upper_bound`, in less time than all of its search takes; absent
/// `upper_bound`: its answer. Throws std::invalid_argument as `optimal` does.
[[nodiscard]] ShorterPlan shorter_plan(const Graph& graph, const Topology& topology, const CostModel& costs,
                                       const Constraints& constraints, std::optional<Seconds> upper_bound);

}  // namespace stagecraft::partitioner
