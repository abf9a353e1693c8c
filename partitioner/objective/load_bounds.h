#pragma once

#include <vector>

#include "costmodel/units.h"
#include "partitioner/objective/load_problem.h"

namespace stagecraft::partitioner {

/// The slack of load_solver on sums that are taken in different orders, relatively.
inline constexpr double kLoadRounding = 1e-11;

/// What of a problem bounds stages from below, whatever their borders.
struct LoadBounds {
  /// Of each node: work that is counted, such that a CPU that takes time t holds at most cpu_share * t of it.
  std::vector<Seconds> work;
  double cpu_share = 0;
  Seconds all;
};
[[nodiscard]] LoadBounds bounds_of(const LoadProblem& problem);

/// A time that the slowest stage takes in every plan: all work divided at will among all devices, each node where it is
/// relatively fastest; and the largest node, unless accelerators divide it.
[[nodiscard]] Seconds least_slowest(const LoadProblem& problem, bool replicated);

/// A value that every plan has at least.
[[nodiscard]] Seconds first_bound(const LoadProblem& problem, const LoadObjective& objective);

}  // namespace stagecraft::partitioner
