#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/topology.h"
#include "costmodel/units.h"

namespace stagecraft {

/// One measured time to fit. `spread` is its median absolute deviation; 0: unknown.
struct FitPoint {
  Bytes bytes;
  Seconds time;
  Seconds spread{};
  friend bool operator==(const FitPoint&, const FitPoint&) = default;
};

/// From `first` bytes on, until the next segment's `first`: latency + seconds_per_byte * bytes. The latency of the
/// first segment is not negative; that of a steeper one after it may be, as it extrapolates the line to 0 bytes.
struct FitSegment {
  Bytes first;
  Seconds latency;
  double seconds_per_byte = 0;
  friend bool operator==(const FitSegment&, const FitSegment&) = default;
};

/// Errors of a fit at points that it was not fitted to: |fitted / measured - 1|.
struct FitResiduals {
  int points = 0;
  double median = 0;
  double p95 = 0;  ///< by nearest rank
  double worst = 0;
  Bytes worst_bytes;
  friend bool operator==(const FitResiduals&, const FitResiduals&) = default;
};

/// One to three segments that meet, the first from 0 bytes on; time never falls with bytes.
struct CurveFit {
  std::vector<FitSegment> segments;
  std::vector<double> bic;               ///< of the best fit with 1, 2, ... segments; the smallest was chosen
  std::optional<FitResiduals> held_out;  ///< absent: fewer than 5 points
  friend bool operator==(const CurveFit&, const CurveFit&) = default;
};

/// The continuous fit of at most three segments that never fall to `points`, which ascend in bytes.
/// It minimises the sum of weight * log(fitted / measured)^2. Where every point has a spread, weights are
/// (time / spread)^2, a spread below 1 % counting as 1 %; else all weights are equal.
/// Segments meet at a measured message or halfway between two, by ratio, and have at least two points; beyond 24 such
/// places the search may miss the best ones. k segments are tried for at least 2k + 1 points (one: 2). The number with
/// the smallest n log(error) + 2k log n is chosen, where root mean squares below 0.01 % count as equal (Bayesian
/// information criterion: Schwarz, Annals of Statistics 6(2), 1978).
/// `held_out` compares every second point with a fit of the same kind to the others and the last.
/// Throws std::invalid_argument for fewer than 2 points, bytes that do not ascend or are negative, a time that is not
/// positive and finite, and a spread that is negative or not finite.
[[nodiscard]] CurveFit fit_curve(const std::vector<FitPoint>& points);

/// The fitted time of `data`. Precondition: data is not negative.
[[nodiscard]] Seconds time(const CurveFit& fit, Bytes data);

/// A curve that never falls, fitted to measured times that may.
struct MonotoneFit {
  Curve curve;          ///< has the same messages
  int moved = 0;        ///< points whose time is not the measured one
  double furthest = 0;  ///< the largest |fitted / measured - 1|
  Bytes furthest_bytes;
  friend bool operator==(const MonotoneFit&, const MonotoneFit&) = default;
};

/// The curve that never falls and has the least sum of |log(fitted / measured)|; of several such curves the lowest one.
/// Neighbours whose times fall take the median of their times (of an even number, the lower of the two in the middle):
/// one slow measurement moves it less than a mean, and errors of time measurements are delays. A curve that does not
/// fall stays as it is. With three points or more, Curve::log_spread is set: each inner point is compared with the fit
/// to all others, interpolated; the 90th percentile (by nearest rank) of |log(measured / fitted)| is 1.645 log_spreads.
/// Precondition: the curve is valid. Sources: Ayer et al., Annals of Mathematical Statistics 26(4), 1955 (pool adjacent
/// violators); Robertson & Waltman, Annals of Mathematical Statistics 39(3), 1968 (medians).
[[nodiscard]] MonotoneFit fit_monotone(const Curve& measured);

/// What the fit changed: "adjusted 3 of 25 times, by up to 31.2 % (at 4096 bytes), so that the curve does not
/// decrease"; empty if nothing.
[[nodiscard]] std::string moved_text(const MonotoneFit& fit);

}  // namespace stagecraft
