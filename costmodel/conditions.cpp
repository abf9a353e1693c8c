#include "costmodel/conditions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace stagecraft {
namespace {

constexpr double kLeastOthers = 0.1;
constexpr double kMostUsed = 0.95;

double percent(double ratio) { return (ratio - 1) * 100; }

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

}  // namespace stagecraft
