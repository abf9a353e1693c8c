#include "executor/run/stage_worker.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <ranges>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "executor/channel/control_tags.h"
#include "executor/device/device.h"
#include "executor/device/dtype.h"
#include "executor/stage/gradient_norm.h"
#include "executor/stage/tensor_layout.h"

namespace stagecraft {
namespace {

constexpr std::size_t kManySends = 32;
/// Beside the losses of microbatches: whether gradients are not finite.
constexpr int kGradientsFlag = -1;

std::size_t at_(int i) { return static_cast<std::size_t>(i); }

std::string shape_text(const std::string& dtype, at::IntArrayRef shape) {
  std::string out = dtype + " [";
  for (std::size_t i = 0; i < shape.size(); ++i) out += (i ? ", " : "") + std::to_string(shape[i]);
  return out + "]";
}

std::string describe(int rank, const Action& action) {
  std::string out =
      "rank " + std::to_string(rank) + ", stage " + std::to_string(action.stage) + ", " + to_string(action.kind);
  if (action.microbatch >= 0) out += " of microbatch " + std::to_string(action.microbatch);
  return out;
}

/// One buffer of zeros, and in it a view for each of `values`, of its shape and layout.
std::pair<at::Tensor, std::vector<at::Tensor>> flat_like(const std::vector<at::Tensor>& values) {
  std::int64_t count = 0;
  for (const at::Tensor& value : values) count += value.numel();
  const c10::Device device = values.empty() ? c10::Device(c10::kCPU) : values.front().device();
  std::pair<at::Tensor, std::vector<at::Tensor>> out{at::zeros({count}, at::TensorOptions(at::kFloat).device(device)),
                                                     {}};
  std::int64_t offset = 0;
  for (const at::Tensor& value : values) {
    out.second.push_back(view_laid_out_like(out.first, offset, value));
    offset += value.numel();
  }
  return out;
}

}  // namespace

StageWorker::Held& StageWorker::held(int stage) {
  for (Held& each : held_) {
    if (each.stage == stage) return each;
  }
  throw std::logic_error("an action names a stage that this rank does not hold");
}

std::vector<Parameter> StageWorker::parameters() const {
  std::vector<Parameter> out;
  for (const Held& each : held_) {
    const auto& own = each.program->parameters();
    out.insert(out.end(), own.begin(), own.end());
  }
  return out;
}

int StageWorker::boundary_with(const Held& own, int peer) const {
  for (const auto* list : {&own.incoming, &own.outgoing}) {
    for (const int b : *list) {
      if (plan_.boundaries[at_(b)].source == peer || plan_.boundaries[at_(b)].destination == peer) return b;
    }
  }
  throw std::logic_error("an action names a peer that no boundary joins");
}

int StageWorker::runner(int stage, int microbatch) const {
  return rank_of(plan_, stage, microbatch % static_cast<int>(plan_.stages[at_(stage)].devices.size()));
}

void StageWorker::record(const Action& action, std::int64_t step, DeviceClock::Moment start) {
  const DeviceClock::Moment end = clock_.mark();
  const Span span{rank_, static_cast<int>(step), action, Seconds(start.seconds), Seconds(end.seconds)};
  if (placement_.device.is_cpu()) {
    spans_.push_back(span);
  } else {
    unsettled_.push_back({span, start, end});
  }
}

void StageWorker::settle_spans(bool all) {
  if (all) synchronize(placement_.device);
  while (!unsettled_.empty() && clock_.come(unsettled_.front().end)) {
    Unsettled& next = unsettled_.front();
    next.span.start = Seconds(clock_.seconds(next.start));
    next.span.end = Seconds(clock_.seconds(next.end));
    spans_.push_back(next.span);
    unsettled_.pop_front();
  }
}

void StageWorker::prepare_gradients(Held& own) {
  std::vector<Parameter>& parameters = own.program->parameters();
  for (Parameter& parameter : parameters) parameter.value.mutable_grad() = at::Tensor();
  if (own.replica_group.size() < 2 || asynchronous_) return;
  if (!own.reduction) {
    std::vector<at::Tensor> untied;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!own.tied.contains(static_cast<int>(i))) untied.push_back(parameters[i].value);
    }
    own.reduction = std::make_unique<GradientReduction>(channel_, own.replica_group, std::move(untied),
                                                        plan_.gradient_bucket_bytes);
  }
  own.reduction->begin_step();
}

void StageWorker::begin(const Action& action, std::int64_t step) {
  channel_.activity().begin({to_string(action.kind), action.stage, action.microbatch, step});
}

void StageWorker::perform(std::size_t index, std::int64_t step) {
  const Action& action = actions_[index];
  begin(action, step);
  const Range range(ranges_[index], step);
  try {
    run(action, step);
  } catch (const PeerError& e) { throw e.within(describe(rank_, action) + ": "); }
}

void StageWorker::finish_sends() {
  for (const auto& sending : sending_) sending->wait();
  sending_.clear();
}

void StageWorker::on_nonfinite(OnNonfinite what, std::function<void(const std::string&)> tell) {
  if (what == OnNonfinite::Skip && asynchronous_) {
    throw std::invalid_argument("schedule \"" + plan_.schedule +
                                "\" has no moment at which all ranks could leave out a step that is not finite; take "
                                "1f1b, or stop or warn instead of skip");
  }
  on_nonfinite_ = what;
  tell_ = std::move(tell);
}

void StageWorker::found_nonfinite(std::int64_t step, const std::string& what) {
  const std::string text = "step " + std::to_string(step + 1) + ": " + what + " is not finite";
  if (on_nonfinite_ == OnNonfinite::Stop) throw NonfiniteError(text);
  if (step == last_nonfinite_) return;
  last_nonfinite_ = step;
  if (on_nonfinite_ == OnNonfinite::Warn) ++nonfinite_steps_;
  if (tell_) tell_("rank " + std::to_string(rank_) + ", " + text);
}

MicrobatchLosses StageWorker::take_losses(std::int64_t step) {
  MicrobatchLosses out = losses_.take(step);
  if (placement_.device.is_cpu()) return out;
  const auto gradients = out.find(kGradientsFlag);
  if (gradients != out.end()) {
    const bool bad = gradients->second > 0;
    out.erase(gradients);
    if (bad) found_nonfinite(step, "a gradient");
  }
  for (const auto& [microbatch, loss] : out) {
    if (!std::isfinite(loss)) found_nonfinite(step, "the loss of microbatch " + std::to_string(microbatch));
  }
  return out;
}

void StageWorker::keep_buffers() {
  kept_buffers_.clear();
  for (const Held& each : held_) {
    for (const Parameter& buffer : each.program->buffers())
      kept_buffers_.emplace_back(buffer.value, buffer.value.detach().clone());
  }
}

void StageWorker::restore_buffers() {
  const at::NoGradGuard no_graph;
  for (auto& [buffer, before] : kept_buffers_) buffer.copy_(before);
}

bool StageWorker::skips(std::int64_t step) {
  // A GPU's are found with the losses, without waiting for it here.
  if (!scaler_ && (placement_.device.is_cpu() || on_nonfinite_ == OnNonfinite::Skip)) {
    for (const Held& each : held_) {
      if (const auto name = nonfinite_gradient(each.program->parameters()))
        found_nonfinite(step, "the gradient of \"" + *name + "\"");
    }
  }
  if (on_nonfinite_ != OnNonfinite::Skip || !on_any_rank(channel_, last_nonfinite_ == step)) return false;
  ++nonfinite_steps_;
  return true;
}

void StageWorker::compute(std::int64_t step) {
  settle_spans(false);
  if (on_nonfinite_ == OnNonfinite::Skip && schedule_.trains) keep_buffers();
  for (Held& each : held_) prepare_gradients(each);
  std::size_t reduced = 0;
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    if (actions_[i].kind == ActionKind::Update) continue;
    perform(i, step);
    // Ties last, in one order on all ranks: their members hold different stages.
    if (actions_[i].kind == ActionKind::Reduce && ++reduced == reduces_) reduce_ties();
  }
  if (reduces_ == 0 && schedule_.trains) reduce_ties();
  finish_sends();
  if (!placement_.device.is_cpu() && schedule_.trains && !scaler_) {
    if (const at::Tensor flag = nonfinite_flag(parameters()); flag.defined()) losses_.add(step, kGradientsFlag, flag);
  }
  losses_.end_step(step);
}

void StageWorker::replay(const std::function<void(std::int64_t step)>& done) {
  for (Held& each : held_) prepare_gradients(each);
  std::map<int, int> left;  // backwards of each step
  for (const Action& action : actions_) {
    if (action.kind == ActionKind::Backward) ++left[action.microbatch / plan_.microbatches];
  }
  int step = 0;
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    const Action& action = actions_[i];
    if (action.microbatch >= 0) step = action.microbatch / plan_.microbatches;
    perform(i, first_step_ + step);
    if (action.kind != ActionKind::Backward || --left[step] > 0) continue;
    losses_.end_step(first_step_ + step);
    settle_spans(false);
    done(first_step_ + step);
  }
  finish_sends();
}

void StageWorker::reduce_waiting(Held& own) {
  const at::NoGradGuard no_graph;
  if (own.replica_group.size() < 2) return;
  std::vector<at::Tensor>& waiting = own.versions->waiting();
  std::vector<at::Tensor> values;
  for (const Parameter& parameter : own.program->parameters()) values.push_back(parameter.value);
  auto [flat, views] = flat_like(values);
  for (std::size_t i = 0; i < views.size(); ++i) {
    if (waiting[i].defined()) views[i].copy_(waiting[i]);
  }
  channel_.all_reduce(flat, own.replica_group, kBucketsTag);
  waiting = std::move(views);
}

void StageWorker::update_version(const Action& action) {
  Held& own = held(action.stage);
  const auto& [count, last] = own.covered.at(own.versions->updates());
  const std::int64_t step = first_step_ + last / plan_.microbatches;
  for (std::size_t i = 0; placement_.device.is_cpu() && i < own.versions->waiting().size(); ++i) {
    const at::Tensor& gradient = own.versions->waiting()[i];
    if (gradient.defined() && !all_finite(gradient))
      found_nonfinite(step, "the gradient of \"" + own.program->parameters()[i].name + "\"");
  }
  own.versions->update(count, rate_factor(optimizer_.rate, step));
}

void StageWorker::update(std::int64_t step) {
  const bool skipped = schedule_.trains && skips(step);
  if (skipped) restore_buffers();
  for (Held& each : held_) {
    if (!each.statistics) continue;
    if (skipped) {
      each.statistics->drop();
      continue;
    }
    each.statistics->exchange(channel_, each.replica_group, plan_.microbatches);
    each.statistics->apply();
  }
  if (!schedule_.trains) {
    for (Held& each : held_) each.flights.assign(each.flights.size(), {});
    return;
  }
  double divisor = plan_.microbatches * (scaler_ ? scaler_->scale() : 1);
  bool overflow = false;
  if (optimizer_.clip_norm > 0) {
    const auto squared = gather_squared_norms(channel_, squared_norms(parameters()), trainable_);
    // In double no square of a finite gradient overflows, so the norms tell of gradients that do.
    overflow = scaler_ && !std::ranges::all_of(squared, [](const auto& each) { return std::isfinite(each.second); });
    divisor *= clip_divisor(squared, divisor, optimizer_.clip_norm);
  } else if (scaler_) {
    overflow = on_any_rank(channel_, overflows(parameters()));
  }
  if (scaler_ && !skipped) scaler_->update(overflow);
  for (std::size_t i = 0; i < held_.size(); ++i) {
    const Action action{ActionKind::Update, held_[i].stage, -1, -1};
    begin(action, step);
    const Range range(ranges_.back(), step);  // updates end the list
    const DeviceClock::Moment start = clock_.mark();
    if (!overflow && !skipped) optimizers_[i]->step(divisor, rate_factor(optimizer_.rate, step));
    record(action, step, start);
  }
}

void StageWorker::run(const Action& action, std::int64_t step) {
  // Asking costs a thread on Gloo, so a few finished sends are let stand rather than looked at every time.
  if (sending_.size() >= kManySends) std::erase_if(sending_, [](const auto& sending) { return sending->done(); });
  switch (action.kind) {
    case ActionKind::Forward:
      return forward(action, step);
    case ActionKind::Backward:
      return backward(action, step);
    case ActionKind::WeightGradient:
      return weight_gradient(action, step);
    case ActionKind::ReceiveActivation:
    case ActionKind::ReceiveGradient:
      return post_receive(action);
    case ActionKind::SendActivation: {
      const DeviceClock::Moment start = clock_.mark();
      send(action, held(action.stage).flights[at_(action.microbatch)].sent);
      return record(action, step, start);
    }
    case ActionKind::SendGradient: {
      const DeviceClock::Moment start = clock_.mark();
      Held& own = held(action.stage);
      std::vector<at::Tensor>& gradients = own.input_gradients[at_(action.microbatch)];
      send(action, gradients);
      // The transfer holds them as long as it needs them.
      for (const int slot : own.slots[at_(boundary_with(own, action.peer))]) gradients[at_(slot)].reset();
      return record(action, step, start);
    }
    case ActionKind::Reduce: {
      const DeviceClock::Moment start = clock_.mark();
      if (asynchronous_) {
        reduce_waiting(held(action.stage));
      } else {
        reduce(held(action.stage));
      }
      return record(action, step, start);
    }
    case ActionKind::Update: {
      const DeviceClock::Moment start = clock_.mark();
      update_version(action);
      return record(action, step, start);
    }
  }
  throw std::logic_error("an action list holds an action that this runtime does not know");
}

void StageWorker::post_receive(const Action& action) {
  const bool gradient = action.kind == ActionKind::ReceiveGradient;
  const int b = boundary_with(held(action.stage), action.peer);
  const int from = runner(action.peer, action.microbatch);
  auto& posted = posted_[gradient][at_(b)][at_(action.microbatch)];
  const auto& tensors = plan_.boundaries[at_(b)].tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (gradient && !tensors[t].gradient) continue;
    posted.push_back(channel_.receive(specs_[at_(b)][t], from, tags_.tag(b, t, gradient)));
  }
}

void StageWorker::await(const Action& consumer, int boundary, bool gradient, std::int64_t step,
                        std::vector<at::Tensor>& out) {
  const Boundary& joined = plan_.boundaries[at_(boundary)];
  const int peer = gradient ? joined.destination : joined.source;
  const Range range(wait_range_, consumer.microbatch);
  const DeviceClock::Moment start = clock_.mark();
  auto& handed = handed_[gradient][at_(boundary)][at_(consumer.microbatch)];
  std::ranges::move(handed, std::back_inserter(out));
  handed.clear();
  auto& posted = posted_[gradient][at_(boundary)][at_(consumer.microbatch)];
  for (const auto& receiving : posted) out.push_back(receiving->wait());
  posted.clear();
  record({gradient ? ActionKind::ReceiveGradient : ActionKind::ReceiveActivation, consumer.stage, consumer.microbatch,
          peer},
         step, start);
}

at::Tensor StageWorker::planned(const Action& action, const Held& own, int boundary, std::size_t t,
                                const std::vector<at::Tensor>& tensors) const {
  at::Tensor out = tensors[at_(own.slots[at_(boundary)][t])].detach().contiguous();
  if (const TensorSpec& spec = specs_[at_(boundary)][t];
      out.sizes() != at::IntArrayRef(spec.shape) || out.scalar_type() != spec.dtype) {
    const BoundaryTensor& planned = plan_.boundaries[at_(boundary)].tensors[t];
    throw std::invalid_argument(describe(rank_, action) + ": layer \"" + planned.layer + "\" gives " +
                                shape_text(dtype_name(out.scalar_type()), out.sizes()) + ", the plan says " +
                                shape_text(planned.dtype, planned.shape) + "; profile and plan this model again");
  }
  return out;
}

void StageWorker::send(const Action& action, const std::vector<at::Tensor>& tensors) {
  const bool gradient = action.kind == ActionKind::SendGradient;
  const Held& own = held(action.stage);
  const int b = boundary_with(own, action.peer);
  const int to = runner(action.peer, action.microbatch);
  const auto& joined = plan_.boundaries[at_(b)].tensors;
  for (std::size_t t = 0; t < joined.size(); ++t) {
    if (gradient && !joined[t].gradient) continue;
    sending_.push_back(channel_.send(planned(action, own, b, t, tensors), to, tags_.tag(b, t, gradient)));
  }
}

void StageWorker::hand_over(const Action& action, const Held& own, bool gradient,
                            const std::vector<at::Tensor>& tensors) {
  for (const int b : gradient ? own.incoming : own.outgoing) {
    const Boundary& joined = plan_.boundaries[at_(b)];
    if (runner(gradient ? joined.source : joined.destination, action.microbatch) != rank_) continue;
    for (std::size_t t = 0; t < joined.tensors.size(); ++t) {
      if (gradient && !joined.tensors[t].gradient) continue;
      handed_[gradient][at_(b)][at_(action.microbatch)].push_back(planned(action, own, b, t, tensors));
    }
  }
}

void StageWorker::forward(const Action& action, std::int64_t step) {
  Held& own = held(action.stage);
  Flight& flight = own.flights[at_(action.microbatch)];
  flight.clear();
  for (const int b : own.incoming) await(action, b, false, step, flight.received);
  const DeviceClock::Moment start = clock_.mark();
  if (own.data) flight.data = own.data->take();
  if (own.versions) own.versions->begin(action.microbatch, action.microbatch / plan_.microbatches);
  if (own.statistics) own.statistics->begin();
  flight.step = step;
  flight.microbatch = action.microbatch % plan_.microbatches;
  own.program->forward(flight, schedule_.trains);
  if (own.statistics) own.statistics->end(action.microbatch);
  if (flight.loss.defined()) {
    losses_.add(step, action.microbatch, flight.loss);
    if (placement_.device.is_cpu() && !std::isfinite(flight.loss.item<double>()))
      found_nonfinite(step, "the loss of microbatch " + std::to_string(action.microbatch % plan_.microbatches));
  }
  hand_over(action, own, false, flight.sent);
  record(action, step, start);
}

void StageWorker::backward(const Action& action, std::int64_t step) {
  Held& own = held(action.stage);
  Flight& flight = own.flights[at_(action.microbatch)];
  // Later stages' gradients first, the order in which an unsplit backward meets them.
  sent_gradients_.assign(flight.sent.size(), at::Tensor());
  for (auto b = own.outgoing.rbegin(); b != own.outgoing.rend(); ++b) {
    const auto& planned = plan_.boundaries[at_(*b)].tensors;
    if (std::none_of(planned.begin(), planned.end(), [](const BoundaryTensor& t) { return t.gradient; })) continue;
    await(action, *b, true, step, arrived_);
    std::size_t next = 0;
    for (std::size_t t = 0; t < planned.size(); ++t) {
      if (!planned[t].gradient) continue;
      at::Tensor& sum = sent_gradients_[at_(own.slots[at_(*b)][t])];
      sum = sum.defined() ? sum.add(arrived_[next]) : arrived_[next];
      ++next;
    }
    arrived_.clear();
  }
  const DeviceClock::Moment start = clock_.mark();
  if (own.versions) own.versions->resume(action.microbatch);
  if (own.reduction && action.microbatch == own.last_backward) own.reduction->last_backward();
  std::vector<at::Tensor>& gradients = own.input_gradients[at_(action.microbatch)];
  own.program->backward(flight, sent_gradients_, scaler_ ? scaler_->scale() : 1, gradients,
                        own.split.contains(action.microbatch) ? &own.rests[at_(action.microbatch)] : nullptr);
  sent_gradients_.clear();
  add_tied_copies(own, action.microbatch, !own.split.contains(action.microbatch));
  hand_over(action, own, true, gradients);
  if (own.versions) own.versions->collect(action.microbatch);
  record(action, step, start);
}

void StageWorker::weight_gradient(const Action& action, std::int64_t step) {
  const DeviceClock::Moment start = clock_.mark();
  Held& own = held(action.stage);
  own.rests[at_(action.microbatch)].of_weights();
  add_tied_copies(own, action.microbatch, true);
  record(action, step, start);
}

void StageWorker::reduce(Held& own) {
  if (own.reduction) own.reduction->finish();
}

void StageWorker::add_tied_copies(const Held& own, int microbatch, bool last) {
  const at::NoGradGuard no_graph;
  for (Tie& tie : ties_) {
    for (TiedCopies& stage : tie.stages) {
      if (&held_[at_(stage.held)] != &own || stage.copies.size() < 2) continue;
      std::vector<at::Tensor>& gradients = stage.begun[microbatch];
      gradients.resize(stage.copies.size());
      for (std::size_t i = 0; i < stage.copies.size(); ++i) {
        at::Tensor& gradient = own.program->parameters()[at_(stage.copies[i])].value.mutable_grad();
        if (gradient.defined()) gradients[i] = gradients[i].defined() ? gradients[i].add(gradient) : gradient;
        gradient = at::Tensor();
      }
      if (!last) continue;
      at::Tensor uses;
      // The last holder first, as a backward meets them.
      for (const at::Tensor& gradient : std::views::reverse(gradients)) {
        if (gradient.defined()) uses = uses.defined() ? uses.add(gradient) : gradient;
      }
      if (uses.defined()) stage.sum = stage.sum.defined() ? stage.sum.add_(uses) : uses;
      stage.begun.erase(microbatch);
    }
  }
}

void StageWorker::reduce_ties() {
  const at::NoGradGuard no_graph;
  for (Tie& tie : ties_) {
    const auto value = [&](const TiedCopies& stage, std::size_t i) -> at::Tensor& {
      return held_[at_(stage.held)].program->parameters()[at_(stage.copies[i])].value;
    };
    at::Tensor sum;
    for (TiedCopies& stage : std::views::reverse(tie.stages)) {
      const at::Tensor own = stage.copies.size() > 1 ? std::exchange(stage.sum, {}) : value(stage, 0).grad();
      if (own.defined()) sum = sum.defined() ? sum.add(own) : own.clone();
    }
    if (!sum.defined()) sum = at::zeros_like(value(tie.stages.front(), 0));
    if (tie.ranks.size() > 1) {
      sum = sum.contiguous();
      channel_.all_reduce(sum, tie.ranks, tie.tag);
    }
    // Copies take separate gradients: the optimizer divides each of them in place.
    for (const TiedCopies& stage : tie.stages) {
      for (std::size_t i = 0; i < stage.copies.size(); ++i)
        value(stage, i).mutable_grad() = at::empty_like(value(stage, i)).copy_(sum);
    }
  }
}

void StageWorker::visit_stages(const std::function<void(int stage, StageProgram&, Optimizer&)>& visit) {
  for (std::size_t i = 0; i < held_.size(); ++i) visit(held_[i].stage, *held_[i].program, *optimizers_[i]);
}

std::vector<Span> StageWorker::take_spans() {
  settle_spans(false);
  std::vector<Span> out;
  out.swap(spans_);
  return out;
}

std::vector<Span> StageWorker::take_all_spans() {
  settle_spans(true);
  return take_spans();
}

}  // namespace stagecraft
