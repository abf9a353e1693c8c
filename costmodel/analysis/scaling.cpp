#include "costmodel/analysis/scaling.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/prediction/progress_parts.h"

namespace stagecraft {

Scenario scaled(const Scenario& one, int copies, ScaledWork work) {
  if (copies < 1) throw std::invalid_argument(std::to_string(copies) + " copies: there must be at least 1");
  Scenario out = one;
  if (copies == 1) return out;
  const ScheduleEntry& schedule = schedule_of(one.plan);
  if (!schedule.replicated || !one.plan.listed.empty()) {
    throw std::invalid_argument(std::to_string(copies) + " copies: schedule \"" + one.plan.schedule +
                                "\" does not support replicas; 1f1b does");
  }
  if (one.topology.levels.size() == 1 && one.topology.device.host_processors > 0) {
    throw std::invalid_argument(std::to_string(copies) + " copies: the topology has one host, \"" +
                                one.topology.levels.front().name + "\"; add a level for the link that joins hosts");
  }
  const int devices = device_count(one.topology);
  out.topology.levels.back().count *= copies;
  for (Stage& stage : out.plan.stages) {
    const std::vector<int> own = stage.devices;
    for (int copy = 1; copy < copies; ++copy) {
      for (const int device : own) stage.devices.push_back(device + copy * devices);
    }
  }
  for (int copy = 1; copy < copies; ++copy) {
    for (DeviceRange range : one.topology.others) {
      range.first += copy * devices;
      out.topology.others.push_back(std::move(range));
    }
  }
  const std::int64_t microbatches = std::int64_t{one.plan.microbatches} * (work == ScaledWork::PerCopy ? copies : 1);
  if (microbatches > kMostMicrobatches)
    throw std::invalid_argument(std::to_string(copies) + " copies: a step has more than 2^20 microbatches");
  out.plan.microbatches = static_cast<int>(microbatches);
  out.plan.iteration.reset();
  out.plan.lower_bound.reset();
  validate(out.topology);
  return out;
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
    auto result = predict_with_intervals(many.graph, many.topology, BoundPlan(many.plan), calibration, parts.next(count));
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
