#pragma once

#include <optional>

#include "costmodel/graph.h"
#include "partitioner/candidate.h"
#include "partitioner/command/plan_command.h"

// For plan_tool.cpp only: what a request takes from files of other programs and from stages by hand.

namespace stagecraft::partitioner {

/// Takes schedule, stages, replicas and microbatches from the request's lists_file, if it has one. Throws
/// std::invalid_argument, beginning with the file, for lists that are wrong or contradict the command line.
void take_csv(PlanRequest& request);

/// Takes the number of microbatches from --global-batch, if it is given. Throws std::invalid_argument as
/// microbatches_of does, and for action lists, which give it themselves.
void take_batch(PlanRequest& request, const Graph& graph);

/// The stages of --split-at or --from; absent if a strategy finds them. From --from the request also takes schedule,
/// replicas and microbatches, if the file gives them. Throws std::invalid_argument, beginning with the option or the
/// file.
[[nodiscard]] std::optional<Candidate> given_stages(PlanRequest& request, const Graph& graph);

}  // namespace stagecraft::partitioner
