#include "executor/run/worker/synchronous_worker.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "costmodel/index.h"
#include "executor/run/binding/loss_shares.h"
#include "executor/stage/gradients/gradient_reduction.h"

namespace stagecraft::run {
namespace {

std::vector<stage::StageProgram*> programs_of(const std::vector<ResidentStage>& stages) {
  std::vector<stage::StageProgram*> out;
  for (const ResidentStage& stage : stages) out.push_back(stage.program.get());
  return out;
}

}  // namespace

SynchronousWorker::SynchronousWorker(const BoundModel& bound, int rank, channel::Channel& channel,
                                     const data::DataSource& data, const WorkerOptions& options)
    : StageWorker(bound, rank, channel, data, options, 1),
      data_(data),
      trainable_(stage::trainable_names(bound.model)),
      ties_(channel, tied_of_rank(bound.plan, rank), programs_of(stages())),
      reduces_(to_index(std::ranges::count(setup().actions, ActionKind::Reduce, &Action::kind))) {
  for (const ResidentStage& stage : stages()) {
    StageState& state = states_.emplace_back();
    for (const Action& action : setup().actions) {
      if (action.kind == ActionKind::Backward && action.stage == stage.stage) state.last_backward = action.microbatch;
    }
    // A split backward leaves its weight gradients for later, so there is nothing to wait for in it.
    if (stage.split.contains(state.last_backward)) state.last_backward = -1;
    if (bound.statistics[to_index(stage.stage)])
      state.statistics =
          std::make_unique<stage::MovingStatistics>(bound.model, *stage.program, [](int) { return true; });
  }
}

std::size_t SynchronousWorker::place_of(const ResidentStage& stage) { return to_index(&stage - stages().data()); }

void SynchronousWorker::prepare_gradients(ResidentStage& stage) {
  std::vector<stage::Parameter>& parameters = stage.program->parameters();
  for (stage::Parameter& parameter : parameters) parameter.value.mutable_grad() = at::Tensor();
  const std::vector<GradientSum>& sums = setup().bound.sums[to_index(stage.stage)];
  if (std::ranges::all_of(sums, [](const GradientSum& sum) { return sum.tied.has_value(); })) return;
  StageState& state = state_of(stage);
  if (!state.reduction) {
    std::vector<at::Tensor> untied;
    for (const stage::Parameter& parameter : parameters) {
      if (!ties_.is_tied(parameter.name)) untied.push_back(parameter.value);
    }
    state.reduction = std::make_unique<stage::GradientReduction>(setup().channel, std::move(untied), sums);
  }
  state.reduction->begin_step();
}

void SynchronousWorker::before_forward(ResidentStage& stage, const Action&) {
  if (const auto& statistics = state_of(stage).statistics) statistics->begin();
}

void SynchronousWorker::after_forward(ResidentStage& stage, const Action& action) {
  if (const auto& statistics = state_of(stage).statistics) statistics->end(action.microbatch);
}

double SynchronousWorker::before_backward(ResidentStage& stage, const Action& action) {
  const StageState& state = state_of(stage);
  if (state.reduction && action.microbatch == state.last_backward) state.reduction->last_backward();
  return loss_gradient() * (stage.stage == loss_stage(setup().bound) ? loss_share(action.microbatch) : 1);
}

double SynchronousWorker::loss_share(int microbatch) const {
  return shares_.empty() ? 1 : shares_[to_index(microbatch)];
}

void SynchronousWorker::after_backward(ResidentStage& stage, const Action& action, bool last) {
  ties_.add_copies(place_of(stage), action.microbatch, last);
}

void SynchronousWorker::reduce(const Action& action) {
  if (const auto& reduction = state_of(resident(action.stage)).reduction) reduction->finish();
  // Tied parameters last, in one order on all ranks: their members have different stages.
  if (++reduced_ == reduces_) ties_.reduce();
}

void SynchronousWorker::update(const Action&) { throw std::logic_error("a step's updates are for update_step to run"); }

void SynchronousWorker::keep_buffers() {
  kept_buffers_.clear();
  for (const ResidentStage& stage : stages()) {
    for (const stage::Parameter& buffer : stage.program->buffers())
      kept_buffers_.emplace_back(buffer.value, buffer.value.detach().clone());
  }
}

void SynchronousWorker::restore_buffers() {
  const at::NoGradGuard no_graph;
  for (auto& [buffer, before] : kept_buffers_) buffer.copy_(before);
}

void SynchronousWorker::compute(std::int64_t step) {
  spans().settle();
  const bool trains = setup().trains();
  if (guard().skips_steps() && trains) keep_buffers();
  if (trains && has_loss_shares(setup().bound.model) &&
      std::ranges::count(stages(), loss_stage(setup().bound), &ResidentStage::stage))
    shares_ =
        loss_shares(setup().bound.model, data_, step, setup().plan().microbatches, *setup().plan().microbatch_samples);
  // An update prepares the next step.
  for (ResidentStage& stage : stages()) {
    if (trains && !prepared_) prepare_gradients(stage);
  }
  prepared_ = false;
  reduced_ = 0;
  for (std::size_t i = 0; i < setup().actions.size(); ++i) {
    if (setup().actions[i].kind == ActionKind::Update) continue;
    perform(i, step);
  }
  finish_sends();
  if (trains) update_start_ = spans().mark();
  if (reduces_ == 0 && trains) ties_.reduce();
  if (!setup().on_cpu() && trains && !scaler_) {
    if (const at::Tensor flag = stage::nonfinite_flag(parameters()); flag.defined())
      losses().add(step, kGradientsFlag, flag);
  }
  losses().end_step(step);
}

std::optional<double> SynchronousWorker::take_gradient_norm(std::int64_t step) {
  const auto found = norms_.extract(step);
  return found.empty() ? std::nullopt : std::optional(found.mapped());
}

void SynchronousWorker::begin_update() {
  // A GPU's mark is in its stream and costs the stream nothing.
  if (setup().on_cpu()) update_start_ = spans().mark();
}

bool SynchronousWorker::skips(std::int64_t step) {
  // A GPU's are found with the losses, without waiting for it here.
  if (!scaler_ && (setup().on_cpu() || guard().skips_steps())) {
    for (const ResidentStage& stage : stages()) {
      if (const auto name = stage::nonfinite_gradient(stage.program->parameters()))
        guard().found(step, "the gradient of \"" + *name + "\"");
    }
  }
  if (!guard().skips_steps() || !stage::on_any_rank(setup().channel, guard().found_in(step))) return false;
  guard().count_skipped();
  return true;
}

void SynchronousWorker::settle_statistics(bool skipped) {
  for (const ResidentStage& stage : stages()) {
    const auto& statistics = state_of(stage).statistics;
    if (!statistics) continue;
    if (skipped) {
      statistics->drop();
      continue;
    }
    statistics->exchange(setup().channel, setup().bound.statistics[to_index(stage.stage)]->ranks,
                         setup().plan().microbatches);
    statistics->apply();
  }
}

void SynchronousWorker::update_step(std::int64_t step) {
  const bool trains = setup().trains();
  const bool skipped = trains && skips(step);
  if (skipped) restore_buffers();
  settle_statistics(skipped);
  if (!trains) {
    for (ResidentStage& stage : stages()) stage.flights.assign(stage.flights.size(), {});
    return;
  }
  double divisor = setup().plan().microbatches * loss_gradient();
  bool overflow = false;
  if (setup().optimizer.clip_norm > 0) {
    const auto squared = stage::gather_squared_norms(setup().channel, stage::squared_norms(parameters()), trainable_);
    // In double, the square of a finite gradient does not overflow, so the norms reveal gradients that do.
    overflow = scaler_ && !std::ranges::all_of(squared, [](const auto& norm) { return std::isfinite(norm.second); });
    if (setup().rank == 0) norms_[step] = stage::gradient_norm(squared, divisor);
    divisor *= stage::clip_divisor(squared, divisor, setup().optimizer.clip_norm);
  } else if (scaler_) {
    overflow = stage::on_any_rank(setup().channel, stage::overflows(parameters()));
  }
  if (scaler_ && !skipped) scaler_->update(overflow);
  for (ResidentStage& stage : stages()) {
    const Action action{ActionKind::Update, stage.stage, -1, -1};
    const device::ScopedRange range = begin(setup().actions.size() - 1, action, step);  // updates end the list
    const DeviceClock::Moment start = &stage == &stages().front() ? update_start_ : spans().mark();
    if (!overflow && !skipped)
      stage.optimizer->step(divisor, stage::rate_factor(setup().optimizer.rate, step) * rate_scale_);
    prepare_gradients(stage);
    spans().record(action, step, start);
  }
  prepared_ = true;
}

}  // namespace stagecraft::run
