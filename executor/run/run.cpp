#include "executor/run/run.h"

#include <ATen/Parallel.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "costmodel/verify.h"
#include "executor/channel/channel_local.h"
#include "executor/device/device.h"
#include "executor/device/memory_tracker.h"
#include "executor/device/ranges.h"
#include "executor/launch/rank_group.h"
#include "executor/run/loss_gathering.h"
#include "executor/run/reference.h"
#include "executor/run/stage_worker.h"
#include "executor/run/training_record.h"

namespace stagecraft {
namespace {

/// Steps during which memory is counted: the first makes the optimizer's state, the second holds everything. They are
/// the warm-up steps that a comparison leaves out, so counting disturbs no time that counts.
constexpr std::int64_t kMemorySteps = 2;

void check_can_compare(const Plan& plan, const RunOptions& options) {
  const ScheduleEntry schedule = schedule_of(plan);
  const bool compares = options.check || !options.expected.empty();
  if (!compares || (schedule.trains && schedule.weights == Weights::Flushed)) return;
  throw std::invalid_argument("a check compares a step's gradients with others, schedule \"" + plan.schedule +
                              "\" has none that could be compared");
}

/// One rank of a run, from its first step to its last.
class RankRun {
 public:
  RankRun(const Plan& plan, const Model& model, const DataSource& data, const RunOptions& options, int rank,
          Channel& channel, const std::function<double()>& seconds_now, const std::function<void(const Progress&)>& progress)
      : plan_(plan),
        options_(options),
        rank_(rank),
        channel_(channel),
        seconds_now_(seconds_now),
        progress_(progress),
        stream_(options.device),
        tracker_(options.device.type()),
        counting_(std::in_place, tracker_),
        checkpoints_(plan, model, options.checkpoint, options.optimizer, options.seed, rank, channel),
        first_step_(checkpoints_.first_step()),
        steps_(options.steps),
        worker_(model, plan, rank, channel, data, options.optimizer, options.seed, seconds_now, first_step_,
                static_cast<int>(std::max<std::int64_t>(options.steps - first_step_, 1)), options.device),
        parameters_(tracker_.live()),
        losses_(plan, model, rank, channel),
        measurement_(plan, worker_.actions(), rank, channel, first_step_, options.save),
        done_(first_step_),
        sent_(first_step_),
        told_(first_step_) {
    worker_.visit_stages(
        [&](int, StageProgram& program, Optimizer& optimizer) { checkpoints_.load(program, optimizer); });
    worker_.on_nonfinite(options.on_nonfinite, options.checkpoint.tell);
    std::optional<LossScaler> scaler = loss_scaler_of(plan, options.loss_scale);
    if (scaler && checkpoints_.loss_scale()) scaler->set_state(*checkpoints_.loss_scale());
    if (scaler) worker_.scale_loss(*scaler);
    if (options.check) {
      counting_.reset();
      reference_.emplace(plan, model, data, options.optimizer, options.seed, options.device);
      checkpoints_.load(reference_->program(), reference_->optimizer());
      if (scaler) reference_->scale_loss(*scaler);
      counting_.emplace(tracker_);
    }
    if (!options.expected.empty()) {
      record_.emplace(options.expected);
      record_->check_fits(plan, options.steps, options.optimizer, options.seed);
      check_.with = options.expected;
      check_.reasons = other_orders(plan, model, layers_of_stages(plan, model));
      if (const std::string other = record_->other_kernels(options.threads); !other.empty()) {
        check_.reasons.push_back(other);
        check_.tolerance = kOtherKernelsTolerance;
        check_.other_kernels = true;
      }
    }
    if (!schedule_of(plan).trains) {
      evaluation_.emplace();
      if (const auto pass = whole_pass(plan, data)) {
        left_ = pass->microbatches;
        steps_ = std::min(steps_, pass->steps);
      }
    }
    // A GPU's losses are fetched a step late, so that the host never waits for the step that it has just enqueued. And
    // rank 0 tells a step later still, so that it never waits for the last stage.
    lag_ = options.device.is_cpu() || reference_ || record_ ? 0 : 1;
  }

  RunResult run() {
    channel_.barrier();
    ends_.push_back(seconds_now_());
    try {
      worker_.asynchronous() ? replay() : train();
      counting_.reset();
      send_until(done_);
      tell_until(done_);
    } catch (const NonfiniteError& e) {
      throw std::runtime_error(fmt::format(
          "rank {}, {}{}; a lower --learning-rate or --clip-norm may help, --on-nonfinite warn or skip goes on", rank_,
          e.what(),
          checkpoints_.newest().empty() ? "" : fmt::format("; {} is the last good checkpoint", checkpoints_.newest())));
    }
    losses_.finish();
    measurement_.add(worker_.take_all_spans());
    RunResult out;
    out.first_step = first_step_;
    out.steps_done = done_;
    out.nonfinite_steps = worker_.nonfinite_steps();
    out.evaluation = evaluation_;
    if (worker_.loss_scaler()) {
      out.loss_scale = worker_.loss_scaler()->state();
      out.skipped_steps = worker_.loss_scaler()->skipped();
    }
    out.measurement =
        measurement_.finish(done_ - first_step_, {rank_, tracker_.peak(), {{"parameters", parameters_}}}, check_);
    if (reference_ || record_) out.check = std::move(check_);
    return out;
  }

 private:
  void train() {
    const RangeName step_range = range_name("step");
    for (std::int64_t step = first_step_; step < steps_; ++step) {
      const Range range(step_range, step);
      worker_.compute(step);
      if (reference_ || record_) compare(step);
      send_until(step + 1 - lag_);
      worker_.update(step);
      ends_.push_back(seconds_now_());
      done_ = step + 1;
      if (done_ - first_step_ == kMemorySteps) counting_.reset();
      tell_until(step - lag_);
      measurement_.add(worker_.take_spans());
      measurement_.after_step(step);
      if (rank_ == 0) measurement_.save_if_due();
      if (checkpoints_.after_step(worker_, done_, steps_)) break;
    }
    if (!record_) return;
    worker_.visit_stages([&](int, StageProgram& program, Optimizer&) {
      record_->compare_end(program.parameters(), program.buffers(), check_);
    });
  }

  void replay() {
    if (first_step_ >= steps_) return;
    const auto ended = [this](std::int64_t steps) {
      while (static_cast<std::int64_t>(ends_.size()) < steps - first_step_ + 1) ends_.push_back(seconds_now_());
    };
    // This rank may have no microbatch of a step: it hears of that one with the next.
    worker_.replay([&](std::int64_t step) {
      ended(step + 1);
      send_until(step + 1 - lag_);
      tell_until(step - lag_);
      measurement_.add(worker_.take_spans());
      if (rank_ == 0) measurement_.save_if_due();
    });
    ended(steps_);
    done_ = steps_;
    send_until(done_);
    tell_until(done_ - 1);
    (void)checkpoints_.after_step(worker_, done_, steps_);
  }

  void compare(std::int64_t step) {
    counting_.reset();
    const MicrobatchLosses own = worker_.take_losses(step);
    losses_.send(own);
    sent_ = step + 1;
    if (record_) {
      record_->compare_gradients(step, worker_.parameters(), check_);
      record_->compare_losses(step, own, check_);
      return;
    }
    reference_->compute(step);
    if (!reference_->overflow()) compare_gradients(step);
    for (const auto& [microbatch, loss] : own)
      compare_loss(loss, reference_->losses()[static_cast<std::size_t>(microbatch)], check_);
    reference_->update();
  }

  void compare_gradients(std::int64_t step) {
    std::vector<ComparedTensor> compared;
    for (const Parameter& parameter : worker_.parameters()) {
      at::Tensor expected = reference_->gradient(parameter.layer, parameter.name);
      at::Tensor found = parameter.value.grad();
      if (!expected.defined() && !found.defined()) continue;
      if (!expected.defined()) expected = at::zeros_like(found);
      if (!found.defined()) found = at::zeros_like(expected);
      compared.push_back({fmt::format("gradient of \"{}\" in step {}", parameter.name, step + 1), parameter.layer,
                          std::move(found), std::move(expected)});
    }
    compare_tensors(compared, check_);
  }

  void send_until(std::int64_t end) {
    for (; sent_ < end; ++sent_) losses_.send(worker_.take_losses(sent_));
  }
  void tell_until(std::int64_t end) {
    for (; rank_ == 0 && told_ < end; ++told_) tell(told_);
  }

  /// On rank 0, once the step's losses are on their way.
  void tell(std::int64_t step) {
    std::vector<double> losses;
    try {
      losses = losses_.receive(worker_.asynchronous() ? static_cast<int>(step - first_step_) * plan_.microbatches : 0);
    } catch (const PeerError& e) {
      throw e.within(fmt::format("rank 0, gathering the losses of step {}: ", step + 1));
    }
    if (left_ && *left_ < static_cast<std::int64_t>(losses.size())) losses.resize(static_cast<std::size_t>(*left_));
    const double sum = std::accumulate(losses.begin(), losses.end(), 0.0);
    const double loss = sum / static_cast<double>(losses.size());
    if (evaluation_) {
      evaluated_sum_ += sum;
      evaluation_->microbatches += static_cast<std::int64_t>(losses.size());
      evaluation_->loss = evaluated_sum_ / static_cast<double>(evaluation_->microbatches);
      if (left_) *left_ -= static_cast<std::int64_t>(losses.size());
    }
    measurement_.add_loss(loss);
    if (!progress_) return;
    const auto k = static_cast<std::size_t>(step - first_step_);
    progress_({step, steps_, loss, Seconds(ends_[k + 1] - ends_[k]),
               worker_.loss_scaler() ? std::optional(worker_.loss_scaler()->scale()) : std::nullopt});
  }

  const Plan& plan_;
  const RunOptions& options_;
  int rank_;
  Channel& channel_;
  const std::function<double()>& seconds_now_;
  const std::function<void(const Progress&)>& progress_;
  OwnStream stream_;
  MemoryTracker tracker_;
  std::optional<MemoryTracker::Scope> counting_;
  RunCheckpoints checkpoints_;
  std::int64_t first_step_;
  std::int64_t steps_;  ///< number of the one after the last
  StageWorker worker_;
  Bytes parameters_;
  std::optional<Reference> reference_;
  std::optional<TrainingRecord> record_;
  Check check_;
  LossGathering losses_;
  RunMeasurement measurement_;
  std::optional<Evaluation> evaluation_;
  double evaluated_sum_ = 0;
  std::optional<std::int64_t> left_;  ///< microbatches of the evaluated data that no loss has been told of
  std::vector<double> ends_;          ///< of each step on this rank, after the beginning of the first
  std::int64_t lag_ = 0;
  std::int64_t done_, sent_, told_;   ///< steps that were run, whose losses were sent, and told
};

}  // namespace

void verify_lists(const Plan& plan, const Model& model, std::int64_t steps) {
  // Of an asynchronous schedule's steps those that reach its steady state show all that can happen.
  const int covered = static_cast<int>(std::clamp<std::int64_t>(steps, 1, step_window(plan).steps));
  const std::vector<std::vector<int>> layers = layers_of_stages(plan, model);
  check_fits(plan, model, layers);
  const auto tied = tied_parameters(model, layers);
  const auto result =
      verify(plan, planned_actions(plan, tied, covered), {.steps = covered, .reduce_groups = tied_groups(plan, tied)});
  if (const auto* infeasible = std::get_if<Infeasible>(&result))
    throw std::invalid_argument("the plan cannot run: " + infeasible->reason);
}

std::optional<WholePass> whole_pass(const Plan& plan, const DataSource& data) {
  const std::optional<std::int64_t> samples = data.samples();
  if (!samples || !plan.microbatch_samples) return std::nullopt;
  const std::int64_t microbatches = *samples / *plan.microbatch_samples;
  if (microbatches == 0) {
    throw std::invalid_argument(fmt::format("the data hold {} samples, a microbatch of the plan takes {}", *samples,
                                            *plan.microbatch_samples));
  }
  return WholePass{microbatches, (microbatches + plan.microbatches - 1) / plan.microbatches,
                   *samples - microbatches * *plan.microbatch_samples};
}

RunResult run_rank(const Plan& plan, const Model& model, const DataSource& data, const RunOptions& options, int rank,
                   Channel& channel, const std::function<double()>& seconds_now,
                   const std::function<void(const Progress&)>& progress) {
  if (!plan.microbatch_samples) {
    throw std::invalid_argument(
        "the plan does not say the samples of a microbatch; plan from a graph that stagecraft profile wrote");
  }
  check_can_compare(plan, options);
  at::set_num_threads(options.threads);
  return RankRun(plan, model, data, options, rank, channel, seconds_now, progress).run();
}

RunResult run_local(const Plan& plan, const Model& model, const DataSource& data, const RunOptions& options,
                    std::chrono::milliseconds deadline, const std::function<void(const Progress&)>& progress) {
  verify_lists(plan, model, options.steps);
  const auto channels = make_local_channels(static_cast<int>(ranks(plan).size()), deadline);
  const auto begin = std::chrono::steady_clock::now();
  const auto now = [begin] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  std::vector<RunResult> results(channels.size());
  run_as_threads(channels, [&](Channel& channel) {
    results[static_cast<std::size_t>(channel.rank())] =
        run_rank(plan, model, data, options, channel.rank(), channel, now, progress);
  });
  return std::move(results.front());
}

}  // namespace stagecraft
