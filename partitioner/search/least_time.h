#pragma once

#include <functional>
#include <optional>

#include "costmodel/units.h"

namespace stagecraft::partitioner {

/// Longer than any step.
inline constexpr Seconds kForever{1e100};

/// The largest time found from `low` to `high` that `refutes` says is too short; it says nothing if its own time was
/// up, which ends the search. It ends too when `high` is within `precision` of it, relatively. `part`: how far from the
/// low end of what is left it is asked; asking cautiously, near the low end, is for a `refutes` that finds out quickly
/// what is too short. While `high` is kForever the time doubles, and within more than a factor 4 the geometric mean is
/// asked. `low` itself if that is 0, from which no time can be found.
[[nodiscard]] Seconds least_time(Seconds low, Seconds high, double precision, double part,
                                 const std::function<std::optional<bool>(Seconds time)>& refutes);

}  // namespace stagecraft::partitioner
