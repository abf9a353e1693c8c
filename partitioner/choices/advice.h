#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// The best of the candidates of `auto` for a request with another setting.
struct Alternative {
  std::string change;  ///< "--recompute-every 1"
  double samples = 1;  ///< the samples of a microbatch, as a multiple of those of the request
  RankedPlan plan;
};

/// Which settings to try, for how long, and what is of interest.
struct AlternativeSearch {
  Seconds shorter_than;            ///< for as many samples
  bool more_microbatches = false;  ///< also two and four times as many
  Seconds time;
};

/// What other settings give: recomputation of whole stages and of 1, 2, 4, ... layers, where memory is limited and the
/// request does not recompute; the other synchronous schedules; twice as many microbatches of half the samples, as if
/// each sample took as long; the shortest step for as many samples first. Only those whose step is shorter than asked;
/// of more microbatches, whose step is shorter in proportion. Does not search.
[[nodiscard]] std::vector<Alternative> alternatives(const Graph& graph, const Topology& topology,
                                                    const CostModel& costs, const Constraints& constraints,
                                                    const AlternativeSearch& wanted);

/// Notes on the ranking's first plan, one line each: settings with which a plan is at least a tenth faster, with the
/// predicted step; and if more than a tenth of the devices are idle, the reason and what would use these devices.
/// Searches for up to `time`. `mark` comes before every figure.
[[nodiscard]] std::vector<std::string> advice(const Graph& graph, const Topology& topology, const CostModel& costs,
                                              const Constraints& constraints, const Ranking& ranking, Seconds time,
                                              const std::string& mark);

}  // namespace stagecraft::partitioner
