#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "costmodel/units.h"

namespace stagecraft {

/// A predicted time, its interval if it has one, and the measured time. `group`: runs in the same group are
/// alternatives to each other, so their order matters.
struct Scored {
  Seconds predicted;
  std::optional<Seconds> low;
  std::optional<Seconds> high;
  Seconds measured;
  int group = 0;
  friend bool operator==(const Scored&, const Scored&) = default;
};

/// Errors predicted / measured - 1 of n runs; absolute values, except for the bias.
struct ErrorScores {
  std::size_t n = 0;
  double median = 0;
  double mean = 0;
  double p90 = 0;  ///< interpolated linearly
  double largest = 0;
  double bias = 0;  ///< median with sign
  friend bool operator==(const ErrorScores&, const ErrorScores&) = default;
};

/// How well the predicted order matches the measured order, over the pairs within groups.
struct OrderScores {
  std::size_t pairs = 0;      ///< with different predicted times, and measured times that differ by more than the noise
  std::size_t right = 0;      ///< predicted in the measured order
  std::optional<double> tau;  ///< Kendall's: (right - wrong) / pairs; absent without pairs
  std::optional<double>
      mean_regret;  ///< of groups of two and more: measured time of the predicted best / of the best - 1
  std::optional<double> largest_regret;
  friend bool operator==(const OrderScores&, const OrderScores&) = default;
};

/// Runs whose prediction has an interval.
struct CoverageScores {
  std::size_t n = 0;
  double inside = 0;      ///< share of measurements with low <= measured <= high
  double half_width = 0;  ///< median of (high - low) / (high + low)
  friend bool operator==(const CoverageScores&, const CoverageScores&) = default;
};

/// The quantile `share` of the sorted values (0 is the smallest, 1 the largest), interpolated linearly. Throws
/// std::invalid_argument if there are no values or the share is outside 0 to 1.
[[nodiscard]] double quantile(std::vector<double> values, double share);

/// All 0 without runs. Precondition: measured times are above 0.
[[nodiscard]] ErrorScores error_scores(std::span<const Scored> runs);
/// `noise`: a pair counts only if its longer measured time is more than 1 + noise times the shorter. Regret ignores it.
/// Throws std::invalid_argument if `noise` is negative or not finite.
[[nodiscard]] OrderScores order_scores(std::span<const Scored> runs, double noise = 0);
/// All 0 without intervals.
[[nodiscard]] CoverageScores coverage_scores(std::span<const Scored> runs);

/// Half-width, on the scale of `residuals`, that covers a new residual with probability `share`: the ceil((n + 1)
/// share)-th smallest absolute value. If there are fewer, the largest times sqrt(rank / n), an extrapolation. Throws
/// std::invalid_argument if there are no residuals or the share is outside 0 to 1. Source: split conformal prediction,
/// Lei et al., JASA 113, 2018.
[[nodiscard]] double conformal_half_width(std::vector<double> residuals, double share);

}  // namespace stagecraft
