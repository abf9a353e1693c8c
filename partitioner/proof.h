#pragma once

#include <optional>
#include <string>

#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// What the verifier finds wrong with a plan; absent if it proves that the plan's action lists follow the plan and end,
/// and that no device needs more memory than it has. Memory is not checked of a plan with RankedPlan::fits false, which
/// a strategy with its own memory rule may choose. Precondition: the plan is valid for graph and topology.
[[nodiscard]] std::optional<Infeasible> refutation(const RankedPlan& ranked, const Graph& graph,
                                                   const Topology& topology);

/// Throws NoAnswerError "PLACE: the plan is not proved: REASON" for a plan with a refutation.
void check_proved(const RankedPlan& ranked, const Graph& graph, const Topology& topology, const std::string& place);

}  // namespace stagecraft::partitioner
