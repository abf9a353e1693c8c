#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/report/pictures.h"
#include "costmodel/text/units_text.h"

namespace stagecraft::report {
namespace {

constexpr double kLeft = 86;
constexpr double kTop = 26;
constexpr double kWide = 560;
constexpr double kHigh = 340;
constexpr double kLegend = 170;
constexpr double kLine = 20;
constexpr double kLabel = 10;  // font size
constexpr int kTicks = 6;

using format::ListedPlan;

/// Samples, or steps, per second; 0 for a step without time.
double throughput(const ListedPlan& plan) {
  return plan.samples_per_s.value_or(plan.step > Seconds(0) ? 1 / plan.step.value : 0);
}

/// Whether another plan is at least as fast with as little memory on as few devices, and better in one of them.
bool is_dominated(const ListedPlan& plan, const std::vector<ListedPlan>& plans) {
  return std::ranges::any_of(plans, [&](const ListedPlan& other) {
    const bool as_good =
        throughput(other) >= throughput(plan) && other.memory <= plan.memory && other.device_count <= plan.device_count;
    return as_good && (throughput(other) > throughput(plan) || other.memory < plan.memory ||
                       other.device_count < plan.device_count);
  });
}

struct LabelArea {
  double left, top, right, bottom;
  [[nodiscard]] bool touches(const LabelArea& other) const {
    return left < other.right && other.left < right && top < other.bottom && other.top < bottom;
  }
};

/// Writes labels next to marks, where they touch neither marks nor other labels.
class MarkLabels {
 public:
  explicit MarkLabels(const LabelArea& frame) : frame_(frame) {}

  void keep_clear(const LabelArea& box) { taken_.push_back(box); }

  /// False if there is no place next to the mark.
  bool write(Drawing& out, double x, double y, const std::string& words) {
    const double wide = text_width(words, kLabel);
    constexpr double r = kMarkRadius + 1;
    // Lines come to a mark from below and leave it to the right.
    for (const auto& [left, middle] : std::array<std::pair<double, double>, 8>{{{x - r - wide, y},
                                                                                {x - wide / 2, y - r - kLabel / 2},
                                                                                {x - r - wide, y - r},
                                                                                {x + r, y - r},
                                                                                {x + r, y + r},
                                                                                {x - r - wide, y + r},
                                                                                {x + r, y},
                                                                                {x - wide / 2, y + r + kLabel / 2}}}) {
      const LabelArea box{left, middle - kLabel / 2, left + wide, middle + kLabel / 2};
      const bool inside =
          box.left >= frame_.left && box.right <= frame_.right && box.top >= frame_.top && box.bottom <= frame_.bottom;
      if (!inside || std::ranges::any_of(taken_, [&](const LabelArea& other) { return box.touches(other); })) continue;
      out.text(left, middle + 0.35 * kLabel, "start", words, "ink", kLabel);
      taken_.push_back(box);
      return true;
    }
    return false;
  }

 private:
  LabelArea frame_;
  std::vector<LabelArea> taken_;
};

}  // namespace

Picture front_picture(const std::string& name, const format::PlanList& list, std::optional<Bytes> limit) {
  Drawing out(name, "Trade-off between throughput, memory and devices");
  const auto [small, large] = std::ranges::minmax(list.plans, {}, &ListedPlan::memory);
  const auto [slow, fast] = std::ranges::minmax(list.plans, {}, throughput);
  // A limit far away would leave no room for the plans; it is then only named.
  const bool draws_limit = limit && large.memory.value >= limit->value / 2;
  const Axis memory = bytes_axis(small.memory, draws_limit ? std::max(large.memory, *limit) : large.memory, kTicks);
  const Axis rates = number_axis(throughput(slow), throughput(fast), kTicks);
  const auto x = [&](Bytes bytes) { return kLeft + kWide * memory.share(static_cast<double>(bytes.value)); };
  const auto y = [&](const ListedPlan& plan) { return kTop + kHigh * (1 - rates.share(throughput(plan))); };
  for (const double tick : memory.ticks) {
    const double at = kLeft + kWide * memory.share(tick);
    out.line(at, kTop, at, kTop + kHigh, "grid");
    out.text(at, kTop + kHigh + 16, "middle", memory.label(tick), "soft", 10);
  }
  for (const double tick : rates.ticks) {
    const double at = kTop + kHigh * (1 - rates.share(tick));
    out.line(kLeft, at, kLeft + kWide, at, "grid");
    out.text(kLeft - 8, at + 4, "end", rates.label(tick), "soft", 10);
  }
  out.rect(kLeft, kTop, kWide, kHigh, "class=\"axis\"");
  const std::string rate_unit = list.plans.front().samples_per_s ? "samples/s" : "steps/s";
  std::string caption =
      "Each mark is a plan, with its number in the list. Lines join the plans that no listed plan dominates in "
      "throughput, memory and devices.";
  if (limit) caption += " A plan may use " + format_bytes(*limit) + " of a device.";
  if (memory.begin > 0 || rates.begin > 0)
    caption += fmt::format(" {} {} not begin at 0.",
                           memory.begin > 0 && rates.begin > 0 ? "The axes"
                           : memory.begin > 0                  ? "The axis of memory"
                                                               : "The axis of " + rate_unit,
                           memory.begin > 0 && rates.begin > 0 ? "do" : "does");
  if (draws_limit) {
    out.line(x(*limit), kTop - 4, x(*limit), kTop + kHigh, "limit");
    const bool right = memory.share(static_cast<double>(limit->value)) > 0.5;
    out.text(x(*limit), kTop - 8, right ? "end" : "start", "limit " + format_bytes(*limit), "limittext");
  }

  std::vector<bool> beaten;
  std::map<int, std::vector<const ListedPlan*>> unbeaten;  // by number of devices
  MarkLabels labels({kLeft + 1, kTop + 1, kLeft + kWide - 1, kTop + kHigh - 1});
  for (const ListedPlan& plan : list.plans) {
    beaten.push_back(is_dominated(plan, list.plans));
    std::vector<const ListedPlan*>& of_count = unbeaten[plan.device_count];
    if (!beaten.back()) of_count.push_back(&plan);
    labels.keep_clear(
        {x(plan.memory) - kMarkRadius, y(plan) - kMarkRadius, x(plan.memory) + kMarkRadius, y(plan) + kMarkRadius});
  }
  std::map<int, std::size_t> series;
  // More counts than marks that differ: colours in the order of the counts, and each plan's count next to its number.
  const bool ramps = unbeaten.size() > kDistinctSeries;
  const auto colour_of = [&](std::size_t number) -> std::string {
    if (!ramps) return series_colour(number);
    return ramp_colour(static_cast<double>(number) / static_cast<double>(unbeaten.size() - 1));
  };
  for (auto& [devices, plans] : unbeaten) {
    const std::size_t number = series.size();
    series[devices] = number;
    std::ranges::sort(plans, {}, [](const ListedPlan* plan) { return plan->memory; });
    std::string points;
    for (const ListedPlan* plan : plans) {
      points += points.empty() ? fmt::format("M{:.2f},{:.2f}", x(plan->memory), y(*plan))
                               : fmt::format(" H{:.2f} V{:.2f}", x(plan->memory), y(*plan));
    }
    if (plans.size() > 1)
      out.path(points, fmt::format("fill=\"none\" stroke=\"{}\" stroke-width=\"1.2\"", colour_of(number)));
  }
  std::size_t unlabelled = 0;
  for (std::size_t i = 0; i < list.plans.size(); ++i) {
    const ListedPlan& plan = list.plans[i];
    const std::size_t number = series[plan.device_count];
    out.mark(number, x(plan.memory), y(plan),
             fmt::format("plan {}, {}: {} device{}, step {}, {}{}", i + 1, plan.origin, plan.device_count,
                         plan.device_count == 1 ? "" : "s", format_seconds(plan.step), format_bytes(plan.memory),
                         beaten[i] ? "; another plan is better" : ""),
             beaten[i], colour_of(number));
  }
  for (std::size_t i = 0; i < list.plans.size(); ++i) {
    const ListedPlan& plan = list.plans[i];
    const std::string words = ramps ? fmt::format("{} ({})", i + 1, plan.device_count) : std::to_string(i + 1);
    if (!labels.write(out, x(plan.memory), y(plan), words)) ++unlabelled;
  }
  if (ramps) caption += " In parentheses: its devices, which are more the lighter the mark is.";
  if (unlabelled > 0) caption += fmt::format(" {} numbers have no room.", unlabelled);

  double at = kTop + 10;
  const auto entry = [&](std::size_t number, const std::string& words, bool light) {
    out.mark(number, kLeft + kWide + 24, at, "", light, colour_of(number));
    out.text(kLeft + kWide + 36, at + 4, "start", words, light ? "soft" : "strong");
    at += kLine;
  };
  for (const auto& [devices, number] : series)
    entry(number, fmt::format("{} {}", devices, devices == 1 ? "device" : "devices"), false);
  if (std::ranges::find(beaten, true) != beaten.end()) entry(0, "another is better", true);
  out.text(kLeft + kWide / 2, kTop + kHigh + 36, "middle", "peak memory of a device, " + memory.unit);
  out.text(20, kTop + kHigh / 2, "middle", rate_unit, "ink", 11,
           fmt::format("transform=\"rotate(-90 20 {:.0f})\"", kTop + kHigh / 2));
  return out.finish(kLeft + kWide + kLegend, std::max(kTop + kHigh + 48, at), caption);
}

}  // namespace stagecraft::report
