#pragma once

#include <functional>
#include <variant>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/units.h"
#include "partitioner/search_progress.h"

namespace stagecraft::partitioner {

/// The memory of one stage: the share of its replica with the largest bound in the memory of that replica's rank.
struct StageMemory {
  RankMemory memory;  ///< at the rank's peak, by part
  Bytes bound;        ///< that no run exceeds
  friend bool operator==(const StageMemory&, const StageMemory&) = default;
};

/// The memory of a plan.
struct PlanMemory {
  std::vector<StageMemory> stages;  ///< one per stage of the plan, in its order
  Bytes peak;  ///< bound of the rank that needs the most, with all its stages; no run exceeds it on any rank
  friend bool operator==(const PlanMemory&, const PlanMemory&) = default;
};

/// What a strategy may ask about a plan that is valid for graph and topology.
///
/// `optimal` searches with the lower bounds of partitioner/exact, which come from the graph, the topology and the
/// schedule, not from the model: PipelineCosts::lower_bound of a step, and least_memory. Its result is the best plan by
/// a model, and its Ranking::lower_bound holds, if no plan's prediction is below them: a step takes at least as long as
/// the longest path through its actions, each as long as it takes alone.
struct CostModel {
  /// How long a step takes and what each stage needs; Infeasible if the plan's action lists deadlock. Throws
  /// std::invalid_argument for a plan that cannot be predicted.
  std::function<std::variant<Prediction, Infeasible>(const Graph&, const Topology&, const BoundPlan&)> predict;
  /// What each stage needs on the topology's devices, as from `predict` but without predicting times.
  std::function<PlanMemory(const Graph&, const Topology&, const BoundPlan&)> memory;
  /// A lower bound of the step from `predict`, found much faster; plans that it excludes are not predicted. Unset: all
  /// are predicted.
  std::function<Seconds(const Graph&, const BoundPlan&)> least_step = nullptr;
  /// Receives search progress; may be null.
  SearchProgress* progress = nullptr;
};

/// The cost model of costmodel/: predict(), replay_memory(), and as lower bound the compute of the busiest rank.
/// `progress` is PredictOptions::progress.
[[nodiscard]] CostModel simulated_costs(std::function<void(double done)> progress = {});
/// The same for searches that tell `progress` how far they are; counts the plans that are predicted. It must outlive
/// the result.
[[nodiscard]] CostModel simulated_costs(SearchProgress& progress);

}  // namespace stagecraft::partitioner
