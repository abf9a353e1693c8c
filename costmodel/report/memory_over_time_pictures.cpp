#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "costmodel/index.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::report {
namespace {

constexpr double kLeft = 86;
constexpr double kTop = 20;
constexpr double kWide = 620;
constexpr double kHigh = 260;

std::string stroke(std::size_t i, const char* more = "") {
  return fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{}", series_colour(i), more);
}

/// Horizontal lines with labels at the ticks of `axis`, and the frame's lower edge.
void grid(Drawing& out, const Axis& axis, const std::string& what) {
  for (const double tick : axis.ticks) {
    const double y = kTop + kHigh - kHigh * tick / axis.end;
    out.line(kLeft, y, kLeft + kWide, y, "grid");
    out.text(kLeft - 6, y + 4, "end", axis.label(tick));
  }
  out.text(kLeft - 6, kTop - 8, "end", axis.unit.empty() ? what : axis.unit);
}

}  // namespace

Picture memory_over_time_picture(const std::string& name, const Prediction& prediction, std::optional<Bytes> limit) {
  Drawing out(name, "Memory over time");
  Seconds until;
  Bytes highest;
  for (const MemoryOverTime& course : prediction.memory_over_time) {
    for (const MemoryMoment& moment : course.moments) {
      until = std::max(until, moment.from);
      highest = std::max(highest, moment.bytes);
    }
  }
  // A limit far away would flatten the courses; it is then only named.
  const bool draws_limit = limit && highest.value > limit->value / 8;
  const Axis times = time_axis(until, 8);
  const Axis bytes = bytes_axis(draws_limit ? std::max(highest, *limit) : highest, 6);
  grid(out, bytes, "bytes");
  const auto x = [&](Seconds time) { return kLeft + kWide * time.value / times.end; };
  const auto y = [&](Bytes of) { return kTop + kHigh - kHigh * static_cast<double>(of.value) / bytes.end; };
  for (const double tick : times.ticks) {
    const double at = kLeft + kWide * tick / times.end;
    out.line(at, kTop + kHigh, at, kTop + kHigh + 4, "grid");
    out.text(at, kTop + kHigh + 17, "middle", times.label(tick));
  }
  out.text(kLeft + kWide, kTop + kHigh + 32, "end", times.unit);
  std::vector<std::pair<std::string, std::string>> entries;
  for (std::size_t i = 0; i < prediction.memory_over_time.size(); ++i) {
    const MemoryOverTime& course = prediction.memory_over_time[i];
    if (course.moments.empty()) continue;
    std::string line = fmt::format("M{:.2f},{:.2f}", x(course.moments.front().from), y(course.moments.front().bytes));
    Bytes most;
    for (const MemoryMoment& moment : course.moments) {
      line += fmt::format(" H{:.2f} V{:.2f}", x(moment.from), y(moment.bytes));
      most = std::max(most, moment.bytes);
    }
    const std::string who = fmt::format("rank {}", course.rank);
    out.path(line, stroke(i), fmt::format("{}: at most {}", who, format_bytes(most)));
    entries.emplace_back(fmt::format("fill=\"{}\"", series_colour(i)),
                         fmt::format("{}, at most {}", who, format_bytes(most)));
  }
  std::string caption =
      "Memory of the first replica of each stage during and after its computations; the activations of a microbatch "
      "are kept from its forward to its backward.";
  if (limit) caption += " The device has " + format_bytes(*limit) + ".";
  if (draws_limit) {
    out.line(kLeft, y(*limit), kLeft + kWide, y(*limit), "limit");
    out.text(kLeft + kWide, y(*limit) - 5, "end", "limit " + format_bytes(*limit));
  }
  const double legend = out.legend(kLeft, kTop + kHigh + 46, kWide, entries);
  return out.finish(kLeft + kWide + 20, kTop + kHigh + 52 + legend, caption);
}

Picture scaling_picture(const std::string& name, const std::vector<ScalePoint>& points) {
  Drawing out(name, "Scaling");
  int most = 1;
  double highest = 1;
  for (const ScalePoint& point : points) {
    most = std::max(most, point.copies);
    highest = std::max({highest, point.copies * point.efficiency_high, static_cast<double>(point.copies)});
  }
  const double end = highest * 1.05;
  const auto x = [&](double copies) { return kLeft + kWide * copies / (most * 1.05); };
  const auto y = [&](double speedup) { return kTop + kHigh - kHigh * speedup / end; };
  const int step = std::max(1, static_cast<int>(std::ceil(highest / 8)));
  for (int tick = 0; tick <= highest; tick += step) {
    out.line(kLeft, y(tick), kLeft + kWide, y(tick), "grid");
    out.text(kLeft - 6, y(tick) + 4, "end", fmt::format("{} x", tick));
  }
  out.line(x(0), y(0), x(most), y(most), "limit");
  std::vector<const ScalePoint*> sorted;
  for (const ScalePoint& point : points) sorted.push_back(&point);
  std::ranges::sort(sorted, {}, [](const ScalePoint* point) { return point->copies; });
  std::string upper;
  std::string lower;
  std::string middle;
  for (const ScalePoint* point : sorted) {
    const double n = point->copies;
    upper += fmt::format("{}{:.2f},{:.2f} ", upper.empty() ? "M" : "L", x(n), y(n * point->efficiency_high));
    lower = fmt::format("L{:.2f},{:.2f} ", x(n), y(n * point->efficiency_low)) + lower;
    middle += fmt::format("{}{:.2f},{:.2f} ", middle.empty() ? "M" : "L", x(n), y(n * point->efficiency));
  }
  if (!sorted.empty()) {
    out.path(upper + lower + "Z", fmt::format("fill=\"{}\" fill-opacity=\"0.2\" stroke=\"none\"", series_colour(0)));
    out.path(middle, stroke(0));
  }
  for (const ScalePoint* point : sorted) {
    const double n = point->copies;
    const std::string words = fmt::format("{} devices: {} per step, {:.1f} % efficient ({:.1f} to {:.1f} %)",
                                          point->devices, format_seconds(point->iteration), point->efficiency * 100,
                                          point->efficiency_low * 100, point->efficiency_high * 100);
    out.rect(x(n) - 3.5, y(n * point->efficiency) - 3.5, 7, 7, fmt::format("fill=\"{}\"", series_colour(0)), words);
  }
  double free = kLeft + kWide + 20;  // left of the labels so far
  for (auto point = sorted.rbegin(); point != sorted.rend(); ++point) {
    const std::string label = std::to_string((*point)->copies);
    const double half = text_width(label, 11) / 2;
    if (x((*point)->copies) + half > free) continue;
    out.text(x((*point)->copies), kTop + kHigh + 17, "middle", label);
    free = x((*point)->copies) - half - 4;
  }
  out.text(kLeft + kWide, kTop + kHigh + 32, "end", "copies of the plan");
  const double legend =
      out.legend(kLeft, kTop + kHigh + 46, kWide,
                 {{fmt::format("fill=\"{}\"", series_colour(0)), "predicted throughput, with its 90 % interval"},
                  {"fill=\"none\"", "dashed: perfect scaling"}});
  return out.finish(kLeft + kWide + 20, kTop + kHigh + 52 + legend,
                    "Throughput of several copies of the plan over that of one. The difference from the dashed line is "
                    "the cost of summing gradients across the copies.");
}

}  // namespace stagecraft::report
