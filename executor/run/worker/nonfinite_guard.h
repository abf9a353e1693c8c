#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "executor/stage/gradients/finite.h"

namespace stagecraft::run {

/// Handles losses and gradients that are not finite on one rank.
class NonfiniteGuard {
 public:
  explicit NonfiniteGuard(int rank) : rank_(rank) {}
  /// `tell` is called with each finding, unless `what` is Stop.
  void set(stage::OnNonfinite what, std::function<void(const std::string&)> tell);
  [[nodiscard]] bool skips_steps() const { return what_ == stage::OnNonfinite::Skip; }

  /// `what` of `step` is not finite. Throws NonfiniteError if the run is to stop.
  void found(std::int64_t step, const std::string& what);
  /// Whether this rank found something in `step`.
  [[nodiscard]] bool found_in(std::int64_t step) const { return last_ == step; }
  /// Reports a step that was skipped because some rank found something.
  void count_skipped() { ++steps_; }
  /// Steps in which this rank found something, or any rank if steps are skipped.
  [[nodiscard]] std::int64_t steps() const { return steps_; }

 private:
  int rank_;
  stage::OnNonfinite what_ = stage::OnNonfinite::Stop;
  std::function<void(const std::string&)> tell_;
  std::int64_t steps_ = 0;
  std::int64_t last_ = -1;  // step
};

}  // namespace stagecraft::run
