#pragma once

#include "executor/channel/nccl_program.h"
#include "executor/run/binding/bound_model.h"

namespace stagecraft::run {

/// The NCCL calls of the workers that run a plan: an edge for each boundary, direction and pair of replicas that shares
/// a microbatch; a reduction for the replicas of each replicated stage (all buckets) and for the holders of each set of
/// tied parameters. `steps` as for BoundPlan::action_lists.
[[nodiscard]] channel::NcclProgram nccl_program(const BoundModel& bound, int steps = 1);

}  // namespace stagecraft::run
