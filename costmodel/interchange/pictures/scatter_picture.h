#pragma once

#include <string>

#include "costmodel/accuracy/validate.h"

namespace stagecraft::interchange {

/// An SVG picture of predicted (x) against measured (y) step times on the same logarithmic scale, with a line where
/// they are equal, a band of 10 % on both sides, and bars for intervals. Up to eight models each have their own colour
/// and shape. Throws std::invalid_argument if there are no runs or a time is not above 0.
[[nodiscard]] std::string scatter_picture(const Validation& validation);

}  // namespace stagecraft::interchange
