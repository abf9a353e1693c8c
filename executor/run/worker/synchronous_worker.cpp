#include "executor/run/worker/synchronous_worker.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string_view>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"
#include "executor/run/binding/loss_shares.h"
#include "executor/stage/gradients/gradient_reduction.h"
#include "executor/stage/gradients/norms.h"
#include "executor/stage/gradients/part_gather.h"

namespace stagecraft::run {
namespace {

std::vector<stage::StageProgram*> programs_of(const std::vector<ResidentStage>& stages) {
  std::vector<stage::StageProgram*> out;
  for (const ResidentStage& stage : stages) out.push_back(stage.program.get());
  return out;
}

/// What the stages' optimizers update, if some of it is less than a parameter.
std::vector<std::vector<at::Tensor>> updated_of(const std::vector<ResidentStage>& stages, const BoundModel& bound) {
  std::vector<std::vector<at::Tensor>> out;
  if (bound.plan.plan().sharding == StateSharding::None) return out;
  for (const ResidentStage& stage : stages) out.push_back(stage.optimizer->parameters());
  return out;
}

}  // namespace

SynchronousWorker::SynchronousWorker(const BoundModel& bound, int rank, channel::Channel& channel,
                                     const data::DataSource& data, const WorkerOptions& options)
    : StageWorker(bound, rank, channel, data, options, 1),
      data_(data),
      trainable_(stage::trainable_names(bound.model)),
      ties_(channel, tied_of_rank(bound.plan, rank), programs_of(stages()), bound.sums, updated_of(stages(), bound)),
      reduces_(to_index(std::ranges::count(setup().actions, ActionKind::Reduce, &Action::kind))) {
  for (const ResidentStage& stage : stages()) {
    StageState& state = states_.emplace_back();
    if (setup().trains()) state.updated = stage.program->parameters();
    for (std::size_t i = 0; i < state.updated.size(); ++i) state.updated[i].value = stage.optimizer->parameters()[i];
    for (const Action& action : setup().actions) {
      if (action.kind == ActionKind::Backward && action.stage == stage.stage) state.last_backward = action.microbatch;
    }
    // A split backward leaves its weight gradients for later, so there is nothing to wait for in it. Several stages of
    // a rank may end their backwards in another order than on another replica, so they sum one after the other.
    if (stage.split.contains(state.last_backward) || stages().size() > 1) state.last_backward = -1;
    if (bound.statistics[to_index(stage.stage)])
      state.statistics =
          std::make_unique<stage::MovingStatistics>(bound.model, *stage.program, [](int) { return true; });
  }
}

std::size_t SynchronousWorker::place_of(const ResidentStage& stage) { return to_index(&stage - stages().data()); }

channel::StageTags SynchronousWorker::tags_of(const ResidentStage& stage) {
  return {to_int(place_of(stage)), to_int(stages().size())};
}

void SynchronousWorker::prepare_gradients(ResidentStage& stage) {
  std::vector<stage::Parameter>& parameters = stage.program->parameters();
  for (stage::Parameter& parameter : parameters) parameter.value.mutable_grad() = at::Tensor();
  for (stage::Parameter& updated : state_of(stage).updated) updated.value.mutable_grad() = at::Tensor();
  if (stage::GradientReduction* const reducing = reduction(stage)) reducing->begin_step();
}

stage::GradientReduction* SynchronousWorker::reduction(ResidentStage& stage) {
  StageState& state = state_of(stage);
  const std::vector<GradientSum>& sums = setup().bound.sums[to_index(stage.stage)];
  if (state.reduction || std::ranges::all_of(sums, [](const GradientSum& sum) { return sum.tied.has_value(); }))
    return state.reduction.get();
  const std::vector<stage::Parameter>& parameters = stage.program->parameters();
  std::vector<at::Tensor> untied;
  stage::DividedState divided{.sharding = setup().plan().sharding};
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (ties_.is_tied(parameters[i].name)) continue;
    untied.push_back(parameters[i].value);
    if (!sums.front().parts.empty()) divided.updated.push_back(state.updated[i].value);
  }
  state.reduction = std::make_unique<stage::GradientReduction>(setup().channel, std::move(untied), sums,
                                                               std::move(divided), tags_of(stage));
  return state.reduction.get();
}

void SynchronousWorker::before_forward(ResidentStage& stage, const Action&) {
  if (const auto& statistics = state_of(stage).statistics) statistics->begin();
}

void SynchronousWorker::after_forward(ResidentStage& stage, const Action& action) {
  if (const auto& statistics = state_of(stage).statistics) statistics->end(action.microbatch);
}

double SynchronousWorker::before_backward(ResidentStage& stage, const Action& action) {
  const StageState& state = state_of(stage);
  if (state.reduction) state.reduction->begin_backward();
  if (state.reduction && action.microbatch == state.last_backward) state.reduction->last_backward();
  return loss_gradient() * (stage.stage == loss_stage(setup().bound) ? loss_share(action.microbatch) : 1);
}

double SynchronousWorker::loss_share(int microbatch) const {
  return shares_.empty() ? 1 : shares_[to_index(microbatch)];
}

void SynchronousWorker::after_backward(ResidentStage& stage, const Action& action, bool last) {
  ties_.add_copies(place_of(stage), action.microbatch, last);
}

void SynchronousWorker::begin_gather(ResidentStage& stage) {
  if (stage::GradientReduction* const reducing = reduction(stage)) reducing->begin_gather();
}

void SynchronousWorker::finish_gather(ResidentStage& stage) {
  if (stage::GradientReduction* const reducing = reduction(stage)) reducing->finish_gather();
}

void SynchronousWorker::free(ResidentStage& stage) {
  if (stage::GradientReduction* const reducing = reduction(stage)) reducing->free_parameters();
}

void SynchronousWorker::gather_parameters() {
  for (ResidentStage& stage : stages()) {
    if (!setup().bound.plan.gathers(stage.stage)) continue;
    begin_gather(stage);
    finish_gather(stage);
  }
}

void SynchronousWorker::free_parameters() {
  for (ResidentStage& stage : stages()) {
    if (setup().bound.plan.gathers(stage.stage)) free(stage);
  }
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
    if (const at::Tensor flag = stage::nonfinite_flag(updated()); flag.defined())
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
    for (const StageState& state : states_) {
      if (const auto name = stage::nonfinite_gradient(state.updated))
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

std::vector<stage::Parameter> SynchronousWorker::updated() const {
  std::vector<stage::Parameter> out;
  for (const StageState& state : states_) out.insert(out.end(), state.updated.begin(), state.updated.end());
  return out;
}

void SynchronousWorker::visit_divided(const VisitDivided& visit) {
  if (setup().plan().sharding == StateSharding::None) return;
  const BoundModel& bound = setup().bound;
  for (const ResidentStage& stage : stages()) {
    std::vector<const GradientSum*> sums;
    std::vector<int> tags;
    for (const GradientSum& sum : bound.sums[to_index(stage.stage)]) {
      if (sum.tied || sum.parameters.empty()) continue;
      tags.push_back(tags_of(stage).bucket(to_int(sums.size())));
      sums.push_back(&sum);
    }
    if (!sums.empty()) visit(stage, sums, tags);
  }
  for (const TiedHolders& tied : tied_of_rank(bound.plan, setup().rank)) {
    const auto is_it = [&](const GradientSum& sum) { return sum.tied == tied.tag; };
    for (const ResidentStage& stage : stages()) {
      const std::vector<GradientSum>& sums = bound.sums[to_index(stage.stage)];
      const auto found = std::ranges::find_if(sums, is_it);
      if (found == sums.end()) continue;
      visit(stage, {&*found}, {channel::kTiesTag + tied.tag});
      break;
    }
  }
}

std::map<std::string, double> SynchronousWorker::squared_norms() {
  stage::SquaredBlocks blocks = stage::squared_blocks(updated());
  visit_divided([&](const ResidentStage& stage, const std::vector<const GradientSum*>& sums, const std::vector<int>&) {
    stage::gather_squared_blocks(setup().channel, sums, setup().bound.parameters[to_index(stage.stage)], blocks);
  });
  return stage::squared_norms(blocks);
}

void SynchronousWorker::gather_gradients() {
  for (const StageState& state : states_) {
    if (state.reduction) state.reduction->gather_gradients();
  }
  ties_.gather_gradients();
}

std::map<std::string, at::Tensor> SynchronousWorker::gather_averages() {
  const at::NoGradGuard no_graph;
  std::map<std::string, at::Tensor> out;
  visit_divided(
      [&](const ResidentStage& stage, const std::vector<const GradientSum*>& sums, const std::vector<int>& tags) {
        const std::vector<stage::Parameter>& parameters = stage.program->parameters();
        for (std::size_t s = 0; s < sums.size(); ++s) {
          std::vector<at::Tensor> averages;
          std::int64_t values = 0;
          for (const std::size_t place : sums[s]->parameters) {
            const std::string_view name = setup().bound.parameters[to_index(stage.stage)][place].name;
            const auto found = std::ranges::find(parameters, name, &stage::Parameter::name);
            const std::size_t i = to_index(found - parameters.begin());
            const at::Tensor own = stage.optimizer->state(i).average;
            if (!own.defined()) return;
            const at::Tensor& average = averages.emplace_back(at::empty_like(found->value, own.options()));
            const std::int64_t first = owned_range(setup().bound.homes.at(found->name), setup().rank).first;
            stage::in_memory_order(average).narrow(0, first, own.numel()).copy_(own.view({-1}));
            values += average.numel();
            out[found->name] = average;
          }
          stage::PartGather gather({.kind = Collective::AllGather,
                                    .values = at::empty({values}, averages.front().options()),
                                    .members = sums[s]->ranks,
                                    .tag = tags[s],
                                    .counts = part_values(*sums[s])},
                                   setup().rank, averages);
          gather.start(setup().channel);
          gather.finish();
        }
      });
  return out;
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
    const auto squared = stage::gather_squared_norms(setup().channel, squared_norms(), trainable_);
    // In double, the square of a finite gradient does not overflow, so the norms reveal gradients that do.
    overflow = scaler_ && !std::ranges::all_of(squared, [](const auto& norm) { return std::isfinite(norm.second); });
    if (setup().rank == 0) norms_[step] = stage::gradient_norm(squared, divisor);
    divisor *= stage::clip_divisor(squared, divisor, setup().optimizer.clip_norm);
  } else if (scaler_) {
    overflow = stage::on_any_rank(setup().channel, stage::overflows(updated()));
  }
  if (scaler_ && !skipped) scaler_->update(overflow);
  for (ResidentStage& stage : stages()) {
    const Action action{ActionKind::Update, stage.stage, -1, -1};
    const device::ScopedRange range = begin(setup().actions.size() - 1, action, step);  // updates end the list
    const DeviceClock::Moment start = &stage == &stages().front() ? update_start_ : spans().mark();
    if (!overflow && !skipped) {
      stage.optimizer->step(divisor, stage::rate_factor(setup().optimizer.rate, step) * rate_scale_);
      if (const auto& reduction = state_of(stage).reduction) reduction->gather_parameters();
      if (&stage == &stages().back()) ties_.gather_parameters();
    }
    prepare_gradients(stage);
    spans().record(action, step, start);
  }
  prepared_ = true;
}

}  // namespace stagecraft::run
