#pragma once

#include <string>

#include "costmodel/plan.h"
#include "costmodel/units.h"

namespace stagecraft::partitioner {

/// For a bound that takes as long as it needs.
inline const auto kNoStop = [] { return false; };

inline PlanSettings settings_of(const std::string& schedule, int microbatches) {
  PlanSettings out;
  out.schedule = schedule;
  out.microbatches = microbatches;
  return out;
}

/// The largest time that `refutes(time)` is true for, within `precision` of it.
template <class Refutes>
double largest_refuted(double precision, Refutes refutes) {
  double low = 0;
  double high = 1;
  while (refutes(Seconds(high)) == true) high *= 2;
  while (high - low > precision * high) {
    const double middle = (low + high) / 2;
    (refutes(Seconds(middle)) == true ? low : high) = middle;
  }
  return low;
}

}  // namespace stagecraft::partitioner
