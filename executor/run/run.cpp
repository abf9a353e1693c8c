#include "executor/run/run.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <c10/core/Device.h>
#include <c10/core/DeviceType.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

#include "costmodel/conditions.h"
#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/prediction/verify.h"
#include "costmodel/units.h"
#include "executor/channel/channel.h"
#include "executor/channel/channel_local.h"
#include "executor/channel/control_tags.h"
#include "executor/channel/processor_reports.h"
#include "executor/device/device.h"
#include "executor/device/dtype.h"
#include "executor/device/machine/processor.h"
#include "executor/device/machine/yardstick.h"
#include "executor/device/memory_tracker.h"
#include "executor/device/ranges.h"
#include "executor/launch/rank_group.h"
#include "executor/run/evaluation.h"
#include "executor/run/run_comparison.h"
#include "executor/run/step_reports.h"
#include "executor/run/worker/asynchronous_worker.h"
#include "executor/run/worker/synchronous_worker.h"

namespace stagecraft::run {
namespace {

/// What the machines did besides the run, and how fast they were. All ranks call the same functions in the same order.
class RunConditions {
 public:
  /// The channel must outlive it. `threads`: of each rank.
  RunConditions(int rank, channel::Channel& channel, c10::Device device, int threads);

  /// Call before the first step.
  void begin();
  /// The conditions since `begin`. Of the whole run on rank 0, empty on the others.
  [[nodiscard]] Conditions finish();

 private:
  /// On rank 0, a reading of the yardstick while all ranks wait.
  void read_yardstick();

  channel::Channel& channel_;
  std::optional<device::YardstickMeter> yardstick_;  // on rank 0
  device::ProcessorMoment began_;
};

/// The tensor memory of one rank, counted from the start until `stop`.
class MemoryCount {
 public:
  explicit MemoryCount(c10::DeviceType device) : tracker_(device), counting_(std::in_place, tracker_) {}

  /// Calls `work`; what it allocates does not count for the rank. Not after `stop`.
  template <class Work>
  void uncounted(const Work& work) {
    stop();
    work();
    counting_.emplace(tracker_);
  }
  /// Ends counting; no effect if it has ended.
  void stop() { counting_.reset(); }

  /// Bytes allocated now, and the peak since the start.
  [[nodiscard]] Bytes live() const { return tracker_.live(); }
  [[nodiscard]] Bytes peak() const { return tracker_.peak(); }

 private:
  device::MemoryTracker tracker_;
  std::optional<device::MemoryTracker::Scope> counting_;
};

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

RunConditions::RunConditions(int rank, channel::Channel& channel, c10::Device device, int threads)
    : channel_(channel), began_(device::processor_moment()) {
  if (rank == 0) yardstick_.emplace(device::device_yardstick(device, threads));
}

void RunConditions::begin() {
  read_yardstick();
  began_ = device::processor_moment();
}

Conditions RunConditions::finish() {
  const device::ProcessorMoment ended = device::processor_moment();
  channel_.activity().begin({.action = "gathering of results"});
  Conditions out{channel::gather_processor_use(channel_, began_, ended), {}};
  read_yardstick();
  if (yardstick_) out.yardstick = yardstick_->result();
  return out;
}

void RunConditions::read_yardstick() {
  channel_.barrier();
  if (yardstick_) yardstick_->read();
  channel_.barrier();
}

/// Steps during which memory is counted: the first creates the optimizer's state, the second has everything. A
/// comparison skips them as warm-up, so counting does not disturb measured times.
constexpr std::int64_t kMemorySteps = 2;

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
      worker.gather_gradients();
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

}  // namespace

void verify_lists(const BoundPlan& plan, std::int64_t steps) {
  // For an asynchronous schedule, the steps up to its steady state cover all cases.
  const int covered = to_int(std::clamp<std::int64_t>(steps, 1, plan.step_window().steps));
  const auto result = verify(plan, plan.action_lists(covered), {.steps = covered});
  if (const auto* infeasible = std::get_if<Infeasible>(&result))
    throw InputError(infeasible->kind, "the plan cannot run: " + infeasible->reason);
}

std::optional<stage::LossScaler> loss_scaler_of(const BoundPlan& plan, const stage::LossScaleOptions& options) {
  if (device::compute_type(plan.plan().dtype) != at::kHalf || !plan.schedule().trains) return std::nullopt;
  if (plan.asynchronous()) {
    throw std::invalid_argument(
        "schedule \"" + plan.plan().schedule +
        "\" is asynchronous and cannot skip a float16 step that overflows; use 1f1b or bfloat16");
  }
  return stage::LossScaler(options);
}

std::optional<WholePass> whole_pass(const Plan& plan, const data::DataSource& data) {
  const std::optional<std::int64_t> samples = data.samples();
  if (!samples || !plan.microbatch_samples) return std::nullopt;
  const std::int64_t microbatches = *samples / *plan.microbatch_samples;
  if (microbatches == 0) {
    throw std::invalid_argument(
        fmt::format("the data has {} samples, fewer than one microbatch of {}", *samples, *plan.microbatch_samples));
  }
  return WholePass{microbatches, (microbatches + plan.microbatches - 1) / plan.microbatches,
                   *samples - microbatches * *plan.microbatch_samples};
}

RunResult run_rank(const BoundModel& bound, const data::DataSource& data, const RunOptions& options, int rank,
                   channel::Channel& channel, const std::function<double()>& seconds_now,
                   const std::function<void(const Progress&)>& progress) {
  if (!bound.plan.plan().microbatch_samples) {
    throw std::invalid_argument(
        "the plan does not state its microbatch; make it from a graph written by stagecraft profile");
  }
  at::set_num_threads(options.threads);
  return RankRun(bound, data, options, rank, channel, seconds_now, progress).run();
}

RunResult run_local(const BoundModel& bound, const data::DataSource& data, const RunOptions& options,
                    std::chrono::milliseconds deadline, const std::function<void(const Progress&)>& progress) {
  verify_lists(bound.plan, options.steps);
  const auto channels = channel::make_local_channels(to_int(bound.plan.ranks().size()), deadline);
  const auto begin = std::chrono::steady_clock::now();
  const auto now = [begin] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::vector<RunResult> results(channels.size());
  launch::run_as_threads(channels, [&](channel::Channel& channel) {
    results[to_index(channel.rank())] = run_rank(bound, data, options, channel.rank(), channel, now, progress);
  });
  return std::move(results.front());
}

RunResult run_local(const Plan& plan, const model::Model& model, const data::DataSource& data,
                    const RunOptions& options, std::chrono::milliseconds deadline,
                    const std::function<void(const Progress&)>& progress) {
  const BoundPlan bound(plan);
  return run_local(bind_model(bound, model), data, options, deadline, progress);
}

}  // namespace stagecraft::run
