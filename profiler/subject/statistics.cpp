#include "profiler/subject/statistics.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "costmodel/timeline.h"

namespace stagecraft::profiler {
namespace {

double deviation(const std::vector<double>& samples, double middle) {
  std::vector<double> distances;
  for (const double sample : samples) distances.push_back(std::abs(sample - middle));
  return median(std::move(distances));
}

}  // namespace

Timing summarize(const std::vector<double>& samples) {
  if (samples.empty()) throw std::invalid_argument("no samples were taken");
  Timing out;
  out.median = Seconds(median(samples));
  out.count = static_cast<std::int64_t>(samples.size());
  if (samples.size() >= kFewestForSpread) out.spread = Seconds(deviation(samples, out.median.value));
  return out;
}

double relative_error(const std::vector<double>& samples) {
  return samples.empty() ? std::numeric_limits<double>::infinity() : relative_error(summarize(samples));
}

double relative_error(const Timing& timing) {
  if (!timing.spread) return std::numeric_limits<double>::infinity();
  if (timing.median == Seconds(0)) return 0;
  return 1.96 * 1.2533 * 1.4826 * (*timing.spread / timing.median) / std::sqrt(static_cast<double>(timing.count));
}

Stop should_stop(const StoppingRule& rule, const std::vector<double>& whole,
                 const std::vector<std::vector<double>>& parts, double seconds) {
  const auto precise = [&] {
    if (whole.size() < rule.fewest || relative_error(whole) > rule.iteration_error) return false;
    const double threshold = median(whole) * rule.layer_share;
    return std::ranges::none_of(parts, [&](const std::vector<double>& part) {
      return median(part) > threshold && relative_error(part) > rule.layer_error;
    });
  };
  if (precise()) return Stop::Precise;
  return seconds >= rule.most_seconds && whole.size() >= rule.least ? Stop::Time : Stop::No;
}

}  // namespace stagecraft::profiler
