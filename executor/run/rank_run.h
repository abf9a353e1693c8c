#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "executor/device/device.h"
#include "executor/device/machine/processor_use.h"
#include "executor/device/machine/yardstick.h"
#include "executor/device/memory_tracker.h"
#include "executor/run/evaluation/validation.h"
#include "executor/run/run.h"
#include "executor/run/run_comparison.h"
#include "executor/run/step_reports.h"
#include "executor/run/worker/asynchronous_worker.h"
#include "executor/run/worker/synchronous_worker.h"

namespace stagecraft::run {

/// One rank of a run, from its first step to its last.
class RankRun {
 public:
  /// As for run_rank; arguments must outlive it.
  RankRun(const BoundModel& bound, const data::DataSource& data, const RunOptions& options, int rank,
          channel::Channel& channel, const std::function<double()>& seconds_now,
          const std::function<void(const Progress&)>& progress);
  /// Call once.
  [[nodiscard]] RunResult run();

 private:
  void make_worker(const data::DataSource& data);
  /// The comparison of losses and gradients, and their scale.
  void make_comparison(const data::DataSource& data);
  void train();
  void replay();
  /// After `step`, if it is due. Not part of the steps' times.
  void validate(std::int64_t step);
  /// On rank 0, a reading of the yardstick while all ranks wait.
  void read_yardstick();
  /// The conditions since the first step; call on all ranks. Of the whole run on rank 0, empty on the others.
  [[nodiscard]] Conditions conditions();
  [[nodiscard]] RunResult result();

  const BoundModel& bound_;
  const RunOptions& options_;
  int rank_;
  channel::Channel& channel_;
  const std::function<double()>& seconds_now_;
  device::OwnStream stream_;
  device::MemoryTracker tracker_;
  std::optional<device::MemoryTracker::Scope> counting_;
  RunCheckpoints checkpoints_;
  std::int64_t first_step_;
  std::int64_t steps_;                        // number of the step after the last
  SynchronousWorker* synchronous_ = nullptr;  // the worker by its type: one of the two is set
  AsynchronousWorker* asynchronous_ = nullptr;
  std::optional<TrainingValidation> validation_;
  std::unique_ptr<StageWorker> worker_;
  Bytes parameters_;
  std::optional<RunComparison> comparison_;
  std::optional<device::YardstickMeter> yardstick_;  // on rank 0
  device::ProcessorMoment began_;
  std::optional<RunMeasurement> measurement_;
  StepClock clock_;
  std::optional<StepReports> reports_;
  std::int64_t lag_ = 0;  // number of steps by which losses are fetched late
  std::int64_t done_;     // number of steps run
};

}  // namespace stagecraft::run
