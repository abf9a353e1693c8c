#pragma once

#include <stdexcept>
#include <vector>

#include "costmodel/schedule.h"

namespace stagecraft::testing {

/// Whether `schedule` runs one stage on each rank, with these replicas and microbatches. The schedule "listed" does
/// not: a plan must bring its lists.
inline bool runs_one_stage_per_rank(const ScheduleEntry& schedule, const std::vector<int>& replicas, int microbatches) {
  if (schedule.name == "listed") return false;
  PipelineShape shape;
  shape.stages = static_cast<int>(replicas.size());
  shape.microbatches = microbatches;
  shape.replicas = replicas;
  shape.warmups = warmup_counts(replicas);
  try {
    check_shape(schedule, shape);
    return true;
  } catch (const std::invalid_argument&) { return false; }
}

}  // namespace stagecraft::testing
