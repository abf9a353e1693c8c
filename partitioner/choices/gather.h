#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

struct GatherOptions {
  std::string strategy = "";   ///< the strategy whose candidates to take; empty: all strategies
  bool fewer_devices = false;  ///< also the best plans on parts_of the topology
  bool recomputation = false;  ///< also with recomputation of whole stages and of single layers, unless it is asked for
};

/// Distinct plans that meet the constraints, all predicted on the same topology.
struct Gathered {
  std::vector<RankedPlan> plans;  ///< by predicted step; with a strategy first in its order. Without spans
  std::vector<Skipped> skipped;   ///< as Ranking::skipped
  int not_simulated = 0;          ///< candidates for which there was no time
  /// Ranking::lower_bound of the first question whose ranking has a bound.
  std::optional<Seconds> lower_bound;
  /// See Ranking::others_lower_bound; absent if several questions were asked.
  std::optional<Seconds> others_lower_bound;
  Infeasible reason;  ///< why `plans` is empty; no text otherwise
};

/// The plans that the strategies consider, without those that do not fit in memory. Without a named strategy: the plans
/// of all strategies except those that need an argument, and the candidates of `auto`, as many of which are predicted
/// as `optimal`'s time limit allows. The limit is shared by the parts of the topology. Throws std::invalid_argument as
/// plan_with for a named strategy.
[[nodiscard]] Gathered gather(const Graph& graph, const Topology& topology, const CostModel& costs,
                              const Constraints& constraints, const GatherOptions& options);

}  // namespace stagecraft::partitioner
