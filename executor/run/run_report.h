#pragma once

#include <optional>
#include <string>

#include "costmodel/bound_plan.h"
#include "costmodel/progress.h"
#include "costmodel/timeline.h"
#include "executor/run/run.h"

namespace stagecraft::run {

/// "812 samples/s, 19.7 ms per step (predicted 18.9 ms, +4 %)" for a step of `samples` samples that took `measured`,
/// without parentheses if there is no prediction. The difference is measured / predicted - 1.
[[nodiscard]] std::string speed_text(std::int64_t samples, Seconds measured, std::optional<Seconds> predicted);

/// A line on standard error now and then as steps end: every step on a terminal, about ten in all otherwise. "step
/// 12/50 loss 2.1034 812 samples/s, ...", see speed_text.
class StepReporter {
 public:
  explicit StepReporter(const Plan& plan);
  void operator()(const Progress& progress);

 private:
  std::int64_t samples_;
  std::optional<Seconds> predicted_;
  ProgressLine line_;
};

/// Summary of a run: "loss 2.1034 to 1.7211 in 50 steps; 812 samples/s, ...", without the first two steps. The
/// measurement must have at least one step.
[[nodiscard]] std::string closing_text(const Measurement& measurement, std::optional<Seconds> predicted);

/// Result of an evaluation: "loss 0.3421 over 59968 of 60000 samples; 32 left over, too few for a microbatch of 64".
/// `pass` is absent for endless data.
[[nodiscard]] std::string evaluation_text(const Evaluation& evaluation, std::int64_t microbatch_samples,
                                          const std::optional<WholePass>& pass);

/// Roles, one line per rank: "rank 0: device 0, stage 0, replica 0, 3 layers fc1 to fc2, 14 actions per step".
[[nodiscard]] std::string roles_text(const BoundPlan& plan);

}  // namespace stagecraft::run
