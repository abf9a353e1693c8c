#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "costmodel/timeline.h"
#include "executor/channel/channel.h"
#include "executor/data/data_source.h"
#include "executor/run/bound_model.h"
#include "executor/run/check.h"
#include "executor/run/run_checkpoints.h"
#include "executor/run/run_measurement.h"
#include "executor/stage/finite.h"
#include "executor/stage/loss_scaler.h"
#include "executor/stage/optimizer.h"

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
  OnNonfinite on_nonfinite = OnNonfinite::Stop;
  CheckpointOptions checkpoint;
  /// Takes the measurement on rank 0 as the run goes on, and lets go of it before run_rank returns; all ranks set it or
  /// none.
  SaveMeasurement save = {};
};

/// A step as rank 0 saw it; `loss` is the mean over the step's samples, of the step before where ranks run ahead.
struct Progress {
  std::int64_t step = 0;
  std::int64_t steps = 0;
  double loss = 0;
  Seconds step_time;
  std::optional<double> loss_scale = {};  ///< of the next step, in float16
};

/// What a plan that only evaluates came to: the mean loss over so many microbatches.
struct Evaluation {
  double loss = 0;
  std::int64_t microbatches = 0;
};

/// What one pass over data is for a plan.
struct WholePass {
  std::int64_t microbatches = 0;  ///< whole ones
  std::int64_t steps = 0;         ///< the last may be filled in part
  std::int64_t samples_left = 0;  ///< which fill no microbatch
};
/// Absent for data without an end. Throws std::invalid_argument if they do not fill one microbatch. Precondition: the
/// plan states its microbatch.
[[nodiscard]] std::optional<WholePass> whole_pass(const Plan& plan, const DataSource& data);

/// Everything about a run. On ranks other than 0 the measurement and check hold that rank's part only.
struct RunResult {
  Measurement measurement;
  std::optional<Check> check;
  std::int64_t first_step = 0;
  std::optional<LossScale> loss_scale;   ///< after the last step, in float16
  std::int64_t skipped_steps = 0;        ///< by overflows
  std::int64_t nonfinite_steps = 0;      ///< under OnNonfinite::Warn or Skip
  std::optional<Evaluation> evaluation;  ///< of a plan that trains nothing; on rank 0
  std::int64_t steps_done = 0;           ///< in all; fewer than RunOptions::steps if the run was asked to stop
};

/// Proves before anything is launched that the plan's action lists end and do what the plan says, see verify; those of
/// an asynchronous schedule cover as many of the run's `steps` as show its steady state. Throws std::invalid_argument
/// with what does not hold, or the actions that wait for each other.
void verify_lists(const BoundPlan& plan, std::int64_t steps);

/// Runs rank `rank` of a plan over `channel`, whose activity is told what the rank is doing, and gathers the result on
/// rank 0. `seconds_now` is a clock common to all ranks. `progress`, if set, is called on rank 0 after every
/// step. Throws std::invalid_argument for a plan without samples of a microbatch, PeerError that names rank and action,
/// also if the rank measured actions in another order than its list, see OrderCheck.
[[nodiscard]] RunResult run_rank(const BoundModel& bound, const DataSource& data, const RunOptions& options, int rank,
                                 Channel& channel, const std::function<double()>& seconds_now,
                                 const std::function<void(const Progress&)>& progress = {});

/// Runs all ranks as threads of this process over local channels. A failing rank ends the others; the first failure
/// is thrown, a missed deadline with a line per rank on what it does and which rank it waits for.
[[nodiscard]] RunResult run_local(const BoundModel& bound, const DataSource& data, const RunOptions& options,
                                  std::chrono::milliseconds deadline,
                                  const std::function<void(const Progress&)>& progress = {});
/// The same of a plan that is bound for this run alone. Throws as BoundPlan and bind_model too.
[[nodiscard]] RunResult run_local(const Plan& plan, const Model& model, const DataSource& data,
                                  const RunOptions& options, std::chrono::milliseconds deadline,
                                  const std::function<void(const Progress&)>& progress = {});

}  // namespace stagecraft
