#pragma once

#include <string>

#include "costmodel/conditions.h"

namespace stagecraft {

/// How much the device's speed changed while something was measured on it: the standard deviation of its logarithm,
/// from the ranges of the readings; the largest of all works. Of n values of a normal distribution the range is d2(n)
/// standard deviations on average (Tippett 1925; d2 as in control charts). 0 if no work has two readings.
[[nodiscard]] double speed_spread(const Yardstick& yardstick);

/// "the device's speed changed while it was measured: the slowest copy of 4 MiB took 1.40 times as long as the
/// fastest", if some work took more than 1.25 times as long; else empty.
[[nodiscard]] std::string unsteady_text(const Conditions& conditions);

}  // namespace stagecraft
