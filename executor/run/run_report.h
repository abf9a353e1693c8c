#pragma once

#include <optional>
#include <string>

#include "costmodel/bound_plan.h"
#include "costmodel/progress.h"
#include "costmodel/timeline.h"
#include "executor/run/run.h"

namespace stagecraft {

/// "812 samples/s, 19.7 ms a step (predicted 18.9 ms, +4 %)" for a step of `samples` samples that took `measured`; what
/// stands in brackets is absent without a prediction. The difference is measured over predicted, less 1.
[[nodiscard]] std::string speed_text(std::int64_t samples, Seconds measured, std::optional<Seconds> predicted);

/// A line on standard error now and then as steps end: every step on a terminal, about ten in all otherwise. "step
/// 12/50 loss 2.1034 812 samples/s, ...", as speed_text has it.
class StepReporter {
 public:
  explicit StepReporter(const Plan& plan);
  void operator()(const Progress& progress);

 private:
  std::int64_t samples_;
  std::optional<Seconds> predicted_;
  ProgressLine line_;
};

/// What a run comes to: "loss 2.1034 to 1.7211 in 50 steps; 812 samples/s, ...", of the steps but the first two. The
/// measurement holds at least one step.
[[nodiscard]] std::string closing_text(const Measurement& measurement, std::optional<Seconds> predicted);

/// What an evaluation came to: "loss 0.3421 over 59968 of 60000 samples; the last 32 fill no microbatch of 64". `pass`
/// is absent for data without an end.
[[nodiscard]] std::string evaluation_text(const Evaluation& evaluation, std::int64_t microbatch_samples,
                                          const std::optional<WholePass>& pass);

/// Who does what: "rank 0: device 0, stage 0, replica 0, 3 layers fc1 to fc2, 14 actions a step", a line per rank.
[[nodiscard]] std::string roles_text(const BoundPlan& plan);

}  // namespace stagecraft
