#include "costmodel/accuracy/scores.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "costmodel/index.h"
#include "costmodel/timeline.h"

namespace stagecraft {
namespace {

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return sum / static_cast<double>(values.size());
}

void check_share(double share) {
  if (!(share >= 0 && share <= 1))
    throw std::invalid_argument("share " + std::to_string(share) + " is not between 0 and 1");
}

/// Measured time of the run with the least predicted time, over the least measured time, - 1.
double regret(const std::vector<const Scored*>& runs) {
  const auto predicted = [](const Scored* a, const Scored* b) { return a->predicted < b->predicted; };
  const auto measured = [](const Scored* a, const Scored* b) { return a->measured < b->measured; };
  const Scored* chosen = *std::min_element(runs.begin(), runs.end(), predicted);
  const Scored* best = *std::min_element(runs.begin(), runs.end(), measured);
  return chosen->measured / best->measured - 1;
}

}  // namespace

double quantile(std::vector<double> values, double share) {
  if (values.empty()) throw std::invalid_argument("no values to take a quantile of");
  check_share(share);
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto low = static_cast<std::size_t>(place);
  const std::size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (place - static_cast<double>(low));
}

ErrorScores error_scores(std::span<const Scored> runs) {
  if (runs.empty()) return {};
  std::vector<double> signed_errors;
  std::vector<double> sizes;
  for (const Scored& run : runs) {
    signed_errors.push_back(run.predicted / run.measured - 1);
    sizes.push_back(std::abs(signed_errors.back()));
  }
  return {.n = runs.size(),
          .median = median(sizes),
          .mean = mean(sizes),
          .p90 = quantile(sizes, 0.9),
          .largest = quantile(sizes, 1),
          .bias = median(signed_errors)};
}

OrderScores order_scores(std::span<const Scored> runs, double noise) {
  if (!(noise >= 0) || !std::isfinite(noise))
    throw std::invalid_argument("noise " + std::to_string(noise) + " is not a number of 0 or more");
  std::map<int, std::vector<const Scored*>> groups;
  for (const Scored& run : runs) groups[run.group].push_back(&run);
  OrderScores out;
  std::vector<double> regrets;
  for (const auto& [number, group] : groups) {
    if (group.size() < 2) continue;
    for (std::size_t i = 0; i < group.size(); ++i) {
      for (std::size_t j = i + 1; j < group.size(); ++j) {
        const auto [shorter, longer] = std::minmax(group[i]->measured, group[j]->measured);
        if (group[i]->predicted == group[j]->predicted || !(longer > (1 + noise) * shorter)) continue;
        ++out.pairs;
        if ((group[i]->predicted < group[j]->predicted) == (group[i]->measured < group[j]->measured)) ++out.right;
      }
    }
    regrets.push_back(regret(group));
  }
  if (out.pairs > 0) out.tau = 2 * static_cast<double>(out.right) / static_cast<double>(out.pairs) - 1;
  if (!regrets.empty()) {
    out.mean_regret = mean(regrets);
    out.largest_regret = quantile(regrets, 1);
  }
  return out;
}

CoverageScores coverage_scores(std::span<const Scored> runs) {
  std::vector<double> halves;
  std::size_t inside = 0;
  for (const Scored& run : runs) {
    if (!run.low || !run.high) continue;
    halves.push_back((*run.high - *run.low) / (*run.high + *run.low));
    if (*run.low <= run.measured && run.measured <= *run.high) ++inside;
  }
  if (halves.empty()) return {};
  return {.n = halves.size(),
          .inside = static_cast<double>(inside) / static_cast<double>(halves.size()),
          .half_width = median(halves)};
}

double conformal_half_width(std::vector<double> residuals, double share) {
  if (residuals.empty()) throw std::invalid_argument("no residuals to take an interval from");
  check_share(share);
  for (double& r : residuals) r = std::abs(r);
  std::sort(residuals.begin(), residuals.end());
  const auto n = static_cast<double>(residuals.size());
  // A product such as 20 * 0.9 must not be rounded up to 19.
  const double rank = std::max(1.0, std::ceil((n + 1) * share - 1e-9));
  if (rank <= n) return residuals[static_cast<std::size_t>(rank) - 1];
  return residuals.back() * std::sqrt(rank / n);
}

}  // namespace stagecraft
