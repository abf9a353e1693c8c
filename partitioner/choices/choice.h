#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// What a plan achieves and what it costs.
struct Merits {
  Seconds step;
  std::optional<double> samples_per_s;  ///< absent if the graph does not give its microbatch
  int devices = 0;                      ///< in stages, each once
  int stages = 0;
  Bytes memory;  ///< of the rank that needs the most
};

/// The merits of a plan by its prediction.
[[nodiscard]] Merits merits(const RankedPlan& ranked);

/// Devices times step: what a step costs, in seconds of one device.
[[nodiscard]] Seconds device_time(const Merits& merits);

/// What to minimise.
enum class Objective { Time, Cost, Memory };

/// "time", "cost", "memory": devices times step is the cost; peak memory of a device the memory.
[[nodiscard]] const char* to_string(Objective objective);
/// The inverse. Throws std::invalid_argument listing the names.
[[nodiscard]] Objective objective_by_name(const std::string& name);

/// Which plan is the best.
struct Goal {
  Objective objective = Objective::Time;
  std::optional<double> min_samples_per_s = {};  ///< plans with fewer do not count
};

/// Whether the plan fits in memory and reaches the required throughput.
[[nodiscard]] bool meets(const RankedPlan& ranked, const Goal& goal);

/// Sort key of a plan for `objective`; values within 1e-9 are equal. Ties in the step go to the plan with fewer
/// devices, then fewer stages, then less memory; ties in cost or memory go to the shorter step.
[[nodiscard]] std::vector<double> rank_key(const Merits& merits, Objective objective);

/// Sorts plans that meet the goal before all others, then by rank_key. Equal plans keep their order.
void sort_by_goal(std::vector<RankedPlan>& plans, const Goal& goal);

/// The Pareto front, by step: the plans that fit and that no other plan equals or beats in step, devices and memory at
/// once. Of plans that are equal in all three, the front has the plan with fewer stages, then the first.
[[nodiscard]] std::vector<RankedPlan> front_of(std::vector<RankedPlan> plans);

/// Whether two plans of one request are the same choice: the same layers, replicas, chunks and recomputation of their
/// stages. Devices count only if `steps_differ`: plans on other devices of the same kind, equally far apart, are the
/// same.
[[nodiscard]] bool is_same_choice(const Plan& a, const Plan& b, bool steps_differ);

/// Topologies of only the first devices, smallest first, without the whole: 1, 2, ... of a group, then 1, 2, ... whole
/// groups; counts above 8 by doubling. A plan for one of them is a plan for the whole topology.
[[nodiscard]] std::vector<Topology> parts_of(const Topology& topology);

}  // namespace stagecraft::partitioner
