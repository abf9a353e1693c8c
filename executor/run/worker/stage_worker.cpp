#include "executor/run/worker/stage_worker.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <ranges>
#include <set>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/timeline.h"
#include "executor/device/dtype.h"
#include "executor/device/machine/program.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::run {
namespace {

/// Boundaries of a stage's values, and their slots by boundary.
struct CrossingValues {
  std::vector<stage::ReceivedValue> received;
  std::vector<model::ValueRef> sent;
};

CrossingValues find_crossing_values(const model::Model& model, const BoundPlan& bound, ResidentStage& resident) {
  const Plan& plan = bound.plan();
  std::unordered_map<std::string, int> index;
  for (std::size_t i = 0; i < model.layers.size(); ++i) index[model.layers[i].name] = to_int(i);
  const auto value_of = [&](const BoundaryTensor& tensor) {
    return model::ValueRef{index.at(tensor.layer), *tensor.output, -1};
  };
  CrossingValues out;
  resident.slots.resize(plan.boundaries.size());
  for (const int b : bound.incoming(resident.stage)) {
    for (const BoundaryTensor& tensor : plan.boundaries[to_index(b)].tensors) {
      resident.slots[to_index(b)].push_back(to_int(out.received.size()));
      out.received.push_back({value_of(tensor), tensor.gradient});
    }
  }
  std::map<std::pair<int, int>, int> sent_slot;
  for (const int b : bound.outgoing(resident.stage)) {
    for (const BoundaryTensor& tensor : plan.boundaries[to_index(b)].tensors) {
      const model::ValueRef value = value_of(tensor);
      const auto [it, fresh] = sent_slot.emplace(std::pair(value.layer, value.output), to_int(out.sent.size()));
      if (fresh) out.sent.push_back(value);
      resident.slots[to_index(b)].push_back(it->second);
    }
  }
  return out;
}

/// Zeros in the shapes of what the stage receives, in the order of its program.
std::vector<at::Tensor> zeros_received(const ResidentStage& resident, const BoundPlan& plan, c10::Device device) {
  std::vector<at::Tensor> out;
  for (const int b : plan.incoming(resident.stage)) {
    const auto& tensors = plan.plan().boundaries[to_index(b)].tensors;
    const std::vector<int>& slots = resident.slots[to_index(b)];
    for (std::size_t t = 0; t < tensors.size(); ++t) {
      const auto slot = to_index(slots[t]);
      if (out.size() <= slot) out.resize(slot + 1);
      out[slot] = at::zeros(tensors[t].shape, at::TensorOptions(device::dtype_of(tensors[t].dtype)).device(device));
    }
  }
  return out;
}

/// A step on a few values that nobody uses.
void warm_up(const stage::OptimizerOptions& options, c10::Device device) {
  constexpr std::int64_t kValues = 1024;
  const auto ones = [&](StateType type) {
    return at::ones({kValues}, at::TensorOptions(device::dtype_of(type)).device(device));
  };
  const at::Tensor value = ones(options.types.parameters);
  value.mutable_grad() = ones(options.types.gradients);
  stage::Optimizer(options, {value}).step(1);
}

}  // namespace

void warm_up(ResidentStage& resident, const BoundModel& bound, const stage::OptimizerOptions& optimizer,
             const stage::ComputePlace& placement, std::vector<at::Tensor> data) {
  const bool trains = bound.plan.schedule().trains;
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers;  // with their values
  for (const stage::Parameter& buffer : resident.program->buffers())
    buffers.emplace_back(buffer.value, buffer.value.detach().clone());
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> without_memory;
  for (stage::Parameter& parameter : resident.program->leaves()) {
    gradients.push_back(std::exchange(parameter.value.mutable_grad(), at::Tensor()));
    if (stage::has_memory(parameter.value)) continue;
    without_memory.push_back(parameter.value);
    stage::restore_memory(parameter.value);
  }
  stage::Flight flight =
      resident.program->forward(zeros_received(resident, bound.plan, placement.device), std::move(data), 0, 0, trains);
  if (trains) {
    std::vector<at::Tensor> sent_gradients;
    for (const at::Tensor& sent : flight.sent)
      sent_gradients.push_back(sent.requires_grad() ? at::zeros_like(sent) : at::Tensor());
    (void)resident.program->backward(std::move(flight), sent_gradients);
    warm_up(optimizer, placement.device);
  }
  for (std::size_t i = 0; i < gradients.size(); ++i)
    resident.program->leaves()[i].value.mutable_grad() = std::move(gradients[i]);
  for (const at::Tensor& value : without_memory) stage::release_memory(value);
  const at::NoGradGuard no_graph;
  for (auto& [buffer, before] : buffers) buffer.copy_(before);
}

ResidentStage make_resident_stage(const BoundModel& bound, int stage, int rank, int microbatches,
                                  const stage::OptimizerOptions& optimizer, std::uint64_t seed,
                                  stage::ComputePlace placement) {
  ResidentStage out;
  out.stage = stage;
  CrossingValues values = find_crossing_values(bound.model, bound.plan, out);
  const auto number = to_index(stage);
  out.program = std::make_unique<stage::StageProgram>(bound.model, bound.layers[number], std::move(values.received),
                                                      std::move(values.sent), seed, placement);
  const Stage& planned = bound.plan.plan().stages[number];
  if (!bound.plan.schedule().trains) out.program->evaluate();
  if (planned.recompute) out.program->recompute_every(planned.recompute_every);
  std::vector<stage::Parameter> updated = out.program->parameters();
  std::vector<at::Tensor> whole;
  for (stage::Parameter& parameter : updated) {
    at::Tensor& value = whole.emplace_back(parameter.value);
    const ParameterHome& home = bound.homes.at(parameter.name);
    if (home.parts.empty()) continue;
    const ValueRange owned = owned_range(home, rank);
    parameter.value = stage::in_memory_order(value).narrow(0, owned.first, owned.count);
    const bool is_tied = std::ranges::count(bound.plan.tied(), parameter.name, &TiedHolders::parameter) > 0;
    if (!bound.plan.gathers(stage) || is_tied) continue;
    // Between its computations, the rank has its own part alone.
    parameter.value = parameter.value.clone();
    value = stage::make_leaf(at::empty_strided(value.sizes(), value.strides(), value.options().requires_grad(false)),
                             stage::gradient_type(value));
    stage::release_memory(value);
  }
  if (bound.plan.gathers(stage)) out.program->bind(whole);
  out.optimizer = stage::optimizer_of(optimizer, updated);
  const auto count = to_index(microbatches);
  out.flights.resize(count);
  out.input_gradients.resize(count);
  out.rests.resize(count);
  return out;
}

void NonfiniteGuard::set(stage::OnNonfinite what, std::function<void(const std::string&)> tell) {
  what_ = what;
  tell_ = std::move(tell);
}

void NonfiniteGuard::found(std::int64_t step, const std::string& what) {
  const std::string text = "step " + std::to_string(step + 1) + ": " + what + " is not finite";
  if (what_ == stage::OnNonfinite::Stop) throw stage::NonfiniteError(text);
  if (step == last_) return;
  last_ = step;
  if (what_ == stage::OnNonfinite::Warn) ++steps_;
  if (tell_) tell_("rank " + std::to_string(rank_) + ", " + text);
}

namespace {

constexpr std::size_t kBatchesAhead = 2;
/// Number of spans for which room is reserved; longer runs allocate more.
constexpr std::size_t kMostSpansAhead = std::size_t{1} << 20;

std::size_t spans_of(const BoundPlan& plan, const std::vector<Action>& actions, int times) {
  return std::min(kMostSpansAhead, measured_actions(plan, actions).size() * to_index(std::max(times, 1)));
}

}  // namespace

StageWorker::StageWorker(const BoundModel& bound, int rank, channel::Channel& channel, const data::DataSource& data,
                         const WorkerOptions& options, int list_steps)
    : setup_{.bound = bound,
             .rank = rank,
             .channel = channel,
             .optimizer = with_types(options.optimizer, bound.plan.plan()),
             .placement = compute_place(bound.plan.plan(), options.device),
             .first_step = options.first_step,
             .list_steps = list_steps,
             .actions = bound.plan.action_lists(list_steps).at(to_index(rank))},
      transfers_(bound.plan, rank, channel, setup_.plan().microbatches * list_steps),
      spans_(rank, options.device, options.now, spans_of(bound.plan, setup_.actions, options.steps / list_steps)),
      losses_(options.device),
      guard_(rank) {
  for (const Action& action : setup_.actions) {
    std::string name = to_string(action.kind);
    if (action.microbatch >= 0) name += " " + std::to_string(action.microbatch);
    ranges_.push_back(device::range_name(name));
  }
  wait_range_ = device::range_name("wait");
  for (const int number : bound.plan.ranks().at(to_index(rank)).stages) {
    ResidentStage stage = make_resident_stage(bound, number, rank, setup_.plan().microbatches * list_steps,
                                              setup_.optimizer, options.seed, setup_.placement);
    for (const Action& action : setup_.actions) {
      if (action.kind == ActionKind::WeightGradient && action.stage == number) stage.split.insert(action.microbatch);
    }
    load_ahead(stage, data);
    stages_.push_back(std::move(stage));
  }
}

void StageWorker::load_ahead(ResidentStage& stage, const data::DataSource& data) {
  if (stage.program->data_inputs().empty()) return;
  std::vector<int> order;
  for (const Action& action : setup_.actions) {
    if (action.kind == ActionKind::Forward && action.stage == stage.stage) order.push_back(action.microbatch);
  }
  if (order.empty()) return;
  stage.data = std::make_unique<data::Prefetch>(
      [&plan = setup_.plan(), &data, order, first_step = setup_.first_step, steps = setup_.list_steps,
       device = setup_.placement.device, inputs = stage.program->data_inputs()](std::int64_t i) {
        const auto count = static_cast<std::int64_t>(order.size());
        const int microbatch = order[to_index(i % count)];
        return data::ready_to_upload(
            data.batch(first_step + i / count * steps + microbatch / plan.microbatches, microbatch % plan.microbatches,
                       plan.microbatches, *plan.microbatch_samples, inputs),
            device);
      },
      kBatchesAhead);
}

void StageWorker::warm_up(const data::DataSource& data) {
  const Plan& plan = setup_.plan();
  for (ResidentStage& stage : stages_) {
    const std::vector<int>& inputs = stage.program->data_inputs();
    std::vector<at::Tensor> batch;
    if (!inputs.empty()) batch = data.batch(setup_.first_step, 0, plan.microbatches, *plan.microbatch_samples, inputs);
    run::warm_up(stage, setup_.bound, setup_.optimizer, setup_.placement, std::move(batch));
  }
}

ResidentStage& StageWorker::resident(int stage) {
  const auto found = std::ranges::find(stages_, stage, &ResidentStage::stage);
  if (found != stages_.end()) return *found;
  throw std::logic_error("an action names a stage that is not on this rank");
}

std::vector<stage::Parameter> StageWorker::parameters() const {
  std::vector<stage::Parameter> out;
  for (const ResidentStage& stage : stages_) {
    const auto& parameters = stage.program->parameters();
    out.insert(out.end(), parameters.begin(), parameters.end());
  }
  return out;
}

void StageWorker::visit_stages(const std::function<void(int stage, stage::StageProgram&, stage::Optimizer&)>& visit) {
  for (const ResidentStage& stage : stages_) visit(stage.stage, *stage.program, *stage.optimizer);
}

void StageWorker::on_nonfinite(stage::OnNonfinite what, std::function<void(const std::string&)> tell) {
  guard_.set(what, std::move(tell));
}

stage::MicrobatchLosses StageWorker::take_losses(std::int64_t step) {
  stage::MicrobatchLosses out = losses_.take(step);
  if (setup_.on_cpu()) return out;
  const auto gradients = out.find(kGradientsFlag);
  if (gradients != out.end()) {
    const bool bad = gradients->second > 0;
    out.erase(gradients);
    if (bad) guard_.found(step, "a gradient");
  }
  for (const auto& [microbatch, loss] : out) {
    if (!std::isfinite(loss)) guard_.found(step, "the loss of microbatch " + std::to_string(microbatch));
  }
  return out;
}

device::ScopedRange StageWorker::begin(std::size_t index, const Action& action, std::int64_t step) {
  setup_.channel.activity().begin({to_string(action.kind), action.stage, action.microbatch, step});
  return device::ScopedRange(ranges_[index], step);
}

void StageWorker::perform(std::size_t index, std::int64_t step) {
  const Action& action = setup_.actions[index];
  const device::ScopedRange range = begin(index, action, step);
  try {
    run(action, step);
  } catch (const meeting::PeerError& e) {
    throw e.within(describe(setup_.rank, action) + ": ");
  } catch (const DeviceError& e) {
    throw DeviceError(fmt::format("{}, step {}: {}", describe(setup_.rank, action), step + 1, e.what()));
  } catch (const c10::Error& e) {
    device::rethrow_at(fmt::format("{}, step {}", describe(setup_.rank, action), step + 1), e);
  }
}

const std::vector<int>& StageWorker::slots(const Action& transfer) {
  return resident(transfer.stage).slots[to_index(*setup_.bound.plan.boundary(transfer.stage, transfer.peer))];
}

void StageWorker::run(const Action& action, std::int64_t step) {
  transfers_.reap_sends();
  switch (action.kind) {
    case ActionKind::Forward:
      return forward(action, step);
    case ActionKind::Backward:
      return backward(action, step);
    case ActionKind::ReceiveActivation:
    case ActionKind::ReceiveGradient:
      return transfers_.post(action);
    case ActionKind::Gather: {
      ResidentStage& stage = resident(action.stage);
      begin_gather(stage);
      stage.gathering = true;
      return;
    }
    case ActionKind::Free:
      return free(resident(action.stage));
    case ActionKind::WeightGradient:
      return weight_gradient(action, step);
    default:
      break;
  }
  const DeviceClock::Moment start = spans_.mark();
  switch (action.kind) {
    case ActionKind::SendActivation:
      transfers_.send(action, slots(action), resident(action.stage).flights[to_index(action.microbatch)].sent);
      break;
    case ActionKind::SendGradient: {
      std::vector<at::Tensor>& gradients = resident(action.stage).input_gradients[to_index(action.microbatch)];
      transfers_.send(action, slots(action), gradients);
      // The transfer holds them as long as it needs them.
      for (const int slot : slots(action)) gradients[to_index(slot)].reset();
      break;
    }
    case ActionKind::Reduce:
      reduce(action);
      break;
    case ActionKind::Update:
      update(action);
      break;
    default:
      throw std::logic_error("an action list has an action that this runtime does not know");
  }
  spans_.record(action, step, start);
}

void StageWorker::await(const Action& consumer, const Passage& input, std::int64_t step, std::vector<at::Tensor>& out) {
  const device::ScopedRange range(wait_range_, consumer.microbatch);
  const DeviceClock::Moment start = spans_.mark();
  transfers_.take(input, consumer.microbatch, out);
  spans_.record(receive_of(consumer, input), step, start);
}

void StageWorker::forward(const Action& action, std::int64_t step) {
  ResidentStage& stage = resident(action.stage);
  stage::Flight& flight = stage.flights[to_index(action.microbatch)];
  flight.clear();
  await_parameters(stage, step);
  for (const Passage& input : setup_.bound.plan.inputs(action)) await(action, input, step, flight.received);
  const DeviceClock::Moment start = spans_.mark();
  if (stage.data) flight.data = stage.data->take();
  before_forward(stage, action);
  flight.step = step;
  flight.microbatch = action.microbatch % setup_.plan().microbatches;
  stage.program->forward(flight, setup_.trains());
  after_forward(stage, action);
  if (flight.loss.defined()) {
    const double share = loss_share(action.microbatch % setup_.plan().microbatches);
    // Without labels it is 0 / 0: no loss, and no gradient.
    const at::Tensor loss = share == 1   ? flight.loss
                            : share == 0 ? at::zeros_like(flight.loss)
                                         : flight.loss.mul(share);
    if (share == 0) flight.loss.reset();
    losses_.add(step, action.microbatch, loss);
    if (setup_.on_cpu() && !std::isfinite(loss.item<double>()))
      guard_.found(step, "the loss of microbatch " + std::to_string(action.microbatch % setup_.plan().microbatches));
  }
  for (const Passage& output : setup_.bound.plan.outputs(action))
    transfers_.hand_over(action, output, stage.slots[to_index(output.boundary)], flight.sent);
  spans_.record(action, step, start);
}

void StageWorker::backward(const Action& action, std::int64_t step) {
  ResidentStage& stage = resident(action.stage);
  stage::Flight& flight = stage.flights[to_index(action.microbatch)];
  await_parameters(stage, step);
  // Later stages' gradients first, as in an unsplit backward.
  sent_gradients_.assign(flight.sent.size(), at::Tensor());
  for (const Passage& input : setup_.bound.plan.inputs(action) | std::views::reverse) {
    const Boundary& boundary = setup_.plan().boundaries[to_index(input.boundary)];
    await(action, input, step, arrived_);
    std::size_t next = 0;
    for (std::size_t t = 0; t < boundary.tensors.size(); ++t) {
      if (!boundary.tensors[t].gradient) continue;
      const std::size_t slot = to_index(stage.slots[to_index(input.boundary)][t]);
      at::Tensor& sum = sent_gradients_[slot];
      // Without the strides, those of the value are the likeliest.
      const at::Tensor gradient =
          setup_.channel.keeps_strides() ? arrived_[next] : stage::laid_out_like(arrived_[next], flight.sent[slot]);
      sum = sum.defined() ? sum.add(gradient) : gradient;
      ++next;
    }
    arrived_.clear();
  }
  const DeviceClock::Moment start = spans_.mark();
  const double loss_gradient = before_backward(stage, action);
  const bool split = stage.split.contains(action.microbatch);
  std::vector<at::Tensor>& gradients = stage.input_gradients[to_index(action.microbatch)];
  stage.program->backward(flight, sent_gradients_, loss_gradient, gradients,
                          split ? &stage.rests[to_index(action.microbatch)] : nullptr);
  sent_gradients_.clear();
  for (const Passage& output : setup_.bound.plan.outputs(action)) {
    const std::vector<int>& slots = stage.slots[to_index(output.boundary)];
    transfers_.hand_over(action, output, slots, gradients);
    if (setup_.bound.plan.is_message(action, output)) continue;
    for (const int slot : slots) gradients[to_index(slot)].reset();  // the other stage holds them until it needs them
  }
  after_backward(stage, action, !split);
  spans_.record(action, step, start);
}

void StageWorker::weight_gradient(const Action& action, std::int64_t step) {
  ResidentStage& stage = resident(action.stage);
  await_parameters(stage, step);
  const DeviceClock::Moment start = spans_.mark();
  stage.rests[to_index(action.microbatch)].of_weights();
  after_backward(stage, action, true);
  spans_.record(action, step, start);
}

void StageWorker::await_parameters(ResidentStage& stage, std::int64_t step) {
  if (!std::exchange(stage.gathering, false)) return;
  const device::ScopedRange range(wait_range_, stage.stage);
  const DeviceClock::Moment start = spans_.mark();
  finish_gather(stage);
  spans_.record({ActionKind::Gather, stage.stage, -1, -1}, step, start);
}

void StageWorker::begin_gather(ResidentStage&) { throw std::logic_error("this worker keeps its parameters whole"); }
void StageWorker::finish_gather(ResidentStage&) {}
void StageWorker::free(ResidentStage&) {}

}  // namespace stagecraft::run
