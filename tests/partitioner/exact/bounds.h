#pragma once

#include <string>

#include "costmodel/plan.h"

namespace stagecraft::partitioner {

/// For a bound that takes as long as it needs.
inline const auto kNoStop = [] { return false; };

inline PlanSettings settings_of(const std::string& schedule, int microbatches) {
  PlanSettings out;
  out.schedule = schedule;
  out.microbatches = microbatches;
  return out;
}

}  // namespace stagecraft::partitioner
