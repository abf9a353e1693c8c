#pragma once

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/choice.h"
#include "partitioner/choices/stage_constraints.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

struct ImproveOptions {
  Goal goal = {};
  StageConstraints hand = {};
  bool layers = true;                ///< layers move between neighbouring stages, stages are joined and cut in two
  bool recomputation = false;        ///< a stage recomputes or not, as a whole or layer by layer
  Seconds time = kDefaultTimeLimit;  ///< then the best plan so far
};

/// `start` after changes that each improve its predicted plan by the goal, until no change helps: move a layer to an
/// adjacent stage; add, remove or move a replica; join two adjacent stages; cut a stage in two; let a stage, or all,
/// recompute or not; try other placements().
/// Layers obey `hand`; stages and replicas obey the constraints. If the plan does not fit in memory, its memory is
/// reduced first. Equal calls give equal results unless time runs out. Throws as predicted_plan for `start` itself.
/// Precondition: `start` obeys `hand`.
[[nodiscard]] RankedPlan improved_plan(const std::string& origin, const Graph& graph, const Topology& topology,
                                       const CostModel& costs, const Constraints& constraints, const Candidate& start,
                                       const ImproveOptions& options);

}  // namespace stagecraft::partitioner
