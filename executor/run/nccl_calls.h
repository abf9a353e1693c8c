#pragma once

#include "executor/channel/nccl_program.h"
#include "executor/run/bound_model.h"

namespace stagecraft {

/// What the workers that run a plan ask of NCCL: an edge for each boundary, direction and pair of replicas that
/// some microbatch joins; a reduction for the replicas of each replicated stage (all buckets) and for the holders of
/// each set of tied parameters. `steps` as for BoundPlan::action_lists.
[[nodiscard]] NcclProgram nccl_program(const BoundModel& bound, int steps = 1);

}  // namespace stagecraft
