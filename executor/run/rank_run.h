#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "executor/device/device.h"
#include "executor/device/machine/processor_use.h"
#include "executor/device/machine/yardstick.h"
#include "executor/device/memory_tracker.h"
#include "executor/run/binding/loss_gathering.h"
#include "executor/run/evaluation/validation.h"
#include "executor/run/loss_report.h"
#include "executor/run/run.h"
#include "executor/run/run_comparison.h"
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
  /// Sends the losses of the steps before `end` to rank 0.
  void send_until(std::int64_t end);
  /// On rank 0: reports the steps before `end`, whose losses are in flight.
  void tell_until(std::int64_t end);
  void tell(std::int64_t step);
  /// After `step`, if it is due. Not part of the steps' times.
  void validate(std::int64_t step);
  /// On rank 0, a reading of the yardstick while all ranks wait.
  void read_yardstick();
  /// The conditions since the first step; call on all ranks. Of the whole run on rank 0, empty on the others.
  [[nodiscard]] Conditions conditions();
  [[nodiscard]] RunResult result();

  const BoundModel& bound_;
  const Plan& plan_;
  const RunOptions& options_;
  int rank_;
  channel::Channel& channel_;
  const std::function<double()>& seconds_now_;
  const std::function<void(const Progress&)>& progress_;
  device::OwnStream stream_;
  device::MemoryTracker tracker_;
  std::optional<device::MemoryTracker::Scope> counting_;
  RunCheckpoints checkpoints_;
  std::int64_t first_step_;
  std::int64_t steps_;                        // number of the step after the last
  SynchronousWorker* synchronous_ = nullptr;  // the worker by its type: one of the two is set
  AsynchronousWorker* asynchronous_ = nullptr;
  std::optional<Validation> validation_;
  std::map<std::int64_t, format::ModelEvaluation> validations_;  // on rank 0, by the steps done before
  std::map<std::int64_t, double> pauses_;                        // seconds of validation before a step
  std::unique_ptr<StageWorker> worker_;
  Bytes parameters_;
  std::optional<RunComparison> comparison_;
  std::optional<device::YardstickMeter> yardstick_;  // on rank 0
  device::ProcessorMoment began_;
  LossGathering losses_;
  std::optional<RunMeasurement> measurement_;
  std::optional<LossReport> report_;
  std::vector<double> ends_;         // of each step on this rank, after the beginning of the first
  std::int64_t lag_ = 0;             // number of steps by which losses are fetched late
  std::int64_t done_, sent_, told_;  // numbers of steps run, with losses sent, and reported
};

}  // namespace stagecraft::run
