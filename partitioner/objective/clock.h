#pragma once

#include <algorithm>
#include <chrono>
#include <optional>

#include "partitioner/objective/load_solver.h"

namespace stagecraft::partitioner {

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
