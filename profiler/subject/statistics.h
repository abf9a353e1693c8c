#pragma once

#include <cstddef>
#include <vector>

#include "costmodel/graph.h"

namespace stagecraft::profiler {

/// Fewest samples that have a spread.
inline constexpr std::size_t kFewestForSpread = 5;

/// Median, median absolute deviation and count of samples in seconds. Throws std::invalid_argument if there are none.
[[nodiscard]] Timing summarize(const std::vector<double>& samples);

/// Half the width of the 95 % confidence interval of the median, divided by the median: 1.96 * 1.2533 * 1.4826 * MAD /
/// (sqrt(n) * median), the normal approximation with the standard deviation estimated from the MAD. Infinite for fewer
/// than kFewestForSpread samples; 0 for a median of 0.
[[nodiscard]] double relative_error(const std::vector<double>& samples);
/// The same, from a summary of the samples.
[[nodiscard]] double relative_error(const Timing& timing);

/// When to stop measuring.
struct StoppingRule {
  double iteration_error = 0.01;  ///< relative error at which the iteration is precise enough
  double layer_error = 0.03;      ///< the same for each layer that takes more than `layer_share` of the iteration
  double layer_share = 0.01;
  std::size_t fewest = 10;   ///< samples without which nothing is precise enough
  std::size_t least = 3;     ///< samples taken even when time is up
  double most_seconds = 20;  ///< time limit of the measurement
};

/// What ended a measurement.
enum class Stop { No, Precise, Time };

/// Precise if the samples are precise enough; else Time if `seconds` of measuring reach the limit and there are at
/// least rule.least samples; else No. `whole` are the samples of the iteration, `parts[i]` those of part i in the same
/// iterations.
[[nodiscard]] Stop should_stop(const StoppingRule& rule, const std::vector<double>& whole,
                               const std::vector<std::vector<double>>& parts, double seconds);

}  // namespace stagecraft::profiler
