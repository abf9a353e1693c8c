#include "executor/stage_worker.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "executor/dtype.h"

namespace stagecraft {
namespace {

constexpr std::size_t kManySends = 32;
constexpr std::size_t kBatchesAhead = 2;

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

TensorSpec spec_of(const BoundaryTensor& tensor) { return {tensor.shape, dtype_of(tensor.dtype)}; }

}  // namespace

StageWorker::StageWorker(const Model& model, const Plan& plan, int rank, Channel& channel, const DataSource& data,
                         const OptimizerOptions& optimizer, std::uint64_t seed, std::function<double()> now,
                         std::function<void(const Action&)> doing, std::int64_t first_step)
    : model_(model),
      plan_(plan),
      rank_(rank),
      channel_(channel),
      data_(data),
      now_(std::move(now)),
      doing_(std::move(doing)),
      splits_backward_(schedule_by_name(plan.schedule).splits_backward) {
  const RankRole role = ranks(plan).at(at_(rank));
  const std::vector<std::vector<int>> layers = layers_of_stages(plan, model);
  const auto tied = tied_parameters(model, layers);
  std::set<int> tied_stages;
  for (const auto& [name, stages] : tied) tied_stages.insert(stages.begin(), stages.end());
  actions_ = action_lists(plan, 2, {tied_stages.begin(), tied_stages.end()}).at(at_(rank));
  for (const Action& action : actions_) {
    std::string name = to_string(action.kind);
    if (action.microbatch >= 0) name += " " + std::to_string(action.microbatch);
    ranges_.push_back(range_name(name));
  }
  wait_range_ = range_name("wait");
  reduces_ = static_cast<std::size_t>(std::ranges::count(actions_, ActionKind::Reduce, &Action::kind));

  int tags = 0;
  for (const Boundary& boundary : plan.boundaries) {
    first_tag_.push_back(tags);
    tags += 2 * static_cast<int>(boundary.tensors.size());
  }
  if (tags > Channel::kControlTag)
    throw std::invalid_argument("the plan has " + std::to_string(tags) + " tensor edges, more than a channel has tags");
  for (const bool gradient : {false, true}) {
    posted_[gradient].resize(plan.boundaries.size());
    handed_[gradient].resize(plan.boundaries.size());
    for (auto& by_microbatch : posted_[gradient]) by_microbatch.resize(at_(plan.microbatches));
    for (auto& by_microbatch : handed_[gradient]) by_microbatch.resize(at_(plan.microbatches));
  }
  for (const int stage : role.stages) {
    hold(stage, layers, seed);
    Held& own = held_.back();
    load_ahead(own, first_step);
    std::vector<at::Tensor> values;
    for (const Parameter& parameter : own.program->parameters()) values.push_back(parameter.value);
    optimizers_.push_back(std::make_unique<Optimizer>(optimizer, std::move(values)));
  }
  tie(tied);
}

void StageWorker::hold(int stage, const std::vector<std::vector<int>>& layers, std::uint64_t seed) {
  std::unordered_map<std::string, int> index;
  for (std::size_t i = 0; i < model_.layers.size(); ++i) index[model_.layers[i].name] = static_cast<int>(i);
  Held own;
  own.stage = stage;
  std::vector<ReceivedValue> received;
  std::vector<ValueRef> sent;
  std::map<std::pair<int, int>, int> sent_slot;
  for (std::size_t b = 0; b < plan_.boundaries.size(); ++b) {
    const Boundary& boundary = plan_.boundaries[b];
    own.slots.emplace_back();
    if (boundary.destination == stage) own.incoming.push_back(static_cast<int>(b));
    if (boundary.source == stage) own.outgoing.push_back(static_cast<int>(b));
    for (const BoundaryTensor& tensor : boundary.tensors) {
      const ValueRef value{index.at(tensor.layer), *tensor.output, -1};
      if (boundary.destination == stage) {
        own.slots.back().push_back(static_cast<int>(received.size()));
        received.push_back({value, tensor.gradient});
      } else if (boundary.source == stage) {
        const auto [it, fresh] = sent_slot.emplace(std::pair(value.layer, value.output), static_cast<int>(sent.size()));
        if (fresh) sent.push_back(value);
        own.slots.back().push_back(it->second);
      }
    }
  }
  own.program = std::make_unique<StageProgram>(model_, layers[at_(stage)], std::move(received), std::move(sent), seed);
  own.flights.resize(at_(plan_.microbatches));
  own.input_gradients.resize(at_(plan_.microbatches));
  for (int r = 0; r < static_cast<int>(plan_.stages[at_(stage)].devices.size()); ++r)
    own.replica_group.push_back(rank_of(plan_, stage, r));
  held_.push_back(std::move(own));
}

void StageWorker::tie(const std::map<std::string, std::vector<int>>& tied) {
  // A name that several layers hold, here or elsewhere, is summed over all its holders.
  std::map<std::string, std::vector<std::pair<int, int>>> copies;
  for (std::size_t h = 0; h < held_.size(); ++h) {
    const std::vector<Parameter>& parameters = held_[h].program->parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      copies[parameters[i].name].emplace_back(static_cast<int>(h), static_cast<int>(i));
  }
  for (const auto& [name, own] : copies) {
    const auto it = tied.find(name);
    if (own.size() < 2 && it == tied.end()) continue;
    Tie tie;
    tie.copies = own;
    std::set<int> members;
    const std::vector<int> stages =
        it == tied.end() ? std::vector<int>{held_[at_(own.front().first)].stage} : it->second;
    for (const int s : stages) {
      for (int r = 0; r < static_cast<int>(plan_.stages[at_(s)].devices.size()); ++r)
        members.insert(rank_of(plan_, s, r));
    }
    tie.ranks.assign(members.begin(), members.end());
    // Every holder numbers the name alike: its place among all tied names.
    tie.tag = Channel::kControlTag + 16 +
              (it == tied.end() ? 512 + static_cast<int>(ties_.size())
                                : static_cast<int>(std::distance(tied.begin(), tied.find(name))));
    ties_.push_back(std::move(tie));
    for (const auto& [h, i] : own) held_[at_(h)].tied.insert(i);
  }
}

void StageWorker::load_ahead(Held& own, std::int64_t first_step) {
  if (own.program->data_inputs().empty()) return;
  std::vector<int> order;
  for (const Action& action : actions_) {
    if (action.kind == ActionKind::Forward && action.stage == own.stage) order.push_back(action.microbatch);
  }
  if (order.empty()) return;
  own.data = std::make_unique<Prefetch>(
      [this, order, first_step, inputs = own.program->data_inputs()](std::int64_t i) {
        const auto count = static_cast<std::int64_t>(order.size());
        return data_.batch(first_step + i / count, order[static_cast<std::size_t>(i % count)], plan_.microbatches,
                           *plan_.microbatch_samples, inputs);
      },
      kBatchesAhead);
}

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

int StageWorker::tag(int boundary, std::size_t tensor, bool gradient) const {
  return first_tag_[at_(boundary)] + 2 * static_cast<int>(tensor) + (gradient ? 1 : 0);
}

void StageWorker::record(const Action& action, std::int64_t step, double start) {
  spans_.push_back({rank_, static_cast<int>(step), action, Seconds(start), Seconds(now_())});
}

void StageWorker::prepare_gradients(Held& own) {
  std::vector<Parameter>& parameters = own.program->parameters();
  for (Parameter& parameter : parameters) parameter.value.mutable_grad() = at::Tensor();
  if (own.replica_group.size() < 2) return;
  const auto tied = [&](std::size_t i) { return own.tied.contains(static_cast<int>(i)); };
  if (!own.flat.defined()) {
    std::int64_t count = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) count += tied(i) ? 0 : parameters[i].value.numel();
    own.flat = at::zeros({count}, at::kFloat);
  } else {
    own.flat.zero_();
  }
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (tied(i)) continue;
    const std::int64_t n = parameters[i].value.numel();
    parameters[i].value.mutable_grad() = own.flat.narrow(0, offset, n).view(parameters[i].value.sizes());
    offset += n;
  }
}

void StageWorker::compute(std::int64_t step) {
  losses_.clear();
  for (Held& each : held_) prepare_gradients(each);
  std::size_t reduced = 0;
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    const Action& action = actions_[i];
    if (action.kind == ActionKind::Update) continue;
    if (doing_) doing_(action);
    const Range range(ranges_[i], step);
    try {
      run(action, step);
    } catch (const ChannelError& e) { throw ChannelError(describe(rank_, action) + ": " + e.what()); }
    // Ties last, in one order on all ranks: their members hold different stages.
    if (action.kind == ActionKind::Reduce && ++reduced == reduces_) reduce_ties();
  }
  if (reduces_ == 0) reduce_ties();
  for (const auto& sending : sending_) sending->wait();
  sending_.clear();
}

void StageWorker::update(std::int64_t step) {
  for (std::size_t i = 0; i < held_.size(); ++i) {
    const Action action{ActionKind::Update, held_[i].stage, -1, -1};
    if (doing_) doing_(action);
    const Range range(ranges_.back(), step);  // updates end the list
    const double start = now_();
    optimizers_[i]->step(plan_.microbatches);
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
      const double start = now_();
      send(action, held(action.stage).flights[at_(action.microbatch)].sent);
      return record(action, step, start);
    }
    case ActionKind::SendGradient: {
      const double start = now_();
      send(action, held(action.stage).input_gradients[at_(action.microbatch)]);
      return record(action, step, start);
    }
    case ActionKind::Reduce: {
      const double start = now_();
      reduce(held(action.stage));
      return record(action, step, start);
    }
    case ActionKind::Update:
      break;
  }
  throw std::logic_error("an action list holds an action that this runtime does not know");
}

void StageWorker::post_receive(const Action& action) {
  const bool gradient = action.kind == ActionKind::ReceiveGradient;
  const int b = boundary_with(held(action.stage), action.peer);
  const int peers = static_cast<int>(plan_.stages[at_(action.peer)].devices.size());
  const int from = rank_of(plan_, action.peer, action.microbatch % peers);
  if (from == rank_) return;  // handed over when it is sent
  auto& posted = posted_[gradient][at_(b)][at_(action.microbatch)];
  const auto& tensors = plan_.boundaries[at_(b)].tensors;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    if (gradient && !tensors[t].gradient) continue;
    posted.push_back(channel_.receive(spec_of(tensors[t]), from, tag(b, t, gradient)));
  }
}

std::vector<at::Tensor> StageWorker::await(const Action& consumer, int boundary, bool gradient, std::int64_t step) {
  const Boundary& joined = plan_.boundaries[at_(boundary)];
  const int peer = gradient ? joined.destination : joined.source;
  const Range range(wait_range_, consumer.microbatch);
  const double start = now_();
  std::vector<at::Tensor> out = std::move(handed_[gradient][at_(boundary)][at_(consumer.microbatch)]);
  handed_[gradient][at_(boundary)][at_(consumer.microbatch)].clear();
  auto& posted = posted_[gradient][at_(boundary)][at_(consumer.microbatch)];
  for (const auto& receiving : posted) out.push_back(receiving->wait());
  posted.clear();
  record({gradient ? ActionKind::ReceiveGradient : ActionKind::ReceiveActivation, consumer.stage, consumer.microbatch,
          peer},
         step, start);
  return out;
}

void StageWorker::send(const Action& action, const std::vector<at::Tensor>& tensors) {
  const bool gradient = action.kind == ActionKind::SendGradient;
  const Held& own = held(action.stage);
  const int b = boundary_with(own, action.peer);
  const int peers = static_cast<int>(plan_.stages[at_(action.peer)].devices.size());
  const int to = rank_of(plan_, action.peer, action.microbatch % peers);
  const auto& planned = plan_.boundaries[at_(b)].tensors;
  for (std::size_t t = 0; t < planned.size(); ++t) {
    if (gradient && !planned[t].gradient) continue;
    const at::Tensor tensor = tensors[at_(own.slots[at_(b)][t])].detach().contiguous();
    if (tensor.sizes() != at::IntArrayRef(planned[t].shape) || tensor.scalar_type() != dtype_of(planned[t].dtype)) {
      throw std::invalid_argument(describe(rank_, action) + ": layer \"" + planned[t].layer + "\" gives " +
                                  shape_text(dtype_name(tensor.scalar_type()), tensor.sizes()) + ", the plan says " +
                                  shape_text(planned[t].dtype, planned[t].shape) +
                                  "; profile and plan this model again");
    }
    if (to == rank_) {
      handed_[gradient][at_(b)][at_(action.microbatch)].push_back(tensor);
    } else {
      sending_.push_back(channel_.send(tensor, to, tag(b, t, gradient)));
    }
  }
}

void StageWorker::forward(const Action& action, std::int64_t step) {
  Held& own = held(action.stage);
  std::vector<at::Tensor> received;
  for (const int b : own.incoming) {
    for (at::Tensor& tensor : await(action, b, false, step)) received.push_back(std::move(tensor));
  }
  const double start = now_();
  std::vector<at::Tensor> data;
  if (own.data) data = own.data->take();
  const bool recompute = plan_.stages[at_(own.stage)].recompute;
  Flight flight = own.program->forward(std::move(received), std::move(data), step, action.microbatch, !recompute);
  if (flight.loss.defined()) losses_[action.microbatch] = flight.loss.item<double>();
  own.flights[at_(action.microbatch)] = std::move(flight);
  record(action, step, start);
}

void StageWorker::backward(const Action& action, std::int64_t step) {
  Held& own = held(action.stage);
  Flight flight = std::move(own.flights[at_(action.microbatch)]);
  own.flights[at_(action.microbatch)] = {};
  // Later stages' gradients first, the order in which an unsplit backward meets them.
  std::vector<at::Tensor> gradients(flight.sent.size());
  for (auto b = own.outgoing.rbegin(); b != own.outgoing.rend(); ++b) {
    const auto& planned = plan_.boundaries[at_(*b)].tensors;
    if (std::none_of(planned.begin(), planned.end(), [](const BoundaryTensor& t) { return t.gradient; })) continue;
    const std::vector<at::Tensor> arrived = await(action, *b, true, step);
    std::size_t next = 0;
    for (std::size_t t = 0; t < planned.size(); ++t) {
      if (!planned[t].gradient) continue;
      at::Tensor& sum = gradients[at_(own.slots[at_(*b)][t])];
      sum = sum.defined() ? sum.add(arrived[next]) : arrived[next];
      ++next;
    }
  }
  const double start = now_();
  if (plan_.stages[at_(own.stage)].recompute) own.program->recompute(flight);
  own.input_gradients[at_(action.microbatch)] =
      splits_backward_ ? own.program->backward_of_inputs(std::move(flight), gradients, own.rests[action.microbatch])
                       : own.program->backward(std::move(flight), gradients);
  record(action, step, start);
}

void StageWorker::weight_gradient(const Action& action, std::int64_t step) {
  Held& own = held(action.stage);
  const double start = now_();
  const auto rest = own.rests.extract(action.microbatch);
  if (!rest.empty()) rest.mapped().of_weights();
  record(action, step, start);
}

void StageWorker::reduce(Held& own) {
  const at::NoGradGuard no_graph;
  if (own.flat.defined()) channel_.all_reduce(own.flat, own.replica_group, Channel::kControlTag);
}

void StageWorker::reduce_ties() {
  const at::NoGradGuard no_graph;
  for (const Tie& tie : ties_) {
    const auto value = [&](const std::pair<int, int>& copy) -> at::Tensor& {
      return held_[at_(copy.first)].program->parameters()[at_(copy.second)].value;
    };
    at::Tensor sum;
    for (const auto& copy : tie.copies) {
      const at::Tensor& gradient = value(copy).grad();
      if (!gradient.defined()) continue;
      sum = sum.defined() ? sum.add(gradient) : gradient.clone();
    }
    if (!sum.defined()) sum = at::zeros_like(value(tie.copies.front()));
    if (tie.ranks.size() > 1) channel_.all_reduce(sum, tie.ranks, tie.tag);
    // Copies take separate gradients: the optimizer divides each of them in place.
    for (const auto& copy : tie.copies) value(copy).mutable_grad() = sum.clone();
  }
}

void StageWorker::visit_stages(const std::function<void(int stage, StageProgram&, Optimizer&)>& visit) {
  for (std::size_t i = 0; i < held_.size(); ++i) visit(held_[i].stage, *held_[i].program, *optimizers_[i]);
}

std::vector<Span> StageWorker::take_spans() {
  std::vector<Span> out;
  out.swap(spans_);
  return out;
}

}  // namespace stagecraft
