#include "costmodel/analysis/whatif.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/prediction/step_replay.h"
#include "costmodel/text/table.h"
#include "costmodel/text/units_text.h"

namespace stagecraft {
namespace {

/// Devices of all groups inside one group of the level.
int devices_inside(const Topology& topology, int level) {
  int out = 1;
  for (int i = 0; i <= level; ++i) out *= topology.levels[to_index(i)].count;
  return out;
}

void check_replicable(const Plan& plan, const std::string& what) {
  if (plan.listed.empty()) return;
  throw std::invalid_argument(what + ": the action lists of schedule \"" + plan.schedule +
                              "\" are of fixed replicas; a plan with another schedule can have any");
}

/// The plan and as many copies as make `copies` with it, each in groups of its own at the level.
Scenario copied(const Scenario& one, int level, int copies, ScaledWork work) {
  const std::string what = std::to_string(copies) + " copies";
  check_replicable(one.plan, what);
  Scenario out = one;
  const int inside = devices_inside(one.topology, level);
  const auto moved = [&](int device, int copy) {
    return device / inside * inside * copies + copy * inside + device % inside;
  };
  out.topology.levels[to_index(level)].count *= copies;
  for (Stage& stage : out.plan.stages) {
    const std::vector<int> devices = std::exchange(stage.devices, {});
    for (int copy = 0; copy < copies; ++copy) {
      for (const int device : devices) stage.devices.push_back(moved(device, copy));
    }
  }
  for (int copy = 1; copy < copies; ++copy) {  // the outermost level only
    for (DeviceRange range : one.topology.others) {
      range.first += copy * inside;
      out.topology.others.push_back(std::move(range));
    }
  }
  const std::int64_t microbatches = std::int64_t{one.plan.microbatches} * (work == ScaledWork::PerCopy ? copies : 1);
  if (microbatches > kMostMicrobatches) throw std::invalid_argument(what + ": a step has more than 2^20 microbatches");
  out.plan.microbatches = to_int(microbatches);
  return out;
}

/// The plan without its copies on the last groups of the level: one in `parts` of the groups stays.
Scenario reduced(const Scenario& one, int level, int parts) {
  check_replicable(one.plan, "fewer copies");
  Scenario out = one;
  const int before = devices_inside(one.topology, level);
  const int after = before / parts;
  out.topology.levels[to_index(level)].count /= parts;
  for (std::size_t s = 0; s < out.plan.stages.size(); ++s) {
    std::vector<int>& devices = out.plan.stages[s].devices;
    const std::size_t replicas = devices.size();
    std::erase_if(devices, [&](int device) { return device % before >= after; });
    if (devices.size() * to_index(parts) != replicas) {
      throw std::invalid_argument("stage " + std::to_string(s) + " has " + std::to_string(devices.size()) + " of its " +
                                  std::to_string(replicas) + " replicas on the devices that stay, not one in " +
                                  std::to_string(parts) + "; plan again for the smaller topology");
    }
    for (int& device : devices) device = device / before * after + device % before;
  }
  if (one.plan.microbatches % parts != 0) {
    throw std::invalid_argument("the copies that stay have one in " + std::to_string(parts) + " of the plan's " +
                                std::to_string(one.plan.microbatches) +
                                " microbatches, which is not an integer; set microbatches first");
  }
  out.plan.microbatches /= parts;
  return out;
}

/// Without what was known of another scenario, and checked.
Scenario finished(Scenario scenario) {
  scenario.plan.iteration.reset();
  scenario.plan.run_iteration.reset();
  scenario.plan.lower_bound.reset();
  validate(scenario.topology);
  return scenario;
}

}  // namespace

Scenario scaled(const Scenario& one, int copies, ScaledWork work) {
  if (copies < 1) throw std::invalid_argument(std::to_string(copies) + " copies: there must be at least 1");
  if (copies == 1) return one;
  check_replicable(one.plan, std::to_string(copies) + " copies");
  if (one.topology.levels.size() == 1 && one.topology.device.host_processors > 0) {
    throw std::invalid_argument(std::to_string(copies) + " copies: the topology has one host, \"" +
                                one.topology.levels.front().name + "\"; add a level for the link that joins hosts");
  }
  return finished(copied(one, to_int(one.topology.levels.size()) - 1, copies, work));
}

Scenario with_groups(const Scenario& one, int level, int count) {
  const int before = one.topology.levels[to_index(level)].count;
  if (count == before) return one;
  const bool is_outermost = level + 1 == to_int(one.topology.levels.size());
  if (!one.topology.others.empty() && (!is_outermost || count < before))
    throw std::invalid_argument("needs devices of one type, the topology has several");
  if (count % before != 0 && before % count != 0) {
    throw std::invalid_argument("found " + std::to_string(count) + ", expected a multiple or a divisor of " +
                                std::to_string(before) +
                                ", so that the plan has as many copies; for another number plan again");
  }
  return finished(count > before ? copied(one, level, count / before, ScaledWork::PerCopy)
                                 : reduced(one, level, before / count));
}

std::variant<std::vector<ScalePoint>, Infeasible> predict_scaling(const Scenario& one, const std::vector<int>& copies,
                                                                  ScaledWork work,
                                                                  const std::optional<Calibration>& calibration,
                                                                  const PredictOptions& options) {
  std::vector<ScalePoint> out;
  // A prediction takes in proportion to the copies; from the second on, one copy is predicted again beside them.
  ProgressParts parts(options, std::accumulate(copies.begin(), copies.end(), 0.0, [](double sum, int count) {
                        return sum + (count == 1 ? 1 : 2 * count + 1);
                      }));
  for (const int count : copies) {
    const Scenario many = scaled(one, count, work);
    auto result =
        predict_with_intervals(many.graph, many.topology, BoundPlan(many.plan), calibration, parts.next(count));
    if (auto* none = std::get_if<Infeasible>(&result)) return std::move(*none);
    const Prediction& prediction = std::get<Prediction>(result);
    ScalePoint point;
    point.copies = count;
    point.devices = device_count(many.topology);
    point.microbatches = many.plan.microbatches;
    point.iteration = prediction.iteration;
    point.low = prediction.low.value_or(prediction.iteration);
    point.high = prediction.high.value_or(prediction.iteration);
    point.samples_per_s = prediction.samples_per_s;
    for (const StagePrediction& stage : prediction.stages) point.fits = point.fits && stage.fits;
    if (count > 1) {
      const auto ratio = step_ratio(many, one, calibration, parts.next(count + 1));
      if (const auto* none = std::get_if<Infeasible>(&ratio)) return *none;
      // Per microbatch, perfect scaling takes 1 / count of the time.
      const auto& found = std::get<StepRatio>(ratio);
      point.efficiency = 1 / (found.ratio * count);
      point.efficiency_low = 1 / (found.high * count);
      point.efficiency_high = 1 / (found.low * count);
    }
    out.push_back(point);
  }
  return out;
}

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
