#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "costmodel/timeline.h"
#include "executor/channel.h"
#include "executor/data_source.h"
#include "executor/layer_source.h"
#include "executor/loss_scaler.h"
#include "executor/optimizer.h"
#include "executor/run_checkpoints.h"

namespace stagecraft {

/// How to run a plan.
struct RunOptions {
  std::int64_t steps = 10;  ///< in all: a resumed run does those that are left
  std::uint64_t seed = 1;
  OptimizerOptions optimizer;
  int threads = 1;  ///< intra-op threads of each rank
  c10::Device device{c10::kCPU};
  bool check = false;  ///< compare losses and gradients of every step with a single process
  /// Compare losses, gradients, and the parameters and buffers at the end with this file, see TrainingRecord; empty:
  /// no.
  std::string expected = {};
  LossScaleOptions loss_scale = {};  ///< of a plan in float16
  CheckpointOptions checkpoint;
};

/// A step as rank 0 saw it; `loss` is the mean over the step's samples, of the step before where ranks run ahead.
struct Progress {
  std::int64_t step = 0;
  std::int64_t steps = 0;
  double loss = 0;
  Seconds step_time;
  std::optional<double> loss_scale = {};  ///< of the next step, in float16
};

/// Outcome of RunOptions::check, or of RunOptions::expected, over all steps and ranks.
struct Check {
  std::int64_t values = 0;     ///< of gradients compared, with a file also of parameters and buffers
  std::int64_t different = 0;  ///< that are not the same number
  double largest_error = 0;    ///< largest difference of a value over the largest absolute value of its tensor
  std::int64_t losses = 0;     ///< microbatch losses compared
  std::int64_t losses_different = 0;
  double largest_loss_error = 0;          ///< relative
  std::string with = "a single process";  ///< or the file
};

/// Largest relative error that a check lets pass where the sums are not the same tree: torch.testing's for float32.
inline constexpr double kCheckTolerance = 1e-5;

/// Everything about a run. On ranks other than 0 the measurement and check hold that rank's part only.
struct RunResult {
  Measurement measurement;
  std::optional<Check> check;
  std::int64_t first_step = 0;
  std::optional<LossScale> loss_scale;  ///< after the last step, in float16
  std::int64_t skipped_steps = 0;       ///< by overflows
  std::int64_t steps_done = 0;          ///< in all; fewer than RunOptions::steps if the run was asked to stop
};

/// Proves before anything is launched that the plan's action lists end and do what the plan says, see verify; those of
/// an asynchronous schedule cover as many of the run's `steps` as show its steady state. Throws std::invalid_argument
/// with what does not hold, or the actions that wait for each other, and as check_fits.
void verify_lists(const Plan& plan, const Model& model, std::int64_t steps);

/// Runs rank `rank` of `plan` over `channel`, whose activity is told what the rank is doing, and gathers the result on
/// rank 0. `seconds_now` is a clock common to all ranks. `progress`, if set, is called on rank 0 after every
/// step. Throws std::invalid_argument for a plan that does not fit the model, ChannelError that names rank and action,
/// on rank 0 also if any rank measured actions in another order than its list, see disorder.
[[nodiscard]] RunResult run_rank(const Plan& plan, const Model& model, const DataSource& data,
                                 const RunOptions& options, int rank, Channel& channel,
                                 const std::function<double()>& seconds_now,
                                 const std::function<void(const Progress&)>& progress = {});

/// Runs all ranks as threads of this process over local channels. A failing rank ends the others; the first failure
/// is thrown, a missed deadline with a line a rank on what it does and whom it waits for.
[[nodiscard]] RunResult run_local(const Plan& plan, const Model& model, const DataSource& data,
                                  const RunOptions& options, std::chrono::milliseconds deadline,
                                  const std::function<void(const Progress&)>& progress = {});

}  // namespace stagecraft
