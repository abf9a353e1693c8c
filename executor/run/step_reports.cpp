#include "executor/run/step_reports.h"

#include <fmt/format.h>

#include <utility>

#include "costmodel/index.h"

namespace stagecraft::run {

void StepClock::end_until(std::int64_t end) {
  while (static_cast<std::int64_t>(ends_.size()) < end - first_step_ + 1) ends_.push_back(now_());
}

Seconds StepClock::time_of(std::int64_t step) const {
  const auto k = to_index(step - first_step_);
  const Seconds time(ends_[k + 1] - ends_[k]);
  const auto pause = pauses_.find(step);
  return pause == pauses_.end() ? time : time - pause->second;
}

StepReports::StepReports(const Reported& subject, LossReport report, int rank, channel::Channel& channel,
                         std::int64_t first_step, std::int64_t last_step,
                         const std::function<void(const Progress&)>& progress)
    : of_(subject),
      report_(report),
      rank_(rank),
      losses_(subject.bound, rank, channel),
      first_step_(first_step),
      last_step_(last_step),
      sent_(first_step),
      expected_(first_step),
      reported_(first_step),
      progress_(progress) {}

void StepReports::send(const stage::MicrobatchLosses& losses) {
  losses_.send(losses);
  ++sent_;
}

void StepReports::send_until(std::int64_t end) {
  while (sent_ < end) send(of_.worker.take_losses(sent_));
}

int StepReports::first_microbatch(std::int64_t step) const {
  return of_.bound.plan.asynchronous() ? to_int(step - first_step_) * of_.bound.plan.plan().microbatches : 0;
}

void StepReports::expect_until(std::int64_t end) {
  for (; rank_ == 0 && expected_ < end; ++expected_) losses_.expect(first_microbatch(expected_));
}

void StepReports::report_until(std::int64_t end) {
  expect_until(end);
  for (; rank_ == 0 && reported_ < end; ++reported_) report(reported_);
}

void StepReports::report(std::int64_t step) {
  std::vector<double> losses;
  try {
    losses = losses_.receive(first_microbatch(step));
  } catch (const meeting::PeerError& e) {
    throw e.within(fmt::format("rank 0, gathering the losses of step {}: ", step + 1));
  }
  const double loss = report_.add(std::move(losses));
  of_.measurement.add_loss(loss);
  if (!progress_) return;
  Progress progress{.step = step, .steps = last_step_, .loss = loss, .step_time = of_.clock.time_of(step)};
  if (const auto found = validations_.find(step + 1); found != validations_.end()) progress.validation = found->second;
  if (const stage::LossScaler* const scaler = of_.worker.loss_scaler()) progress.loss_scale = scaler->scale();
  if (of_.bound.plan.schedule().trains) {
    const stage::OptimizerOptions& optimizer = of_.options.optimizer;
    const double scale = std::prev(rate_scales_.upper_bound(step))->second;
    progress.learning_rate = optimizer.learning_rate * stage::rate_factor(optimizer.rate, step) * scale;
  }
  progress.gradient_norm = of_.worker.take_gradient_norm(step);
  progress_(progress);
}

}  // namespace stagecraft::run
