#include "partitioner/choices/front_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::partitioner {
namespace {

constexpr double kLeft = 86;
constexpr double kTop = 20;
constexpr double kWide = 560;
constexpr double kHigh = 340;
constexpr double kLegend = 170;
constexpr double kRadius = 4.2;
constexpr double kLine = 20;
constexpr int kTicks = 6;

double throughput(const format::ListedPlan& plan) { return plan.samples_per_s.value_or(1 / plan.step.value); }

void dot(report::Drawing& out, double x, double y, const char* colour, const std::string& tooltip) {
  out.path(fmt::format("M{0:.2f},{1:.2f} a{2},{2} 0 1 0 {3},0 a{2},{2} 0 1 0 -{3},0 Z", x - kRadius, y, kRadius,
                       2 * kRadius),
           fmt::format("fill=\"{0}\" fill-opacity=\"0.85\" stroke=\"{0}\"", colour), tooltip);
}

}  // namespace

report::Picture front_picture(const std::string& name, const format::PlanList& list) {
  report::Drawing out(name, "Trade-off between step, devices and memory");
  Bytes most_memory;
  double most_rate = 0;
  std::map<int, std::vector<const format::ListedPlan*>> by_devices;
  for (const format::ListedPlan& plan : list.plans) {
    most_memory = std::max(most_memory, plan.memory);
    most_rate = std::max(most_rate, throughput(plan));
    by_devices[plan.device_count].push_back(&plan);
  }
  const report::Axis memory = report::bytes_axis(most_memory, kTicks);
  const report::Axis rates = report::number_axis(most_rate, kTicks);
  const auto x = [&](Bytes bytes) { return kLeft + kWide * static_cast<double>(bytes.value) / memory.end; };
  const auto y = [&](double rate) { return kTop + kHigh * (1 - rate / rates.end); };
  for (const double tick : memory.ticks) {
    const double at = kLeft + kWide * tick / memory.end;
    out.line(at, kTop, at, kTop + kHigh, "grid");
    out.text(at, kTop + kHigh + 16, "middle", memory.label(tick), "soft", 10);
  }
  for (const double tick : rates.ticks) {
    out.line(kLeft, y(tick), kLeft + kWide, y(tick), "grid");
    out.text(kLeft - 8, y(tick) + 4, "end", fmt::format("{:.4g}", tick), "soft", 10);
  }
  out.rect(kLeft, kTop, kWide, kHigh, "class=\"axis\"");
  std::size_t number = 0;
  for (auto& [devices, plans] : by_devices) {
    const char* colour = report::series_colour(number);
    std::ranges::sort(plans, {}, [](const format::ListedPlan* plan) { return plan->memory.value; });
    std::string points;
    for (const format::ListedPlan* plan : plans)
      points += fmt::format("{}{:.2f},{:.2f}", points.empty() ? "M" : " L", x(plan->memory), y(throughput(*plan)));
    if (plans.size() > 1) out.path(points, fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.2\"", colour));
    for (const format::ListedPlan* plan : plans) {
      dot(out, x(plan->memory), y(throughput(*plan)), colour,
          fmt::format("{}: {} devices, step {}, {}", plan->origin, devices, format_seconds(plan->step),
                      format_bytes(plan->memory)));
    }
    const double at = kTop + 10 + kLine * static_cast<double>(number);
    dot(out, kLeft + kWide + 24, at, colour, "");
    out.text(kLeft + kWide + 36, at + 4, "start", fmt::format("{} {}", devices, devices == 1 ? "device" : "devices"),
             "strong");
    ++number;
  }
  out.text(kLeft + kWide / 2, kTop + kHigh + 36, "middle", fmt::format("peak memory of a device [{}]", memory.unit));
  out.text(20, kTop + kHigh / 2, "middle", list.plans.front().samples_per_s ? "samples/s" : "steps/s", "ink", 11,
           fmt::format("transform=\"rotate(-90 20 {:.0f})\"", kTop + kHigh / 2));
  const double height = std::max(kTop + kHigh + 48, kTop + 20 + kLine * static_cast<double>(number));
  return out.finish(kLeft + kWide + kLegend, height,
                    "Each mark is a plan; no other plan is as fast with as little memory on as few devices.");
}

}  // namespace stagecraft::partitioner
