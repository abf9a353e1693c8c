#pragma once

#include <cstddef>
#include <vector>

#include "costmodel/graph.h"

namespace stagecraft {

/// Fewest samples from which a spread is told; below it there is none.
inline constexpr std::size_t kFewestForSpread = 5;

/// Median, median absolute deviation and count of samples in seconds. Throws std::invalid_argument if there are none.
[[nodiscard]] Timing summarize(const std::vector<double>& samples);

/// Half the width of the 95 % confidence interval of the median over the median: 1.96 * 1.2533 * 1.4826 * MAD /
/// (sqrt(n) * median), the normal approximation with the deviation taken from the MAD. Infinite below kFewestForSpread
/// samples; 0 for a median of 0.
[[nodiscard]] double relative_error(const std::vector<double>& samples);
/// The same of samples that were summarized.
[[nodiscard]] double relative_error(const Timing& timing);

/// When to stop measuring.
struct StoppingRule {
  double iteration_error = 0.01;  ///< relative error wanted of the iteration
  double layer_error = 0.03;      ///< and of each layer above `layer_share` of it
  double layer_share = 0.01;
  std::size_t fewest = 10;   ///< samples before it can be precise enough
  std::size_t least = 3;     ///< samples taken even when time is up
  double most_seconds = 20;  ///< of measuring, then it stops as it is
};

/// What ended a measurement.
enum class Stop { No, Precise, Time };

/// Whether samples are precise enough, and else whether time is up. `parts[i]` are the samples of part i, in step with
/// `whole`.
[[nodiscard]] Stop should_stop(const StoppingRule& rule, const std::vector<double>& whole,
                               const std::vector<std::vector<double>>& parts, double seconds);

}  // namespace stagecraft
