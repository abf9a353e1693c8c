#include "partitioner/choices/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "partitioner/candidate.h"

namespace stagecraft::partitioner {
namespace {

constexpr std::array kObjectives{std::pair(Objective::Time, "time"), std::pair(Objective::Cost, "cost"),
                                 std::pair(Objective::Memory, "memory")};
/// Up to this many groups of a level, every number of them is a part.
constexpr int kEveryCount = 8;

/// Ten digits, so that sums in another order are equal and the order of plans is one.
double rounded(double value) { return std::stod(fmt::format("{:.9e}", value)); }

}  // namespace

Merits merits(const RankedPlan& ranked) {
  Merits out;
  out.step = ranked.prediction.iteration;
  out.samples_per_s = ranked.prediction.samples_per_s;
  out.devices = devices_of(ranked.plan);
  out.stages = to_int(ranked.plan.stages.size());
  out.memory = peak_memory(ranked.prediction);
  return out;
}

Seconds device_time(const Merits& merits) { return merits.step * merits.devices; }

const char* to_string(Objective objective) {
  for (const auto& [listed, name] : kObjectives) {
    if (listed == objective) return name;
  }
  return "";
}

Objective objective_by_name(const std::string& name) {
  std::vector<std::string> known;
  for (const auto& [objective, listed] : kObjectives) {
    if (name == listed) return objective;
    known.emplace_back(listed);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("objective", name, known));
}

bool meets(const RankedPlan& ranked, const Goal& goal) {
  if (!ranked.fits) return false;
  const std::optional<double>& samples = ranked.prediction.samples_per_s;
  return !goal.min_samples_per_s || (samples && *samples >= *goal.min_samples_per_s * (1 - 1e-9));
}

std::vector<double> rank_key(const Merits& merits, Objective objective) {
  const double step = rounded(merits.step.value);
  const auto memory = static_cast<double>(merits.memory.value);
  switch (objective) {
    case Objective::Cost:
      return {rounded(device_time(merits).value), step, static_cast<double>(merits.stages), memory};
    case Objective::Memory:
      return {memory, step, static_cast<double>(merits.devices), static_cast<double>(merits.stages)};
    case Objective::Time:
      break;
  }
  return {step, static_cast<double>(merits.devices), static_cast<double>(merits.stages), memory};
}

void sort_by_goal(std::vector<RankedPlan>& plans, const Goal& goal) {
  const auto key = [&](const RankedPlan& ranked) {
    return std::pair(!meets(ranked, goal), rank_key(merits(ranked), goal.objective));
  };
  std::ranges::stable_sort(plans, {}, key);
}

std::vector<RankedPlan> front_of(std::vector<RankedPlan> plans) {
  std::erase_if(plans, [](const RankedPlan& ranked) { return !ranked.fits; });
  sort_by_goal(plans, {});
  // By step, so that a plan can only be dominated by one before it.
  std::vector<RankedPlan> out;
  std::vector<Merits> kept;
  for (RankedPlan& ranked : plans) {
    const Merits merit = merits(ranked);
    const auto covers = [&](const Merits& other) {
      return other.devices <= merit.devices && other.memory <= merit.memory;
    };
    if (std::ranges::any_of(kept, covers)) continue;
    kept.push_back(merit);
    out.push_back(std::move(ranked));
  }
  return out;
}

bool is_same_choice(const Plan& a, const Plan& b, bool steps_differ) {
  if (a.chunks != b.chunks || a.stages.size() != b.stages.size()) return false;
  for (std::size_t s = 0; s < a.stages.size(); ++s) {
    Stage other = b.stages[s];
    if (!steps_differ && other.devices.size() == a.stages[s].devices.size()) other.devices = a.stages[s].devices;
    if (a.stages[s] != other) return false;
  }
  return true;
}

std::vector<Topology> parts_of(const Topology& topology) {
  std::vector<Topology> out;
  for (std::size_t level = 0; level < topology.levels.size(); ++level) {
    const int whole = topology.levels[level].count;
    for (int count = level == 0 ? 1 : 2; count <= whole; count += count < kEveryCount ? 1 : count) {
      Topology part = topology;
      part.levels[level].count = count;
      for (std::size_t outer = level + 1; outer < part.levels.size(); ++outer) part.levels[outer].count = 1;
      if (part.levels != topology.levels) out.push_back(std::move(part));
    }
    const bool doubled_past = whole > kEveryCount && (whole & (whole - 1)) != 0;
    if (doubled_past && level + 1 < topology.levels.size()) {  // the whole group
      Topology part = topology;
      for (std::size_t outer = level + 1; outer < part.levels.size(); ++outer) part.levels[outer].count = 1;
      if (part.levels != topology.levels) out.push_back(std::move(part));
    }
  }
  return out;
}

}  // namespace stagecraft::partitioner
