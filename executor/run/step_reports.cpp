#include "executor/run/step_reports.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"

namespace stagecraft::run {

LossReport::LossReport(bool evaluates, const std::optional<WholePass>& pass) {
  if (!evaluates) return;
  evaluation_.emplace();
  if (pass) left_ = pass->microbatches;
}

double LossReport::add(std::vector<double> losses) {
  if (left_ && *left_ < static_cast<std::int64_t>(losses.size())) losses.resize(to_index(*left_));
  const auto count = static_cast<std::int64_t>(losses.size());
  const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
  if (evaluation_) {
    sum_ += sum;
    evaluation_->microbatches += count;
    evaluation_->loss = sum_ / static_cast<double>(evaluation_->microbatches);
    if (left_) *left_ -= count;
  }
  return sum / static_cast<double>(count);
}

namespace {

constexpr std::size_t kManySends = 4;

}  // namespace

LossGathering::LossGathering(const BoundModel& bound, int rank, channel::Channel& channel)
    : plan_(bound.plan),
      stage_(loss_stage(bound)),
      sources_(bound.plan.ranks_of(stage_)),
      rank_(rank),
      channel_(channel) {}

void LossGathering::send(const stage::MicrobatchLosses& losses) {
  std::vector<double> sent;
  for (const auto& [microbatch, loss] : losses) sent.push_back(loss);
  if (sent.empty() || std::ranges::find(sources_, rank_) == sources_.end()) return;
  if (rank_ == 0) {
    own_.push_back(std::move(sent));
    return;
  }
  at::Tensor values = at::empty({static_cast<std::int64_t>(sent.size())}, at::kDouble);
  std::ranges::copy(sent, values.data_ptr<double>());
  sending_.push_back(channel_.send(values, 0, channel::kLossTag));
  if (sending_.size() > kManySends) {
    sending_.front()->wait();
    sending_.erase(sending_.begin());
  }
}

void LossGathering::expect(int first) {
  std::vector<Expected>& step = expected_.emplace_back();
  for (const int source : sources_) {
    std::vector<int> computed = plan_.microbatches_of(stage_, source, plan_.plan().microbatches, first);
    if (computed.empty()) continue;
    std::unique_ptr<channel::Receiving> arrival;
    if (source != 0) {
      const channel::TensorSpec spec{{static_cast<std::int64_t>(computed.size())}, at::kDouble};
      arrival = channel_.receive(spec, source, channel::kLossTag);
    }
    step.push_back({std::move(computed), std::move(arrival)});
  }
}

std::vector<double> LossGathering::receive(int first) {
  if (expected_.empty()) expect(first);
  std::vector<double> losses(to_index(plan_.plan().microbatches));
  for (const Expected& expected : expected_.front()) {
    const std::vector<int>& computed = expected.microbatches;
    std::vector<double> values;
    if (!expected.arrival) {
      values = own_.front();
      own_.erase(own_.begin());
    } else {
      const at::Tensor arrived = expected.arrival->wait();
      values.assign(arrived.const_data_ptr<double>(), arrived.const_data_ptr<double>() + computed.size());
    }
    for (std::size_t i = 0; i < computed.size(); ++i) losses[to_index(computed[i] - first)] = values[i];
  }
  expected_.pop_front();
  return losses;
}

void LossGathering::finish() {
  try {
    for (const auto& sending : sending_) sending->wait();
  } catch (const meeting::PeerError& e) { throw e.within("rank " + std::to_string(rank_) + ", sending losses: "); }
  sending_.clear();
}

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
