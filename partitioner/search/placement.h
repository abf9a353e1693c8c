#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/search/predicted_plans.h"
#include "partitioner/search/search_context.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// The ways to assign devices to stages, one device per replica, other than in order: (1) no stage spans two groups of
/// the innermost level, and the largest stages are placed first; (2) in each run of equally replicated stages, replica
/// j of all stages is as close together as possible; (3) the same for replicas j, j + g, ... of all stages, if g > 1
/// divides all their numbers: these compute the same microbatches. With chunks, stages that differ by the number of
/// positions share devices. Lists each way once; empty if none differs from the order.
[[nodiscard]] std::vector<std::vector<std::vector<int>>> placements(const Topology& topology,
                                                                    const std::vector<int>& replicas, int chunks,
                                                                    Placement placement = Placement::Loop);

/// Predicts the best plans on other devices, where links differ.
class PlacedPlans {
 public:
  /// All arguments must outlive it.
  PlacedPlans(const Graph& graph, const Topology& topology, const Constraints& constraints, PredictedPlans& plans)
      : graph_(graph), topology_(topology), constraints_(constraints), plans_(plans) {}

  /// Whether other devices can make a difference and may be chosen.
  [[nodiscard]] bool is_useful() const { return topology_.levels.size() > 1 && constraints_.plan.listed.empty(); }

  /// Predicts the placements() of the best plans, each once, until `stop` says so. Does nothing if that is not useful.
  void try_placements(const std::function<bool()>& stop);

  /// Improves the best of `starts` and of the plans that are not in order by local search, with the devices that suit
  /// each split best. Does nothing if that is not useful.
  void improve(const SearchContext& context, const std::vector<Split>& starts, const std::function<bool()>& stop);

 private:
  using Key = std::pair<std::vector<int>, std::vector<int>>;  ///< stages of layers, and replicas
  [[nodiscard]] Candidate candidate_of(const RankedPlan& ranked) const;

  const Graph& graph_;
  const Topology& topology_;
  const Constraints& constraints_;
  PredictedPlans& plans_;
  std::set<Key> placed_;
  std::map<Key, std::optional<Seconds>> steps_;  ///< of splits with the devices that suit them best
};

}  // namespace stagecraft::partitioner
