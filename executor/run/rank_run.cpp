#include "executor/run/rank_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "costmodel/index.h"
#include "executor/channel/processor_reports.h"
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
      tracker_(options.device.type()),
      counting_(std::in_place, tracker_),
      checkpoints_(bound, options.checkpoint, options.optimizer, options.seed, rank, channel),
      first_step_(checkpoints_.first_step()),
      steps_(options.steps),
      clock_(seconds_now, first_step_),
      done_(first_step_) {
  if (options.validation.data && bound.plan.schedule().trains) {
    counting_.reset();  // copies of parameters that live until it follows the worker's are not the rank's
    validation_.emplace(bound, options.validation, rank, channel, options.seed, options.device, seconds_now);
    counting_.emplace(tracker_);
  }
  make_worker(data);
  if (validation_) validation_->follow(*worker_);
  parameters_ = tracker_.live();
  measurement_.emplace(bound.plan, worker_->actions(), rank, channel, first_step_, options.save);
  worker_->visit_stages(
      [&](int, stage::StageProgram& program, stage::Optimizer& optimizer) { checkpoints_.load(program, optimizer); });
  worker_->on_nonfinite(options.on_nonfinite, options.checkpoint.tell);
  counting_.reset();  // memory for the comparison is not the rank's
  make_comparison(data);
  counting_.emplace(tracker_);
  const bool trains = bound.plan.schedule().trains;
  const std::optional<WholePass> pass = trains ? std::nullopt : whole_pass(bound.plan.plan(), data);
  if (pass) steps_ = std::min(steps_, pass->steps);
  reports_.emplace(StepReports::Reported{bound, options_, clock_, *worker_, synchronous_, *measurement_},
                   LossReport(!trains, pass), rank, channel, first_step_, steps_, progress);
  // A GPU's losses are fetched one step late, so that the host never waits for the step that it has just enqueued. Rank
  // 0 reports another step later, so that it never waits for the last stage.
  lag_ = options.device.is_cpu() || comparison_->active() ? 0 : 1;
}

void RankRun::make_worker(const data::DataSource& data) {
  const WorkerOptions how{
      .optimizer = options_.optimizer,
      .seed = options_.seed,
      .now = seconds_now_,
      .first_step = first_step_,
      .steps = to_int(std::max<std::int64_t>(options_.steps - first_step_, 1)),
      .device = options_.device,
  };
  if (!bound_.plan.asynchronous()) {
    auto worker = std::make_unique<SynchronousWorker>(bound_, rank_, channel_, data, how);
    synchronous_ = worker.get();
    worker_ = std::move(worker);
  } else {
    auto worker = std::make_unique<AsynchronousWorker>(bound_, rank_, channel_, data, how);
    asynchronous_ = worker.get();
    worker_ = std::move(worker);
  }
  if (!options_.device.is_cpu()) worker_->warm_up(data);
}

void RankRun::make_comparison(const data::DataSource& data) {
  comparison_.emplace(bound_, data, options_);
  Reference* const reference = comparison_->reference();
  if (reference) checkpoints_.load(reference->program(), reference->optimizer());
  std::optional<stage::LossScaler> scaler = loss_scaler_of(bound_.plan, options_.loss_scale);
  if (!scaler) return;
  if (checkpoints_.loss_scale()) scaler->set_state(*checkpoints_.loss_scale());
  synchronous_->scale_loss(*scaler);
  if (reference) reference->scale_loss(*scaler);
}

RunResult RankRun::run() {
  if (rank_ == 0) yardstick_.emplace(device::device_yardstick(options_.device, options_.threads));
  counting_.reset();  // nor is the memory of the yardstick
  read_yardstick();
  counting_.emplace(tracker_);
  began_ = device::processor_moment();
  clock_.begin();
  try {
    synchronous_ ? train() : replay();
    counting_.reset();
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
  measurement_->add(worker_->take_all_spans());
  return result();
}

void RankRun::read_yardstick() {
  channel_.barrier();
  if (yardstick_) yardstick_->read();
  channel_.barrier();
}

Conditions RankRun::conditions() {
  const device::ProcessorMoment ended = device::processor_moment();
  channel_.activity().begin({.action = "gathering of results"});
  Conditions out{channel::gather_processor_use(channel_, began_, ended), {}};
  read_yardstick();
  if (yardstick_) out.yardstick = yardstick_->result();
  return out;
}

RunResult RankRun::result() {
  RunResult out;
  out.first_step = first_step_;
  out.steps_done = done_;
  out.nonfinite_steps = worker_->nonfinite_steps();
  out.evaluation = reports_->evaluation();
  out.validations = reports_->validations();
  if (worker_->loss_scaler()) {
    out.loss_scale = worker_->loss_scaler()->state();
    out.skipped_steps = worker_->loss_scaler()->skipped();
  }
  Conditions during = conditions();
  out.measurement = measurement_->finish(done_ - first_step_, {rank_, tracker_.peak(), {{"parameters", parameters_}}},
                                         comparison_->check());
  if (comparison_->active()) out.check = std::move(comparison_->check());
  out.measurement.conditions = std::move(during);
  return out;
}

void RankRun::train() {
  const device::RangeName step_range = device::range_name("step");
  for (std::int64_t step = first_step_; step < steps_; ++step) {
    const device::ScopedRange range(step_range, step);
    synchronous_->compute(step);
    if (comparison_->active()) {
      counting_.reset();
      const stage::MicrobatchLosses own = worker_->take_losses(step);
      reports_->send(own);
      comparison_->compare_step(step, *worker_, own);
      synchronous_->begin_update();
    }
    reports_->send_until(step + 1 - lag_);
    synchronous_->update_step(step);
    clock_.end_until(step + 1);
    done_ = step + 1;
    if (done_ - first_step_ == kMemorySteps) counting_.reset();
    validate(step);
    reports_->report_until(step - lag_);
    measurement_->add(worker_->take_spans());
    measurement_->after_step(step);
    if (rank_ == 0) measurement_->save_if_due();
    if (checkpoints_.after_step(*worker_, done_, steps_)) break;
  }
  comparison_->compare_end(*worker_);
}

void RankRun::replay() {
  if (first_step_ >= steps_) return;
  // This rank may have no microbatch of a step: it notices that step with the next one.
  asynchronous_->replay([&](std::int64_t step) {
    clock_.end_until(step + 1);
    reports_->send_until(step + 1 - lag_);
    reports_->report_until(step - lag_);
    measurement_->add(worker_->take_spans());
    if (rank_ == 0) measurement_->save_if_due();
  });
  clock_.end_until(steps_);
  done_ = steps_;
  reports_->send_until(done_);
  reports_->report_until(done_ - 1);
  validate(done_ - 1);
  (void)checkpoints_.after_step(*worker_, done_, steps_);
}

void RankRun::validate(std::int64_t step) {
  if (!validation_ || !validation_->is_due(step + 1, steps_)) return;
  measurement_->add(worker_->take_all_spans());
  channel_.barrier();
  const double begin = seconds_now_();
  try {
    if (const auto found = validation_->run(*worker_)) reports_->add_validation(step + 1, *found);
  } catch (const meeting::PeerError& e) {
    throw e.within(fmt::format("rank {}, validating after step {}: ", rank_, step + 1));
  }
  channel_.barrier();
  const double end = seconds_now_();
  measurement_->pause(Seconds(begin), Seconds(end));
  clock_.pause_before(step + 1, Seconds(end - begin));
}

}  // namespace stagecraft::run
