#include "costmodel/accuracy/steadiness.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

constexpr double kMostRange = 1.25;  ///< between the readings of one yardstick

/// d2 for 2 to 25 readings; of more, the range hardly grows.
constexpr std::array kMeanRange = {1.128, 1.693, 2.059, 2.326, 2.534, 2.704, 2.847, 2.970, 3.078, 3.173, 3.258, 3.336,
                                   3.407, 3.472, 3.532, 3.588, 3.640, 3.689, 3.735, 3.778, 3.819, 3.858, 3.895, 3.931};

}  // namespace

double speed_spread(const Yardstick& yardstick) {
  double out = 0;
  for (const YardstickTimes& work : yardstick.works) {
    if (work.readings < 2) continue;
    const std::size_t at = std::min(to_index(work.readings) - 2, kMeanRange.size() - 1);
    out = std::max(out, std::log(work.slowest / work.fastest) / kMeanRange[at]);
  }
  return out;
}

std::string unsteady_text(const Conditions& conditions) {
  if (!conditions.yardstick) return "";
  const WorkDrift range = widest_range(*conditions.yardstick);
  if (range.ratio <= kMostRange) return "";
  return fmt::format(
      "the device's speed changed while it was measured: the slowest {} took {:.2f} times as long as the fastest",
      range.work, range.ratio);
}

}  // namespace stagecraft
