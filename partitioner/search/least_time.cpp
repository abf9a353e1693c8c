#include "partitioner/search/least_time.h"

#include <cmath>

namespace stagecraft::partitioner {

Seconds least_time(Seconds low, Seconds high, double precision, double part,
                   const std::function<std::optional<bool>(Seconds time)>& refutes) {
  while (low > Seconds(0) && low * (1 + precision) < high) {
    const Seconds middle(high >= kForever             ? 2 * low.value
                         : high.value / low.value > 4 ? std::sqrt(low.value * high.value)
                                                      : low.value + part * (high.value - low.value));
    const std::optional<bool> refuted = refutes(middle);
    if (!refuted || middle > kForever / 4) break;
    (*refuted ? low : high) = middle;
  }
  return low;
}

}  // namespace stagecraft::partitioner
