#include "costmodel/analysis/scaling.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/prediction/step_replay.h"

namespace stagecraft {
namespace {

/// Devices of all groups inside one group of the level.
int devices_inside(const Topology& topology, int level) {
  int out = 1;
  for (int i = 0; i <= level; ++i) out *= topology.levels[to_index(i)].count;
  return out;
}

void check_replicable(const Plan& plan, const std::string& what) {
  if (!schedule_of(plan).replicated || !plan.listed.empty()) {
    throw std::invalid_argument(what + ": schedule \"" + plan.schedule + "\" does not support replicas; 1f1b does");
  }
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

}  // namespace stagecraft
