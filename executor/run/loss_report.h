#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "executor/run/run.h"

namespace stagecraft {

/// What rank 0 makes of the losses of each step: its mean, and the mean over the data of a plan that only evaluates.
class LossReport {
 public:
  /// `pass`: what is evaluated, if the data end.
  LossReport(bool evaluates, const std::optional<WholePass>& pass);
  /// The step's loss, the mean over its microbatches; those past the end of evaluated data are left out.
  [[nodiscard]] double add(std::vector<double> losses);
  /// Of a plan that only evaluates.
  [[nodiscard]] const std::optional<Evaluation>& evaluation() const { return evaluation_; }

 private:
  std::optional<Evaluation> evaluation_;
  double sum_ = 0;
  std::optional<std::int64_t> left_;  // microbatches of the evaluated data that are still to come
};

}  // namespace stagecraft
