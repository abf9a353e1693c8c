#pragma once

#include <functional>
#include <optional>

#include "costmodel/units.h"
#include "partitioner/exact/pipeline_costs.h"

namespace stagecraft::partitioner {

/// Bisects for the largest time from `low` to `high` that `refutes` rejects as too short. Stops at `precision`,
/// relative to the result, or when `refutes` runs out of time and returns nothing. `part`: where in the remaining
/// interval to probe; near 0 for a `refutes` that is faster where it rejects. While `high` is kForever, each probe
/// doubles the time; while the ends differ by more than a factor of 4, it is their geometric mean. Returns `low` if
/// that is 0.
[[nodiscard]] Seconds least_time(Seconds low, Seconds high, double precision, double part,
                                 const std::function<std::optional<bool>(Seconds time)>& refutes);

}  // namespace stagecraft::partitioner
