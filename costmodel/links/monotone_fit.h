#pragma once

#include <string>

#include "costmodel/topology.h"
#include "costmodel/units.h"

namespace stagecraft {

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
