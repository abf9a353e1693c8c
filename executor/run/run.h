#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/format/results/evaluation_json.h"
#include "costmodel/plan.h"
#include "costmodel/timeline.h"
#include "executor/channel/channel.h"
#include "executor/data/data_source.h"
#include "executor/run/binding/bound_model.h"
#include "executor/run/binding/check.h"
#include "executor/run/evaluation.h"
#include "executor/run/run_checkpoints.h"
#include "executor/run/run_measurement.h"
#include "executor/stage/gradients/finite.h"
#include "executor/stage/optimizer.h"

namespace stagecraft::run {

/// How to run a plan.
struct RunOptions {
  std::int64_t steps = 10;  ///< in total: a resumed run does the remaining ones
  std::uint64_t seed = 1;
  stage::OptimizerOptions optimizer;
  int threads = 1;  ///< intra-op threads of each rank
  c10::Device device{c10::kCPU};
  bool check = false;  ///< compare losses and gradients of every step with a single process
  /// Compare losses, gradients, and final parameters and buffers with this file, see TrainingRecord; empty: do not
  /// compare.
  std::string expected = {};
  stage::LossScaleOptions loss_scale = {};  ///< for a plan in float16
  stage::OnNonfinite on_nonfinite = stage::OnNonfinite::Stop;
  CheckpointOptions checkpoint;
  /// For a plan that trains. An asynchronous schedule validates only after the last step, when the pipeline is empty.
  ValidationOptions validation = {};
  /// Receives the measurement on rank 0 during the run, and is released before run_rank returns. All ranks set it, or
  /// none.
  SaveMeasurement save = {};
};

/// A step as rank 0 saw it; `loss` is the mean over the step's samples, or the previous step's if ranks run ahead.
struct Progress {
  std::int64_t step = 0;
  std::int64_t steps = 0;
  double loss = 0;
  Seconds step_time;
  std::optional<double> loss_scale = {};     ///< of the next step, in float16
  std::optional<double> learning_rate = {};  ///< of the step, if the plan trains
  std::optional<double> gradient_norm = {};  ///< of the whole model before clipping, if gradients are clipped
  std::optional<format::ModelEvaluation> validation = {};  ///< after the step, if it was due
};

/// Result of an evaluation: the mean loss and the number of microbatches.
struct Evaluation {
  double loss = 0;
  std::int64_t microbatches = 0;
};

/// One pass over the data of a plan.
struct WholePass {
  std::int64_t microbatches = 0;  ///< complete ones
  std::int64_t steps = 0;         ///< the last may be partially filled
  std::int64_t samples_left = 0;  ///< too few for a microbatch
};
/// Absent for endless data. Throws std::invalid_argument if the data does not fill one microbatch. Precondition: the
/// plan states its microbatch.
[[nodiscard]] std::optional<WholePass> whole_pass(const Plan& plan, const data::DataSource& data);

/// Everything about a run. On ranks other than 0 the measurement and check hold that rank's part only.
struct RunResult {
  Measurement measurement;
  std::optional<Check> check;
  std::int64_t first_step = 0;
  std::optional<stage::LossScale> loss_scale;                   ///< after the last step, in float16
  std::int64_t skipped_steps = 0;                               ///< by overflows
  std::int64_t nonfinite_steps = 0;                             ///< under OnNonfinite::Warn or Skip
  std::optional<Evaluation> evaluation;                         ///< of a plan that only evaluates; on rank 0
  std::map<std::int64_t, format::ModelEvaluation> validations;  ///< by the steps done before; on rank 0
  std::int64_t steps_done = 0;  ///< in total; fewer than RunOptions::steps if the run was asked to stop
};

/// Proves before a launch that the plan's action lists terminate and do what the plan says, see verify; for an
/// asynchronous schedule, over as many of the run's `steps` as reach its steady state. Throws std::invalid_argument
/// with the violated rule, or the actions that wait for each other.
void verify_lists(const BoundPlan& plan, std::int64_t steps);

/// The scaler of a run of `plan`: none unless it trains in float16. Throws std::invalid_argument for an asynchronous
/// schedule in float16, which cannot skip a step on all ranks.
[[nodiscard]] std::optional<stage::LossScaler> loss_scaler_of(const BoundPlan& plan,
                                                              const stage::LossScaleOptions& options);

/// Runs rank `rank` of a plan over `channel`, records in its activity what the rank is doing, and gathers the result on
/// rank 0. `seconds_now` is a clock common to all ranks. `progress`, if set, is called on rank 0 after every
/// step. Throws std::invalid_argument if the plan does not state its microbatch; PeerError naming rank and action, also
/// if the rank measured actions in a different order from its list, see OrderCheck.
[[nodiscard]] RunResult run_rank(const BoundModel& bound, const data::DataSource& data, const RunOptions& options,
                                 int rank, channel::Channel& channel, const std::function<double()>& seconds_now,
                                 const std::function<void(const Progress&)>& progress = {});

/// Runs all ranks as threads of this process over local channels. A failing rank ends the others; the first failure is
/// thrown, a missed deadline with one line per rank: what it does and which rank it waits for.
[[nodiscard]] RunResult run_local(const BoundModel& bound, const data::DataSource& data, const RunOptions& options,
                                  std::chrono::milliseconds deadline,
                                  const std::function<void(const Progress&)>& progress = {});
/// The same for a plan that is bound only for this run. Also throws as BoundPlan and bind_model do.
[[nodiscard]] RunResult run_local(const Plan& plan, const model::Model& model, const data::DataSource& data,
                                  const RunOptions& options, std::chrono::milliseconds deadline,
                                  const std::function<void(const Progress&)>& progress = {});

}  // namespace stagecraft::run
