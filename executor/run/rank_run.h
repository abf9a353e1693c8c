#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <variant>

#include "executor/device/device.h"
#include "executor/run/evaluation/validation.h"
#include "executor/run/memory_count.h"
#include "executor/run/run.h"
#include "executor/run/run_comparison.h"
#include "executor/run/run_conditions.h"
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
  /// The worker of the plan's kind of schedule.
  using Worker = std::variant<std::unique_ptr<SynchronousWorker>, std::unique_ptr<AsynchronousWorker>>;

  [[nodiscard]] Worker make_worker(const data::DataSource& data) const;
  [[nodiscard]] StageWorker& worker();
  /// The comparison of losses and gradients.
  void make_comparison(const data::DataSource& data);
  /// Scales the loss of a plan in float16, here and in the comparison.
  void scale_loss();
  /// Number of steps by which losses are fetched late.
  [[nodiscard]] std::int64_t lag() const { return options_.device.is_cpu() || comparison_->active() ? 0 : 1; }
  void train(SynchronousWorker& worker);
  void replay(AsynchronousWorker& worker);
  /// Gives the plateau schedule of every rank the loss that rank 0 found after `done` steps.
  void observe(double loss, std::int64_t done);
  void scale_rate(std::int64_t done);
  /// After `step`, if it is due. Not part of the steps' times.
  void validate(std::int64_t step);
  [[nodiscard]] RunResult result();

  const BoundModel& bound_;
  const RunOptions& options_;
  int rank_;
  channel::Channel& channel_;
  const std::function<double()>& seconds_now_;
  device::OwnStream stream_;
  MemoryCount memory_;
  RunCheckpoints checkpoints_;
  std::int64_t first_step_;
  std::int64_t steps_;  // number of the step after the last
  std::optional<TrainingValidation> validation_;
  Worker worker_;
  Bytes parameters_;
  std::optional<RunComparison> comparison_;
  std::optional<RunConditions> conditions_;
  std::optional<RunMeasurement> measurement_;
  StepClock clock_;
  std::optional<StepReports> reports_;
  stage::Plateau plateau_;
  std::int64_t done_;  // number of steps run
};

}  // namespace stagecraft::run
