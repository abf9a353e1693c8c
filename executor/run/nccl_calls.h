#pragma once

#include "costmodel/plan.h"
#include "executor/channel/nccl_program.h"
#include "executor/model/layer_source.h"

namespace stagecraft {

/// What the workers that run `plan` ask of NCCL: an edge for each boundary, direction and pair of replicas that
/// some microbatch joins; a reduction for the replicas of each replicated stage (all buckets) and for the holders of
/// each set of tied parameters. `steps` as for action_lists. Throws std::invalid_argument as layers_of_stages does.
[[nodiscard]] NcclProgram nccl_program(const Plan& plan, const Model& model, int steps = 1);

}  // namespace stagecraft
