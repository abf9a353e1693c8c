#pragma once

#include <string>

namespace stagecraft {

/// Where a figure comes from, the most trusted first.
enum class FigureSource {
  Measured,
  Fitted,        ///< a line through measurements
  Analytic,      ///< a formula with numbers that were given
  Extrapolated,  ///< from measurements, outside their range
  Assumed,       ///< given, of unknown origin
  Calibrated,    ///< with factors from measured runs
};

/// "measured", "fitted", ...; the name in files.
[[nodiscard]] const char* to_string(FigureSource source);
/// The inverse. Throws std::invalid_argument listing the names.
[[nodiscard]] FigureSource figure_source(const std::string& word);

}  // namespace stagecraft
