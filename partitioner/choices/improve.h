#pragma once

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/by_hand.h"
#include "partitioner/choices/choice.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

struct ImproveOptions {
  Wish wish = {};
  ByHand hand = {};
  bool layers = true;                ///< layers move between neighbouring stages, stages are joined and cut in two
  Seconds time = kDefaultTimeLimit;  ///< then the best plan so far
};

/// `start` after changes that each make its predicted plan better by the wish: a layer moved to the stage before or
/// after its own, a replica more, less, or at another stage, two neighbouring stages as one, one as two, other
/// placements(). Until no change helps. Layers stay as the hand says, stages and replicas as the constraints. A plan
/// that does not fit in memory first gets one that needs less. Equal calls give equal results unless time is up. Throws
/// as predicted_plan for `start` itself. Precondition: the start honours the hand.
[[nodiscard]] RankedPlan improved_plan(const std::string& origin, const Graph& graph, const Topology& topology,
                                       const CostModel& costs, const Constraints& constraints, const Candidate& start,
                                       const ImproveOptions& options);

}  // namespace stagecraft::partitioner
