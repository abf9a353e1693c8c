#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/units.h"
#include "partitioner/objective/load_problem.h"

namespace stagecraft::partitioner {

/// Where a search stops short of the exact answer.
struct SearchLimits {
  std::size_t downsets = 4'000'000;
  std::optional<Seconds> time;  ///< of the search; answers then depend on the machine's speed
};

/// What a search looked at.
struct SearchEffort {
  int nodes = 0;             ///< after joining those that stay together
  std::size_t downsets = 0;  ///< 0 if there are more than SearchLimits::downsets
  std::uint64_t pairs = 0;   ///< pairs of a down-set and a smaller one: stages that were evaluated
  std::string stopped;       ///< why the answer may not be exact; empty if the search ran to completion
};

/// A stage of a plan; on a CPU, or on one or more accelerators that divide its time.
struct LoadStage {
  std::vector<int> nodes;  ///< ascending
  bool on_cpu = false;
  int devices = 1;
  Seconds time;
  FractionalBytes bytes;  ///< on each device
};

/// A plan and how far it is from the best: no plan of contiguous stages has a value below `lower_bound`.
struct LoadAnswer {
  Seconds value;
  Seconds lower_bound;
  std::vector<LoadStage> stages;  ///< first to last
  SearchEffort effort;
};

/// The time of the stage with `nodes` on `devices` accelerators, or on a CPU.
[[nodiscard]] Seconds stage_time(const LoadProblem& problem, const std::vector<int>& nodes, bool on_cpu, int devices);

/// The value of `stages` under the objective.
[[nodiscard]] Seconds value_of(const LoadObjective& objective, const std::vector<LoadStage>& stages);

/// The plan of contiguous stages with the smallest value, each stage on separate devices within the memory limit;
/// Infeasible if there is none. Dynamic programming over all down-sets, pruned by thresholds that rise from a lower
/// bound: if no plan stays below a threshold, that threshold is the next lower bound. The best cuts of two depth-first
/// orders give the first upper bound, and the answer if there are too many down-sets. Replicated stages and CPUs do not
/// mix: throws std::invalid_argument.
[[nodiscard]] std::variant<LoadAnswer, Infeasible> solve(const LoadProblem& problem, const LoadObjective& objective,
                                                         const SearchLimits& limits = {});

/// The time limit of a search.
class SearchClock {
 public:
  explicit SearchClock(const SearchLimits& limits) {
    if (limits.time)
      end_ = std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                    std::chrono::duration<double>(std::min(limits.time->value, 1e9)));
  }
  [[nodiscard]] bool is_over() const { return end_ && std::chrono::steady_clock::now() >= *end_; }

 private:
  std::optional<std::chrono::steady_clock::time_point> end_;
};

/// Thrown out of a search when its time is up.
struct TimeIsUp {};

}  // namespace stagecraft::partitioner
