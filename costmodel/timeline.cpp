#include "costmodel/timeline.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace stagecraft {

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

Seconds step_time(const Timeline& timeline, std::size_t first) {
  std::vector<double> times;
  for (std::size_t i = first; i < timeline.steps.size(); ++i) {
    times.push_back((timeline.steps[i].end - timeline.steps[i].start).value);
  }
  if (times.empty()) {
    throw std::invalid_argument("no steps are left: the timeline has " + std::to_string(timeline.steps.size()) +
                                " and the first " + std::to_string(first) + " are skipped");
  }
  return Seconds(median(std::move(times)));
}

std::size_t warm_up_steps(const Timeline& timeline) {
  constexpr std::size_t kWarmUp = 2;
  return timeline.steps.empty() ? 0 : std::min(kWarmUp, timeline.steps.size() - 1);
}

}  // namespace stagecraft
