#include "executor/run/worker/synchronous_worker.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "costmodel/index.h"
#include "executor/stage/gradients/gradient_norm.h"

namespace stagecraft::run {
namespace {

std::vector<stage::StageProgram*> programs_of(const std::vector<ResidentStage>& stages) {
  std::vector<stage::StageProgram*> out;
  for (const ResidentStage& each : stages) out.push_back(each.program.get());
  return out;
}

}  // namespace

SynchronousWorker::SynchronousWorker(const BoundModel& bound, int rank, channel::Channel& channel,
                                     const data::DataSource& data, const WorkerOptions& options)
    : StageWorker(bound, rank, channel, data, options, 1),
      trainable_(stage::trainable_names(bound.model)),
      ties_(channel, tied_of_rank(bound, rank), programs_of(stages_)),
      reduces_(to_index(std::ranges::count(actions_, ActionKind::Reduce, &Action::kind))) {
  for (const ResidentStage& own : stages_) {
    StageState& state = states_.emplace_back();
    for (const Action& action : actions_) {
      if (action.kind == ActionKind::Backward && action.stage == own.stage) state.last_backward = action.microbatch;
    }
    // A split backward leaves its weight gradients for later, so there is nothing to wait for in it.
    if (own.split.contains(state.last_backward)) state.last_backward = -1;
    if (own.replica_ranks.size() > 1 && bound_.plan.schedule().trains)
      state.statistics = std::make_unique<stage::MovingStatistics>(bound.model, *own.program, [](int) { return true; });
  }
}

std::size_t SynchronousWorker::place_of(const ResidentStage& own) const { return to_index(&own - stages_.data()); }

void SynchronousWorker::prepare_gradients(ResidentStage& own) {
  std::vector<stage::Parameter>& parameters = own.program->parameters();
  for (stage::Parameter& parameter : parameters) parameter.value.mutable_grad() = at::Tensor();
  if (own.replica_ranks.size() < 2) return;
  StageState& state = state_of(own);
  if (!state.reduction) {
    std::vector<at::Tensor> untied;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!ties_.is_tied(place_of(own), i)) untied.push_back(parameters[i].value);
    }
    state.reduction = std::make_unique<stage::GradientReduction>(channel_, own.replica_ranks, std::move(untied),
                                                                 plan_.gradient_bucket_bytes);
  }
  state.reduction->begin_step();
}

void SynchronousWorker::before_forward(ResidentStage& own, const Action&) {
  if (const auto& statistics = state_of(own).statistics) statistics->begin();
}

void SynchronousWorker::after_forward(ResidentStage& own, const Action& action) {
  if (const auto& statistics = state_of(own).statistics) statistics->end(action.microbatch);
}

void SynchronousWorker::before_backward(ResidentStage& own, const Action& action) {
  const StageState& state = state_of(own);
  if (state.reduction && action.microbatch == state.last_backward) state.reduction->last_backward();
}

void SynchronousWorker::after_backward(ResidentStage& own, const Action& action, bool last) {
  ties_.add_copies(place_of(own), action.microbatch, last);
}

void SynchronousWorker::reduce(const Action& action) {
  if (const auto& reduction = state_of(resident(action.stage)).reduction) reduction->finish();
  // Tied parameters last, in one order on all ranks: their members have different stages.
  if (++reduced_ == reduces_) ties_.reduce();
}

void SynchronousWorker::update(const Action&) { throw std::logic_error("a step's updates are for update_step to run"); }

void SynchronousWorker::keep_buffers() {
  kept_buffers_.clear();
  for (const ResidentStage& each : stages_) {
    for (const stage::Parameter& buffer : each.program->buffers())
      kept_buffers_.emplace_back(buffer.value, buffer.value.detach().clone());
  }
}

void SynchronousWorker::restore_buffers() {
  const at::NoGradGuard no_graph;
  for (auto& [buffer, before] : kept_buffers_) buffer.copy_(before);
}

void SynchronousWorker::compute(std::int64_t step) {
  spans_.settle();
  if (guard_.skips_steps() && bound_.plan.schedule().trains) keep_buffers();
  const bool trains = bound_.plan.schedule().trains;
  // An update prepares the next step.
  for (std::size_t i = 0; i < stages_.size() && trains && !prepared_; ++i) prepare_gradients(stages_[i]);
  prepared_ = false;
  reduced_ = 0;
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    if (actions_[i].kind == ActionKind::Update) continue;
    perform(i, step);
  }
  transfers_.finish_sends();
  if (trains) update_start_ = spans_.mark();
  if (reduces_ == 0 && trains) ties_.reduce();
  if (!placement_.device.is_cpu() && trains && !scaler_) {
    if (const at::Tensor flag = stage::nonfinite_flag(parameters()); flag.defined())
      losses_.add(step, kGradientsFlag, flag);
  }
  losses_.end_step(step);
}

std::optional<double> SynchronousWorker::take_gradient_norm(std::int64_t step) {
  const auto found = norms_.extract(step);
  return found.empty() ? std::nullopt : std::optional(found.mapped());
}

void SynchronousWorker::begin_update() {
  // A GPU's mark is in its stream and costs the stream nothing.
  if (placement_.device.is_cpu()) update_start_ = spans_.mark();
}

bool SynchronousWorker::skips(std::int64_t step) {
  // A GPU's are found with the losses, without waiting for it here.
  if (!scaler_ && (placement_.device.is_cpu() || guard_.skips_steps())) {
    for (const ResidentStage& each : stages_) {
      if (const auto name = stage::nonfinite_gradient(each.program->parameters()))
        guard_.found(step, "the gradient of \"" + *name + "\"");
    }
  }
  if (!guard_.skips_steps() || !stage::on_any_rank(channel_, guard_.found_in(step))) return false;
  guard_.count_skipped();
  return true;
}

void SynchronousWorker::settle_statistics(bool skipped) {
  for (const ResidentStage& own : stages_) {
    const auto& statistics = state_of(own).statistics;
    if (!statistics) continue;
    if (skipped) {
      statistics->drop();
      continue;
    }
    statistics->exchange(channel_, own.replica_ranks, plan_.microbatches);
    statistics->apply();
  }
}

void SynchronousWorker::update_step(std::int64_t step) {
  const bool skipped = bound_.plan.schedule().trains && skips(step);
  if (skipped) restore_buffers();
  settle_statistics(skipped);
  if (!bound_.plan.schedule().trains) {
    for (ResidentStage& each : stages_) each.flights.assign(each.flights.size(), {});
    return;
  }
  double divisor = plan_.microbatches * loss_gradient();
  bool overflow = false;
  if (optimizer_.clip_norm > 0) {
    const auto squared = stage::gather_squared_norms(channel_, stage::squared_norms(parameters()), trainable_);
    // In double, the square of a finite gradient does not overflow, so the norms reveal gradients that do.
    overflow = scaler_ && !std::ranges::all_of(squared, [](const auto& each) { return std::isfinite(each.second); });
    if (rank_ == 0) norms_[step] = stage::gradient_norm(squared, divisor);
    divisor *= stage::clip_divisor(squared, divisor, optimizer_.clip_norm);
  } else if (scaler_) {
    overflow = stage::on_any_rank(channel_, stage::overflows(parameters()));
  }
  if (scaler_ && !skipped) scaler_->update(overflow);
  for (ResidentStage& own : stages_) {
    const Action action{ActionKind::Update, own.stage, -1, -1};
    channel_.activity().begin({to_string(action.kind), action.stage, action.microbatch, step});
    const device::ScopedRange range(ranges_.back(), step);  // updates end the list
    const device::DeviceClock::Moment start = &own == &stages_.front() ? update_start_ : spans_.mark();
    if (!overflow && !skipped) own.optimizer->step(divisor, stage::rate_factor(optimizer_.rate, step));
    prepare_gradients(own);
    spans_.record(action, step, start);
  }
  prepared_ = true;
}

}  // namespace stagecraft::run
