#include "executor/run/rank_run.h"

#include <ATen/ops/full.h>
#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"
#include "executor/device/ranges.h"

namespace stagecraft::run {
namespace {

/// Steps during which memory is counted: the first creates the optimizer's state, the second has everything. A
/// comparison skips them as warm-up, so counting does not disturb measured times.
constexpr std::int64_t kMemorySteps = 2;

}  // namespace

RankRun::RankRun(const BoundModel& bound, const data::DataSource& data, const RunOptions& options, int rank,
                 channel::Channel& channel, const std::function<double()>& seconds_now,
                 const std::function<void(const Progress&)>& progress)
    : bound_(bound),
      options_(options),
      rank_(rank),
      channel_(channel),
      seconds_now_(seconds_now),
      stream_(options.device),
      memory_(options.device.type()),
      checkpoints_(bound, options.checkpoint, options.optimizer, options.seed, rank, channel),
      first_step_(checkpoints_.first_step()),
      steps_(options.steps),
      clock_(seconds_now, first_step_),
      done_(first_step_) {
  const bool trains = bound.plan.schedule().trains;
  if (options.validation.data && trains) {
    memory_.uncounted([&] {  // copies of parameters that live until it follows the worker's are not the rank's
      validation_.emplace(bound, options.validation, rank, channel, options.seed, options.device, seconds_now);
    });
  }
  worker_ = make_worker(data);
  if (!options.device.is_cpu()) worker().warm_up(data);
  if (validation_) validation_->follow(worker());
  parameters_ = memory_.live();
  measurement_.emplace(bound.plan, worker().actions(), rank, channel, first_step_, options.save);
  worker().visit_stages(
      [&](int, stage::StageProgram& program, stage::Optimizer& optimizer) { checkpoints_.load(program, optimizer); });
  worker().on_nonfinite(options.on_nonfinite, options.checkpoint.tell);
  memory_.uncounted([&] {
    make_comparison(data);
    scale_loss();
  });
  const std::optional<WholePass> pass = trains ? std::nullopt : whole_pass(bound.plan.plan(), data);
  if (pass) steps_ = std::min(steps_, pass->steps);
  reports_.emplace(StepReports::Reported{bound, options_, clock_, worker(), *measurement_}, LossReport(!trains, pass),
                   rank, channel, first_step_, steps_, progress);
  if (options.optimizer.rate.name != "plateau" || !trains) return;
  if (bound.plan.asynchronous() || !validation_) {
    throw std::invalid_argument(
        "schedule \"plateau\" of the learning rate follows the loss on validation data during the run; use "
        "--validate-data and --validate-every, and a synchronous schedule");
  }
  if (checkpoints_.plateau()) plateau_ = *checkpoints_.plateau();
  checkpoints_.save(&plateau_);
  scale_rate(first_step_);
}

RankRun::Worker RankRun::make_worker(const data::DataSource& data) const {
  const WorkerOptions how{
      .optimizer = options_.optimizer,
      .seed = options_.seed,
      .now = seconds_now_,
      .first_step = first_step_,
      .steps = to_int(std::max<std::int64_t>(options_.steps - first_step_, 1)),
      .device = options_.device,
  };
  if (bound_.plan.asynchronous()) return std::make_unique<AsynchronousWorker>(bound_, rank_, channel_, data, how);
  return std::make_unique<SynchronousWorker>(bound_, rank_, channel_, data, how);
}

StageWorker& RankRun::worker() {
  return std::visit([](const auto& worker) -> StageWorker& { return *worker; }, worker_);
}

void RankRun::make_comparison(const data::DataSource& data) {
  comparison_.emplace(bound_, data, options_);
  Reference* const reference = comparison_->reference();
  if (reference) checkpoints_.load(reference->program(), reference->optimizer());
}

void RankRun::scale_loss() {
  std::optional<stage::LossScaler> scaler = loss_scaler_of(bound_.plan, options_.loss_scale);
  if (!scaler) return;
  if (checkpoints_.loss_scale()) scaler->set_state(*checkpoints_.loss_scale());
  std::get<std::unique_ptr<SynchronousWorker>>(worker_)->scale_loss(*scaler);
  if (comparison_->reference()) comparison_->reference()->scale_loss(*scaler);
}

RunResult RankRun::run() {
  memory_.uncounted([&] {
    conditions_.emplace(rank_, channel_, options_.device, options_.threads);
    conditions_->begin();
  });
  clock_.begin();
  try {
    if (const auto* synchronous = std::get_if<std::unique_ptr<SynchronousWorker>>(&worker_)) {
      train(**synchronous);
    } else {
      replay(*std::get<std::unique_ptr<AsynchronousWorker>>(worker_));
    }
    memory_.stop();
    reports_->send_until(done_);
    reports_->report_until(done_);
  } catch (const stage::NonfiniteError& e) {
    throw stage::NonfiniteError(fmt::format(
        "rank {}, {}{}; try a lower --learning-rate or --clip-norm, look for NaN in the data, or continue with "
        "--on-nonfinite warn or skip",
        rank_, e.what(),
        checkpoints_.newest().empty() ? "" : fmt::format("; {} is the last good checkpoint", checkpoints_.newest())));
  }
  reports_->finish();
  measurement_->add(worker().take_all_spans());
  return result();
}

RunResult RankRun::result() {
  RunResult out;
  out.first_step = first_step_;
  out.steps_done = done_;
  out.nonfinite_steps = worker().nonfinite_steps();
  out.evaluation = reports_->evaluation();
  out.validations = reports_->validations();
  if (const stage::LossScaler* const scaler = worker().loss_scaler()) {
    out.loss_scale = scaler->state();
    out.skipped_steps = scaler->skipped();
  }
  Conditions during = conditions_->finish();
  out.measurement = measurement_->finish(
      done_ - first_step_, {rank_, memory_.peak(), {{MemoryPart::Parameters, parameters_}}}, comparison_->check());
  if (comparison_->active()) out.check = std::move(comparison_->check());
  out.measurement.conditions = std::move(during);
  return out;
}

void RankRun::train(SynchronousWorker& worker) {
  const device::RangeName step_range = device::range_name("step");
  // A GPU's losses are fetched one step late, so that the host never waits for the step that it has just enqueued. Rank
  // 0 reports another step later, so that it never waits for the last stage.
  const std::int64_t lag = this->lag();
  for (std::int64_t step = first_step_; step < steps_; ++step) {
    const device::ScopedRange range(step_range, step);
    if (options_.device.is_cpu()) reports_->expect_until(step);
    worker.compute(step);
    if (comparison_->active()) {
      memory_.stop();
      const stage::MicrobatchLosses losses = worker.take_losses(step);
      reports_->send(losses);
      comparison_->compare_step(step, worker, losses);
      worker.begin_update();
    }
    reports_->send_until(step + 1 - lag);
    worker.update_step(step);
    clock_.end_until(step + 1);
    done_ = step + 1;
    if (done_ - first_step_ == kMemorySteps) memory_.stop();
    validate(step);
    reports_->report_until(step - lag);
    measurement_->add(worker.take_spans());
    measurement_->after_step(step);
    if (rank_ == 0) measurement_->save_if_due();
    if (checkpoints_.after_step(worker, done_, steps_)) break;
  }
  comparison_->compare_end(worker);
}

void RankRun::replay(AsynchronousWorker& worker) {
  if (first_step_ >= steps_) return;
  const std::int64_t lag = this->lag();
  // This rank may have no microbatch of a step: it notices that step with the next one.
  worker.replay([&](std::int64_t step) {
    clock_.end_until(step + 1);
    reports_->send_until(step + 1 - lag);
    reports_->report_until(step - lag);
    measurement_->add(worker.take_spans());
    if (rank_ == 0) measurement_->save_if_due();
  });
  clock_.end_until(steps_);
  done_ = steps_;
  reports_->send_until(done_);
  reports_->report_until(done_ - 1);
  validate(done_ - 1);
  (void)checkpoints_.after_step(worker, done_, steps_);
}

void RankRun::observe(double loss, std::int64_t done) {
  if (rank_ == 0) {
    const at::Tensor message = at::full({1}, loss, at::kDouble);
    std::vector<std::unique_ptr<channel::Sending>> sends;
    for (int other = 1; other < channel_.ranks(); ++other)
      sends.push_back(channel_.send(message, other, channel::kPlateauTag));
    for (const auto& send : sends) send->wait();
  } else {
    loss = channel_.receive({{1}, at::kDouble}, 0, channel::kPlateauTag)->wait().item<double>();
  }
  stage::observe(options_.optimizer.rate, plateau_, loss);
  scale_rate(done);
}

void RankRun::scale_rate(std::int64_t done) {
  std::get<std::unique_ptr<SynchronousWorker>>(worker_)->scale_rate(plateau_.factor);
  if (comparison_->reference()) comparison_->reference()->scale_rate(plateau_.factor);
  reports_->scale_rate(done, plateau_.factor);
}

void RankRun::validate(std::int64_t step) {
  if (!validation_ || !validation_->is_due(step + 1, steps_)) return;
  measurement_->add(worker().take_all_spans());
  channel_.barrier();
  const double begin = seconds_now_();
  try {
    const auto found = validation_->run(worker());
    if (found) reports_->add_validation(step + 1, *found);
    if (options_.optimizer.rate.name == "plateau") observe(found ? found->loss : 0, step + 1);
  } catch (const meeting::PeerError& e) {
    throw e.within(fmt::format("rank {}, validating after step {}: ", rank_, step + 1));
  }
  channel_.barrier();
  const double end = seconds_now_();
  measurement_->pause(Seconds(begin), Seconds(end));
  clock_.pause_before(step + 1, Seconds(end - begin));
}

}  // namespace stagecraft::run
