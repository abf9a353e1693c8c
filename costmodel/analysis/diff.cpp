#include "costmodel/analysis/diff.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/prediction/step_replay.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {
namespace {

constexpr std::size_t kShownMoves = 20;

std::string recompute_text(const Stage& stage) {
  if (!stage.recompute) return "off";
  return stage.recompute_every > 0 ? fmt::format("every {} layers", stage.recompute_every) : "on";
}

std::string listed_text(const Plan& plan) {
  std::size_t count = 0;
  for (const auto& list : plan.listed) count += list.size();
  return count > 0 ? fmt::format("{} actions", count) : "none";
}

std::string numbers_text(const std::vector<int>& numbers) { return fmt::format("{}", fmt::join(numbers, " ")); }

std::string range_text(const Prediction& p) {
  return p.low && p.high ? fmt::format("{} to {}", format_seconds(*p.low), format_seconds(*p.high)) : "-";
}

std::string peak_text(const Prediction& p) {
  Bytes out;
  for (const RankMemory& memory : p.timeline.memory) out = std::max(out, memory.total);
  return format_bytes(out);
}

/// Devices that a plan uses.
std::size_t devices_of(const Plan& plan) {
  std::set<int> out;
  for (const Stage& stage : plan.stages) out.insert(stage.devices.begin(), stage.devices.end());
  return out.size();
}

/// A normal distribution has no certainty.
std::string probability_text(double probability) {
  return fmt::format("{:.1f} %", std::clamp(probability * 100, 0.1, 99.9));
}

}  // namespace

std::vector<PlanDifference> plan_differences(const Plan& first, const Plan& second) {
  std::vector<PlanDifference> out;
  const auto compare = [&](const std::string& what, const std::string& a, const std::string& b) {
    if (a != b) out.push_back({what, a, b});
  };
  const auto bucket = [](const Plan& plan) {
    return plan.gradient_bucket_bytes ? format_bytes(*plan.gradient_bucket_bytes) : "none";
  };
  compare("schedule", first.schedule, second.schedule);
  compare("microbatches", std::to_string(first.microbatches), std::to_string(second.microbatches));
  compare("chunks", std::to_string(first.chunks), std::to_string(second.chunks));
  compare("devices", std::to_string(devices_of(first)), std::to_string(devices_of(second)));
  compare("stages", std::to_string(first.stages.size()), std::to_string(second.stages.size()));
  for (std::size_t s = 0; s < std::min(first.stages.size(), second.stages.size()); ++s) {
    const Stage& a = first.stages[s];
    const Stage& b = second.stages[s];
    const std::string stage = fmt::format("stage {} ", s);
    compare(stage + "replicas", std::to_string(a.devices.size()), std::to_string(b.devices.size()));
    compare(stage + "devices", format_ranges(a.devices), format_ranges(b.devices));
    compare(stage + "recomputation", recompute_text(a), recompute_text(b));
  }
  compare("gradient buckets", bucket(first), bucket(second));
  compare("sharding", to_string(first.sharding), to_string(second.sharding));
  compare("warm-ups", numbers_text(first.warmups), numbers_text(second.warmups));
  if (first.listed != second.listed) out.push_back({"listed actions", listed_text(first), listed_text(second)});
  return out;
}

std::vector<MovedLayer> moved_layers(const BoundPlan& first, const BoundPlan& second) {
  std::vector<MovedLayer> out;
  for (int s = 0; s < first.stages(); ++s) {
    for (const std::string& id : first.plan().stages[to_index(s)].layers) {
      const std::optional<int> other = second.stage_of(id);
      if (other && *other != s) out.push_back({id, s, *other});
    }
  }
  return out;
}

std::variant<PlanComparison, Infeasible> compare_plans(const Graph& graph, const Topology& topology, const Plan& first,
                                                       const Plan& second,
                                                       const std::optional<Calibration>& calibration,
                                                       const PredictOptions& options) {
  PlanComparison out;
  const BoundPlan bound[] = {BoundPlan(first), BoundPlan(second)};
  out.moved = moved_layers(bound[0], bound[1]);
  out.differences = plan_differences(first, second);
  ProgressParts parts(options, 4);
  for (const bool is_second : {false, true}) {
    auto result = predict_with_intervals(graph, topology, bound[is_second ? 1 : 0], calibration, parts.next());
    if (auto* none = std::get_if<Infeasible>(&result)) return std::move(*none);
    (is_second ? out.second : out.first) = std::get<Prediction>(std::move(result));
  }
  auto ratio = step_ratio({graph, topology, first}, {graph, topology, second}, calibration, parts.next(2));
  if (auto* none = std::get_if<Infeasible>(&ratio)) return std::move(*none);
  out.ratio = std::get<StepRatio>(ratio);
  return out;
}

std::string plan_comparison_text(const PlanComparison& comparison, const std::string& first, const std::string& second,
                                 const Screen& screen) {
  const Prediction& a = comparison.first;
  const Prediction& b = comparison.second;
  std::vector<std::vector<std::string>> rows;
  for (const PlanDifference& difference : comparison.differences)
    rows.push_back({difference.what, difference.first, difference.second});
  rows.push_back({"step", format_seconds(a.iteration), format_seconds(b.iteration)});
  rows.push_back({"  90 % interval", range_text(a), range_text(b)});
  if (a.samples_per_s && b.samples_per_s) {
    rows.push_back(
        {"samples per second", fmt::format("{:.1f}", *a.samples_per_s), fmt::format("{:.1f}", *b.samples_per_s)});
  }
  rows.push_back({"largest peak memory", peak_text(a), peak_text(b)});
  std::string out = table_text({{.title = "", .left = true}, {.title = first}, {.title = second}}, rows, screen);
  for (std::size_t i = 0; i < std::min(kShownMoves, comparison.moved.size()); ++i) {
    const MovedLayer& moved = comparison.moved[i];
    out += fmt::format("layer {}: stage {} and stage {}\n", moved.layer, moved.first, moved.second);
  }
  if (comparison.moved.size() > kShownMoves)
    out += fmt::format("and {} more layers in other stages\n", comparison.moved.size() - kShownMoves);
  if (comparison.moved.empty() && comparison.differences.empty()) return out + "the plans do not differ\n";
  const StepRatio& ratio = comparison.ratio;
  out += fmt::format("time per microbatch of {} over {}: {:.3f}, 90 % interval {:.3f} to {:.3f}\n", first, second,
                     ratio.ratio, ratio.low, ratio.high);
  for (const PlanDifference& difference : comparison.differences) {
    if (difference.what != "devices") continue;
    out += fmt::format(
        "{} uses {} devices and {} uses {}: per device and microbatch, the first takes {:.3f} times as "
        "long\n",
        first, difference.first, second, difference.second,
        ratio.ratio * std::stod(difference.first) / std::stod(difference.second));
  }
  return out + fmt::format("{} is faster with a probability of {}\n", first, probability_text(ratio.first_faster));
}

}  // namespace stagecraft
