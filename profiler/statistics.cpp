#include "profiler/statistics.h"

#include <cmath>
#include <limits>
#include <stdexcept>

#include "costmodel/timeline.h"

namespace stagecraft {
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
  if (samples.size() < kFewestForSpread) return std::numeric_limits<double>::infinity();
  const double middle = median(samples);
  if (middle == 0) return 0;
  return 1.96 * 1.2533 * 1.4826 * deviation(samples, middle) /
         (std::sqrt(static_cast<double>(samples.size())) * middle);
}

Stop should_stop(const StoppingRule& rule, const std::vector<double>& whole,
                 const std::vector<std::vector<double>>& parts, double seconds) {
  if (seconds >= rule.most_seconds && whole.size() >= rule.least) return Stop::Time;
  if (whole.size() < rule.fewest) return Stop::No;
  if (relative_error(whole) > rule.iteration_error) return Stop::No;
  const double threshold = median(whole) * rule.layer_share;
  for (const std::vector<double>& part : parts) {
    if (median(part) > threshold && relative_error(part) > rule.layer_error) return Stop::No;
  }
  return Stop::Precise;
}

}  // namespace stagecraft
