#pragma once

#include <cstdint>

#include "executor/channel/nccl_program.h"
#include "executor/run/binding/bound_model.h"

namespace stagecraft::run {

/// The NCCL calls of the workers that run a plan: an edge for each boundary, direction and pair of replicas that shares
/// a microbatch; a reduction for the replicas of each replicated stage (all buckets) and for the holders of each set of
/// tied parameters. `steps` as for BoundPlan::action_lists.
[[nodiscard]] channel::NcclProgram nccl_program(const BoundModel& bound, int steps = 1);
/// The same for a run of `steps` steps, or as many of them as reach the steady state, proved to match on all ranks, see
/// find_mismatch. Throws std::logic_error with the mismatch.
[[nodiscard]] channel::NcclProgram proved_nccl_program(const BoundModel& bound, std::int64_t steps);

}  // namespace stagecraft::run
