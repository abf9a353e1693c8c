#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/run/binding/bound_model.h"
#include "executor/run/run.h"
#include "executor/run/run_measurement.h"
#include "executor/run/worker/stage_worker.h"
#include "executor/stage/step_losses.h"

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

/// Brings the microbatch losses of a step from the ranks that compute them to rank 0.
class LossGathering {
 public:
  /// `bound` and `channel` must outlive it.
  LossGathering(const BoundModel& bound, int rank, channel::Channel& channel);

  /// Sends the next step's losses of this rank's microbatches; no effect on ranks without losses.
  void send(const stage::MicrobatchLosses& losses);
  /// On rank 0: posts the receives of a step's losses, whose first microbatch is `first`, so that they arrive while
  /// this rank works. Steps in order, each before `receive` returns it.
  void expect(int first);
  /// On rank 0: the next step's losses by microbatch; `first` is the number of the first one. Throws PeerError as
  /// Receiving::wait does.
  [[nodiscard]] std::vector<double> receive(int first);
  /// Returns when everything has been sent.
  void finish();

 private:
  /// One rank's losses of a step.
  struct Expected {
    std::vector<int> microbatches;
    std::unique_ptr<channel::Receiving> arrival;  // none: rank 0 itself
  };

  const BoundPlan& plan_;
  int stage_;                 // stage that computes losses
  std::vector<int> sources_;  // its ranks, by replica
  int rank_;
  channel::Channel& channel_;
  std::vector<std::vector<double>> own_;
  std::deque<std::vector<Expected>> expected_;  // by step
  std::vector<std::unique_ptr<channel::Sending>> sending_;
};

/// When the steps of one rank ended, without the pauses between them.
class StepClock {
 public:
  /// `seconds_now` must outlive it.
  StepClock(const std::function<double()>& seconds_now, std::int64_t first_step)
      : now_(seconds_now), first_step_(first_step) {}
  /// The first step begins.
  void begin() { ends_.push_back(now_()); }
  /// The steps before `end` have ended, the newest of them now.
  void end_until(std::int64_t end);
  /// A pause between `step` and the one before it.
  void pause_before(std::int64_t step, Seconds length) { pauses_[step] = length; }
  /// From the end of the step before, or the beginning, to the end of `step`, without the pause between them.
  [[nodiscard]] Seconds time_of(std::int64_t step) const;

 private:
  const std::function<double()>& now_;
  std::int64_t first_step_;
  std::vector<double> ends_;  // of each step, after the beginning of the first
  std::map<std::int64_t, Seconds> pauses_;
};

/// Sends the losses of one rank to rank 0, which reports each step once it has all its losses.
class StepReports {
 public:
  /// What is reported; all must outlive the reports.
  struct Reported {
    const BoundModel& bound;
    const RunOptions& options;
    const StepClock& clock;
    StageWorker& worker;
    RunMeasurement& measurement;  ///< receives the mean losses
  };
  /// Of the steps from `first_step` to `last_step`, which is excluded. `progress`, if set, must outlive it.
  StepReports(const Reported& subject, LossReport report, int rank, channel::Channel& channel, std::int64_t first_step,
              std::int64_t last_step, const std::function<void(const Progress&)>& progress);

  /// Sends this rank's losses of the next step.
  void send(const stage::MicrobatchLosses& losses);
  /// Takes those of the steps before `end` from the worker and sends them.
  void send_until(std::int64_t end);
  /// On rank 0: the losses of the steps before `end` will be sent, and may arrive from now on.
  void expect_until(std::int64_t end);
  /// On rank 0: reports the steps before `end`, whose losses are in flight.
  void report_until(std::int64_t end);
  /// On rank 0: the result of a validation after `done` steps in all, to be reported with the last of them.
  void add_validation(std::int64_t done, const format::ModelEvaluation& found) { validations_[done] = found; }
  /// After `done` steps in all, a plateau schedule multiplies the learning rate by `factor`.
  void scale_rate(std::int64_t done, double factor) { rate_scales_[done] = factor; }
  /// Waits for this rank's sends.
  void finish() { losses_.finish(); }

  [[nodiscard]] const std::map<std::int64_t, format::ModelEvaluation>& validations() const { return validations_; }
  [[nodiscard]] std::optional<Evaluation> evaluation() const { return report_.evaluation(); }

 private:
  [[nodiscard]] int first_microbatch(std::int64_t step) const;
  void report(std::int64_t step);

  Reported of_;
  LossReport report_;
  int rank_;
  LossGathering losses_;
  std::int64_t first_step_, last_step_;
  std::int64_t sent_, expected_, reported_;  // numbers of steps with losses sent, expected, and reported
  const std::function<void(const Progress&)>& progress_;
  std::map<std::int64_t, double> rate_scales_ = {{0, 1.0}};      // by the steps done before
  std::map<std::int64_t, format::ModelEvaluation> validations_;  // on rank 0, by the steps done before
};

}  // namespace stagecraft::run
