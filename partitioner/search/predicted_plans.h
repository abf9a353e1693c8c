#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/index.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "partitioner/candidate.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// The split on devices in order.
[[nodiscard]] Candidate candidate_of_split(const Graph& graph, const PipelineCosts& costs,
                                           const Constraints& constraints, const Split& split);

/// The memory of that candidate's plan, with as few microbatches as fill it; absent if the schedule cannot run the
/// split, whose stages may share parameters.
[[nodiscard]] std::optional<PlanMemory> memory_of_split(const Graph& graph, const Topology& topology,
                                                        const CostModel& model, const PipelineCosts& costs,
                                                        const Constraints& constraints, const Split& split);

/// The plans that a search predicted. Of many only the best are kept, and of all but the best the spans are dropped.
class PredictedPlans {
 public:
  /// `origin`: RankedPlan::origin of plans by step_of. All arguments must outlive it.
  PredictedPlans(std::string origin, const Graph& graph, const Topology& topology, const CostModel& model,
                 const Constraints& constraints, const PipelineCosts& costs);

  [[nodiscard]] const std::string& origin() const { return origin_; }
  /// Excludes plans whose steps are not shorter than `step` from now on; best() is then at most `step`.
  void exclude_from(Seconds step) { shortest_.assign(to_index(constraints_.wanted), step); }

  /// The shortest step of a plan that fits in memory; absent while no plan does.
  [[nodiscard]] std::optional<Seconds> best() const {
    return shortest_.empty() ? std::nullopt : std::optional(shortest_.front());
  }
  /// The longest step of the Constraints::wanted best plans; absent while there are fewer plans.
  [[nodiscard]] std::optional<Seconds> last_wanted() const {
    return to_int(shortest_.size()) < constraints_.wanted ? std::nullopt : std::optional(shortest_.back());
  }
  /// Whether a plan with this lower bound cannot be shorter than last_wanted().
  [[nodiscard]] bool is_excluded(Seconds bound) const {
    return last_wanted() && bound >= *last_wanted() * (1 - kEqual);
  }
  /// A lower bound of the steps of the plans that fit but were dropped; kForever if none was.
  [[nodiscard]] Seconds least_dropped() const { return least_dropped_; }

  /// Predicts the candidate's plan and returns the step; absent if the plan does not fit in memory or cannot run.
  std::optional<Seconds> predict(const std::string& origin, const Candidate& candidate);

  /// Whether the split's plan on devices in order fits in memory; false if it cannot run.
  [[nodiscard]] bool fits(const Split& split) const;

  /// Predicts the split on devices in order, as predict does. Returns the step of a known split without a prediction.
  std::optional<Seconds> step_of(const Split& split);
  /// Makes a split known, without a step. False if the split was known before.
  bool make_known(const Split& split);
  /// Makes a split unknown again.
  void forget(const Split& split) { known_.erase(key_of(split)); }
  /// Sets the step of a known split's plan.
  void set_step(const Split& split, std::optional<Seconds> step);

  /// The splits with the shortest steps, best first; SearchTuning::kMostSplits at most.
  [[nodiscard]] const std::vector<std::pair<Seconds, Split>>& best_splits() const { return steps_; }

  /// The plans that are kept, best first: those that fit, by step; of those with the best step the one with the fewest
  /// devices, then stages.
  [[nodiscard]] const std::vector<RankedPlan>& sorted();
  /// The same; afterwards there are none.
  [[nodiscard]] std::vector<RankedPlan> take();

 private:
  using Key = std::tuple<std::vector<int>, std::vector<int>, int>;
  static Key key_of(const Split& split) { return {split.stage_of_node, split.replicas, split.chunks}; }
  void keep(RankedPlan ranked);

  std::string origin_;
  const Graph& graph_;
  const Topology& topology_;
  const CostModel& model_;
  const Constraints& constraints_;
  const PipelineCosts& costs_;
  std::optional<Bytes> limit_;
  std::vector<Seconds> shortest_;  ///< steps of plans that fit, ascending, as many as are wanted
  Seconds least_dropped_ = kForever;
  std::map<Key, std::optional<Seconds>> known_;
  std::vector<std::pair<Seconds, Split>> steps_;
  std::vector<RankedPlan> plans_;
};

}  // namespace stagecraft::partitioner
