#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "costmodel/index.h"
#include "costmodel/report/pictures.h"

namespace stagecraft::report {
namespace {

constexpr double kLeft = 86;
constexpr double kTop = 20;
constexpr double kWide = 720;
constexpr double kHigh = 260;
/// Points of a curve, at most: one for each two pixels.
constexpr std::size_t kPoints = 360;

struct LossPoint {
  double step = 0;  ///< number of the step, from 1; the last one of several
  double loss = 0;  ///< mean of the finite ones; NaN if there is none
};

std::vector<LossPoint> loss_points(const Measurement& run) {
  const std::size_t count = std::min(run.losses.size(), run.timeline.steps.size());
  const std::size_t every = std::max<std::size_t>(1, (count + kPoints - 1) / kPoints);
  std::vector<LossPoint> out;
  for (std::size_t first = 0; first < count; first += every) {
    const std::size_t end = std::min(first + every, count);
    double sum = 0;
    int finite = 0;
    for (std::size_t i = first; i < end; ++i) {
      if (!std::isfinite(run.losses[i])) continue;
      sum += run.losses[i];
      ++finite;
    }
    out.push_back({static_cast<double>(run.timeline.steps[end - 1].step) + 1,
                   finite > 0 ? sum / finite : std::numeric_limits<double>::quiet_NaN()});
  }
  return out;
}

}  // namespace

Picture loss_picture(const std::string& name, const std::vector<NamedLosses>& runs) {
  Drawing out(name, "Loss of each step");
  std::vector<std::vector<LossPoint>> curves;
  double least = std::numeric_limits<double>::infinity();
  double most = -least;
  double first = least;
  double last = 1;
  bool joined = false;
  for (const NamedLosses& named : runs) {
    curves.push_back(loss_points(*named.run));
    joined = joined || curves.back().size() < named.run->losses.size();
    for (const LossPoint& point : curves.back()) {
      first = std::min(first, point.step);
      last = std::max(last, point.step);
      if (std::isnan(point.loss)) continue;
      least = std::min(least, point.loss);
      most = std::max(most, point.loss);
    }
  }
  if (!(least <= most)) least = most = 0;
  if (!(first <= last)) first = last;
  // Losses below 0 get an axis that is moved up by the least of them.
  const double shift = std::min(0.0, least);
  const Axis losses = number_axis(least - shift, most - shift, 5);
  const auto x = [&](double step) { return kLeft + (last > first ? kWide * (step - first) / (last - first) : 0); };
  const auto y = [&](double loss) { return kTop + kHigh * (1 - losses.share(loss - shift)); };
  for (const double tick : losses.ticks) {
    out.line(kLeft, y(tick + shift), kLeft + kWide, y(tick + shift), "grid");
    out.text(kLeft - 8, y(tick + shift) + 4, "end", fmt::format("{:.4g}", tick + shift), "soft", 10);
  }
  const int between = last - first >= 4 ? 4 : 1;
  for (int i = 0; i <= between; ++i) {
    const double step = std::round(first + (last - first) * i / between);
    if (i > 0 && !(last > first)) break;
    out.line(x(step), kTop + kHigh, x(step), kTop + kHigh + 4, "axis");
    out.text(x(step), kTop + kHigh + 16, i == between ? "end" : "middle", fmt::format("{:.0f}", step), "soft", 10);
  }
  out.rect(kLeft, kTop, kWide, kHigh, "class=\"axis\"");
  for (std::size_t c = 0; c < curves.size(); ++c) {
    std::string points;
    bool drawing = false;
    for (const LossPoint& point : curves[c]) {
      if (std::isnan(point.loss)) {
        drawing = false;
        continue;
      }
      points += fmt::format("{}{:.2f},{:.2f} ", drawing ? "L" : "M", x(point.step), y(point.loss));
      drawing = true;
      if (curves[c].size() <= 60)
        out.mark(c, x(point.step), y(point.loss), fmt::format("step {:.0f}: {:.4g}", point.step, point.loss));
    }
    out.path(points, fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"", series_colour(c)), runs[c].title);
  }
  out.text(kLeft + kWide / 2, kTop + kHigh + 34, "middle", "step");
  double height = kTop + kHigh + 46;
  if (runs.size() > 1) {
    std::vector<std::pair<std::string, std::string>> entries;
    for (std::size_t c = 0; c < runs.size(); ++c)
      entries.emplace_back(fmt::format("fill=\"{}\"", series_colour(c)), runs[c].title);
    height += 8 + out.legend(kLeft, height, kWide, entries);
  }
  std::string caption = "Loss of each step: the mean over its samples.";
  if (joined) caption += " Each point is the mean of several steps.";
  return out.finish(kLeft + kWide + 24, height, caption);
}

}  // namespace stagecraft::report
