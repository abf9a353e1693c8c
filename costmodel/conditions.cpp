#include "costmodel/conditions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

constexpr double kLeastOthers = 0.1;
constexpr double kMostUsed = 0.95;

double percent(double ratio) { return (ratio - 1) * 100; }

constexpr double kMostRange = 1.25;  ///< between the readings of one yardstick

/// d2 for 2 to 25 readings; of more, the range hardly grows.
constexpr std::array kMeanRange = {1.128, 1.693, 2.059, 2.326, 2.534, 2.704, 2.847, 2.970, 3.078, 3.173, 3.258, 3.336,
                                   3.407, 3.472, 3.532, 3.588, 3.640, 3.689, 3.735, 3.778, 3.819, 3.858, 3.895, 3.931};

}  // namespace

bool is_crowded(const ProcessorUse& use) {
  return use.others > kLeastOthers && use.ours + use.others > kMostUsed * use.count;
}

std::vector<std::string> crowded_reasons(const Conditions& conditions, std::string_view measured) {
  std::vector<std::string> out;
  for (std::size_t host = 0; host < conditions.hosts.size(); ++host) {
    const ProcessorUse& use = conditions.hosts[host];
    if (!is_crowded(use)) continue;
    const std::string where = conditions.hosts.size() > 1 ? fmt::format("host {}: ", host) : "";
    out.push_back(
        fmt::format("{}other programs kept {:.1f} of {} processors busy, {} {:.1f}: measure on a quiet machine", where,
                    use.others, use.count, measured, use.ours));
  }
  return out;
}

std::variant<Drift, Infeasible> drift_between(const Yardstick& first, const Yardstick& second) {
  if (first.device != second.device)
    return Infeasible{fmt::format("the yardsticks are of \"{}\" and of \"{}\"", first.device, second.device)};
  if (first.threads != second.threads)
    return Infeasible{fmt::format("the yardsticks used {} and {} threads", first.threads, second.threads)};
  Drift out;
  double logarithms = 0;
  for (const YardstickTimes& before : first.works) {
    const auto after = std::ranges::find(second.works, before.work, &YardstickTimes::work);
    if (after == second.works.end()) continue;
    out.works.push_back({before.work, after->median / before.median});
    logarithms += std::log(out.works.back().ratio);
  }
  if (out.works.empty()) return Infeasible{"the yardsticks have no work in common"};
  out.factor = std::exp(logarithms / static_cast<double>(out.works.size()));
  return out;
}

std::string drift_text(const Drift& drift) {
  std::string out = fmt::format("{:.1f} % {}", std::abs(percent(drift.factor)), drift.factor < 1 ? "faster" : "slower");
  const char* before = " (";
  for (const WorkDrift& work : drift.works) {
    out += fmt::format("{}{} {:+.1f} %", before, work.work, percent(work.ratio));
    before = ", ";
  }
  return out + ")";
}

WorkDrift widest_range(const Yardstick& yardstick) {
  const auto range = [](const YardstickTimes& times) { return times.slowest / times.fastest; };
  const YardstickTimes& widest = *std::ranges::max_element(yardstick.works, {}, range);
  return {widest.work, range(widest)};
}

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
