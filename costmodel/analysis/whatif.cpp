#include "costmodel/analysis/whatif.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "costmodel/analysis/scaling.h"
#include "costmodel/index.h"
#include "costmodel/prediction/step_replay.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {

std::variant<WhatIf, Infeasible> what_if(const Scenario& scenario, const std::vector<std::string>& changes,
                                         const std::optional<Calibration>& calibration, const PredictOptions& options,
                                         const std::string& other_device) {
  Scenario changed = scenario;
  for (const std::string& change : changes) changed = with_change(std::move(changed), change);
  WhatIf out;
  out.changes = changes;
  ProgressParts parts(options, 4);
  for (const bool after : {false, true}) {
    const Scenario& of = after ? changed : scenario;
    auto result = predict_with_intervals(of.graph, of.topology, BoundPlan(of.plan), calibration, parts.next());
    if (auto* none = std::get_if<Infeasible>(&result)) return std::move(*none);
    (after ? out.after : out.before) = std::get<Prediction>(std::move(result));
  }
  out.before.other_device = other_device;
  out.after.other_device =
      changed.graph.estimate == scenario.graph.estimate ? other_device : estimate_text(changed.graph);
  out.before_microbatch = out.before.iteration / scenario.plan.microbatches;
  out.after_microbatch = out.after.iteration / changed.plan.microbatches;
  auto ratio = step_ratio(changed, scenario, calibration, parts.next(2));
  if (auto* none = std::get_if<Infeasible>(&ratio)) return std::move(*none);
  out.ratio = std::get<StepRatio>(ratio);
  return out;
}

namespace {

/// The ranks that run the same stages.
struct RanksOfStages {
  std::string stages;  ///< "stage 1"; with chunks "stages 0, 2"
  std::vector<int> ranks;
};

std::vector<RanksOfStages> ranks_by_stage(const Prediction& prediction) {
  const std::vector<std::vector<int>> positions = stages_of_positions(prediction);
  std::vector<std::vector<int>> ranks(positions.size());  // a rank's first stage is its position
  for (const RankMemory& memory : prediction.timeline.memory)
    ranks[to_index(prediction.timeline.stage_of_rank[to_index(memory.rank)])].push_back(memory.rank);
  std::vector<RanksOfStages> out;
  for (std::size_t p = 0; p < positions.size(); ++p) {
    out.push_back({fmt::format("stage{} {}", positions[p].size() == 1 ? "" : "s", fmt::join(positions[p], ", ")),
                   std::move(ranks[p])});
  }
  return out;
}

/// "stage 1, ranks 2-5"; without the ranks if the change gives the stages others.
std::string label_of(const RanksOfStages& before, const RanksOfStages& after) {
  const std::vector<int>& ranks = before.ranks;
  if (ranks != after.ranks) return before.stages;
  return before.stages + (ranks.size() == 1 ? fmt::format(", rank {}", ranks[0])
                                            : fmt::format(", ranks {}-{}", ranks.front(), ranks.back()));
}

Bytes largest_peak(const Prediction& prediction, const std::vector<int>& ranks) {
  Bytes out;
  for (const int rank : ranks) out = std::max(out, prediction.timeline.memory[to_index(rank)].total);
  return out;
}

}  // namespace

std::string whatif_text(const WhatIf& result, const Screen& screen) {
  std::vector<std::vector<std::string>> rows;
  const auto change = [](double ratio) { return fmt::format("{:+.1f} %", (ratio - 1) * 100); };
  const Prediction& before = result.before;
  const Prediction& after = result.after;
  const auto range = [](const Prediction& p) {
    return p.low && p.high ? fmt::format("{} to {}", format_seconds(*p.low), format_seconds(*p.high)) : "-";
  };
  const auto share = [](Seconds a, Seconds b) { return b > Seconds(0) ? a / b : 1; };
  rows.push_back({"step", format_seconds(before.iteration), format_seconds(after.iteration),
                  change(share(after.iteration, before.iteration))});
  rows.push_back({"  90 % interval", range(before), range(after), ""});
  rows.push_back({"time per microbatch", format_seconds(result.before_microbatch),
                  format_seconds(result.after_microbatch), change(result.ratio.ratio)});
  rows.push_back({"  90 % interval", "", "", change(result.ratio.low) + " to " + change(result.ratio.high)});
  if (before.samples_per_s && after.samples_per_s) {
    rows.push_back({"samples per second", fmt::format("{:.1f}", *before.samples_per_s),
                    fmt::format("{:.1f}", *after.samples_per_s), change(*after.samples_per_s / *before.samples_per_s)});
  }
  // Each rank has a device.
  const std::size_t devices_before = before.timeline.memory.size();
  const std::size_t devices_after = after.timeline.memory.size();
  if (devices_before != devices_after) {
    rows.push_back({"devices", std::to_string(devices_before), std::to_string(devices_after),
                    change(static_cast<double>(devices_after) / static_cast<double>(devices_before))});
  }
  rows.push_back({"idle", fmt::format("{:.1f} %", before.bubble * 100), fmt::format("{:.1f} %", after.bubble * 100),
                  fmt::format("{:+.1f} pt", (after.bubble - before.bubble) * 100)});
  const std::vector<RanksOfStages> ranks_before = ranks_by_stage(before);
  const std::vector<RanksOfStages> ranks_after = ranks_by_stage(after);
  for (std::size_t p = 0; p < std::min(ranks_before.size(), ranks_after.size()); ++p) {
    if (ranks_before[p].ranks.empty()) continue;
    const Bytes a = largest_peak(before, ranks_before[p].ranks);
    const Bytes b = largest_peak(after, ranks_after[p].ranks);
    rows.push_back({label_of(ranks_before[p], ranks_after[p]) + " peak memory", format_bytes(a), format_bytes(b),
                    a > Bytes(0) ? change(b / a) : "-"});
  }
  std::string out = fmt::format("with {}\n", fmt::join(result.changes, ", "));
  out += table_text({{.title = "", .left = true}, {.title = "before"}, {.title = "after"}, {.title = "change"}}, rows,
                    screen);
  if (!after.other_device.empty() && after.other_device != before.other_device)
    out += "after the change: " + after.other_device + "\n";
  for (const StagePrediction& stage : after.stages) {
    if (!stage.fits) out += fmt::format("stage {} does not fit in memory after the change\n", stage.stage);
  }
  return out;
}

}  // namespace stagecraft
