#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/accuracy/compare.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/text/table.h"
#include "costmodel/timeline.h"

namespace stagecraft {

/// A prediction and the measured run of the same plan.
struct ValidatedRun {
  std::string name;  ///< for display: the measurement's file
  std::string model;
  std::string schedule;
  int ranks = 1;
  std::int64_t step_samples = 0;  ///< samples of one step; 0: unknown
  Scored times;                   ///< its group is set by `validated`
  friend bool operator==(const ValidatedRun&, const ValidatedRun&) = default;
};

/// Scores of the runs that have something in common.
struct Regime {
  std::string name;  ///< "all", "model gpt", "schedule 1f1b", "2 ranks"
  ErrorScores errors;
  OrderScores order;
  CoverageScores coverage;
  friend bool operator==(const Regime&, const Regime&) = default;
};

/// How good predictions were.
struct Validation {
  std::vector<ValidatedRun> runs;
  std::vector<Regime> regimes;  ///< "all" first; then by model, schedule and ranks where the runs differ in them
  /// Share by which measured times must differ for a pair to count in the order; absent: unknown.
  std::optional<double> noise = {};
  friend bool operator==(const Validation&, const Validation&) = default;
};

/// The run of a prediction and a measurement, whose first `skip` steps are skipped, but never the last one. Throws
/// std::invalid_argument if they have different ranks or stages, or if the measured step took no time.
[[nodiscard]] ValidatedRun validated_run(const std::string& name, const Prediction& prediction,
                                         const Measurement& measurement, std::size_t skip = 2);

/// Scores runs. Runs of the same model with the same number of ranks and samples per step are alternatives to each
/// other: their order counts where their measured times differ by more than the share `noise`. Throws
/// std::invalid_argument if there are no runs, or if `noise` is negative or not finite.
[[nodiscard]] Validation validated(std::vector<ValidatedRun> runs, double noise = 0);

/// Tables of regimes and of runs, no wider than the screen. The document is format/results/accuracy_json.h, the
/// picture interchange/pictures.h.
[[nodiscard]] std::string validation_text(const Validation& validation, const Screen& screen);

}  // namespace stagecraft
