#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "executor/run/run.h"

namespace stagecraft::run {

/// Mean loss of each step, and of all data for a plan that only evaluates. On rank 0.
class LossReport {
 public:
  /// `pass`: the evaluated data, if finite.
  LossReport(bool evaluates, const std::optional<WholePass>& pass);
  /// The step's loss, the mean over its microbatches; those past the end of the evaluated data are skipped.
  [[nodiscard]] double add(std::vector<double> losses);
  /// Result of a plan that only evaluates.
  [[nodiscard]] const std::optional<Evaluation>& evaluation() const { return evaluation_; }

 private:
  std::optional<Evaluation> evaluation_;
  double sum_ = 0;
  std::optional<std::int64_t> left_;  // remaining microbatches of the evaluated data
};

}  // namespace stagecraft::run
