#pragma once

#include <string>

#include "costmodel/accuracy/validate.h"

namespace stagecraft::interchange {

/// An SVG picture of predicted (across) against measured (up) step times, both on one logarithmic scale, with a line
/// where they are equal, a band of 10 % to both sides, and bars for intervals. Each model has a colour and a shape of
/// its own; both tell it apart, up to eight models. Throws std::invalid_argument without runs or if a time is not above
/// 0.
[[nodiscard]] std::string scatter_picture(const Validation& validation);

}  // namespace stagecraft::interchange
