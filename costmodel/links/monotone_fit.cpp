#include "costmodel/links/monotone_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

constexpr double kNinety = 1.6448536269514722;  // standard deviations that hold 90 %, both sides together

/// Neighbouring points with one time.
struct Pool {
  std::vector<Seconds> times;  ///< ascending; not empty
  [[nodiscard]] Seconds median() const { return times[(times.size() - 1) / 2]; }
};

Pool joined(const Pool& a, const Pool& b) {
  Pool out;
  std::ranges::merge(a.times, b.times, std::back_inserter(out.times));
  return out;
}

/// `measured` with the times of the fit.
Curve without_falls(const Curve& measured) {
  std::vector<Pool> pools;
  for (const CurvePoint& point : measured.points) {
    pools.push_back({{point.time}});
    while (pools.size() > 1 && pools[pools.size() - 2].median() > pools.back().median()) {
      Pool both = joined(pools[pools.size() - 2], pools.back());
      pools.pop_back();
      pools.back() = std::move(both);
    }
  }
  Curve out = measured;
  auto point = out.points.begin();
  for (const Pool& pool : pools) {
    for (std::size_t i = 0; i < pool.times.size(); ++i) (point++)->time = pool.median();
  }
  return out;
}

/// Errors of the fit at the inner points, each without that point.
std::vector<double> errors_without(const Curve& measured) {
  std::vector<double> out;
  for (std::size_t i = 1; i + 1 < measured.points.size(); ++i) {
    const CurvePoint& left_out = measured.points[i];
    Curve others = measured;
    others.points.erase(others.points.begin() + static_cast<std::ptrdiff_t>(i));
    out.push_back(std::abs(std::log(left_out.time / interpolate(without_falls(others), left_out.bytes))));
  }
  return out;
}

}  // namespace

MonotoneFit fit_monotone(const Curve& measured) {
  MonotoneFit out{without_falls(measured), 0, 0, Bytes(0)};
  for (std::size_t i = 0; i < measured.points.size(); ++i) {
    const double error = std::abs(out.curve.points[i].time / measured.points[i].time - 1);
    out.moved += error > 0 ? 1 : 0;
    if (error <= out.furthest) continue;
    out.furthest = error;
    out.furthest_bytes = measured.points[i].bytes;
  }
  std::vector<double> errors = errors_without(measured);
  if (errors.empty()) return out;
  std::ranges::sort(errors);
  out.curve.log_spread = errors[(errors.size() * 9 + 9) / 10 - 1] / kNinety;
  return out;
}

std::string moved_text(const MonotoneFit& fit) {
  if (fit.moved == 0) return "";
  return fmt::format("adjusted {} of {} times, by up to {:.1f} % (at {} bytes), so that the curve does not decrease",
                     fit.moved, fit.curve.points.size(), fit.furthest * 100, fit.furthest_bytes.value);
}

}  // namespace stagecraft
