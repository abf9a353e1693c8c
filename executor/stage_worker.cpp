#include "executor/stage_worker.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "costmodel/errors.h"
#include "executor/dtype.h"

namespace stagecraft {
namespace {

constexpr std::size_t kManySends = 32;

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

std::vector<std::vector<int>> layers_of_stages(const Plan& plan, const Model& model) {
  std::unordered_map<std::string, int> index;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    index[model.layers[i].name] = static_cast<int>(i);
    names.push_back(model.layers[i].name);
  }
  std::vector<std::vector<int>> out;
  std::size_t count = 0;
  for (const Stage& stage : plan.stages) {
    std::vector<int> layers;
    for (const std::string& id : stage.layers) {
      const auto it = index.find(id);
      if (it == index.end())
        throw std::invalid_argument("model \"" + model.name + "\": " + unknown_name("layer", id, names));
      layers.push_back(it->second);
    }
    std::sort(layers.begin(), layers.end());
    count += layers.size();
    out.push_back(std::move(layers));
  }
  if (count != model.layers.size()) {
    std::set<std::string> planned;
    for (const Stage& stage : plan.stages) planned.insert(stage.layers.begin(), stage.layers.end());
    for (const std::string& name : names) {
      if (!planned.contains(name)) {
        throw std::invalid_argument("layer \"" + name + "\" of model \"" + model.name +
                                    "\" stands in no stage of the plan");
      }
    }
  }
  for (const Boundary& boundary : plan.boundaries) {
    for (const BoundaryTensor& tensor : boundary.tensors) {
      if (!tensor.output || tensor.dtype.empty()) {
        throw std::invalid_argument("the plan does not say shape and type of what layer \"" + tensor.layer +
                                    "\" sends; plan from a graph that stagecraft profile wrote");
      }
    }
  }
  return out;
}

std::map<std::string, std::vector<int>> tied_parameters(const Model& model,
                                                        const std::vector<std::vector<int>>& layers) {
  std::map<std::string, std::vector<int>> holders;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    for (const int layer : layers[s]) {
      for (const ParameterSpec& parameter : model.layers[at_(layer)].parameters) {
        auto& stages = holders[parameter.name];
        if (parameter.trainable && (stages.empty() || stages.back() != static_cast<int>(s)))
          stages.push_back(static_cast<int>(s));
      }
    }
  }
  std::erase_if(holders, [](const auto& entry) { return entry.second.size() < 2; });
  return holders;
}

StageWorker::StageWorker(const Model& model, const Plan& plan, int rank, Channel& channel, const DataSource& data,
                         const OptimizerOptions& optimizer, std::uint64_t seed, std::function<double()> now,
                         std::function<void(const Action&)> doing)
    : model_(model),
      plan_(plan),
      rank_(rank),
      channel_(channel),
      data_(data),
      now_(std::move(now)),
      doing_(std::move(doing)) {
  const std::vector<RankRole> roles = ranks(plan);
  const RankRole& role = roles.at(at_(rank));
  if (role.stages.size() != 1) {
    throw std::invalid_argument("schedule \"" + plan.schedule +
                                "\" puts several stages on a rank, which run cannot do yet; gpipe and 1f1b run");
  }
  if (schedule_by_name(plan.schedule).splits_backward) {
    throw std::invalid_argument("schedule \"" + plan.schedule +
                                "\" splits the backward, which run cannot do yet; gpipe and 1f1b run");
  }
  stage_ = role.stages.front();
  replica_ = role.replica;
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

  std::unordered_map<std::string, int> index;
  for (std::size_t i = 0; i < model.layers.size(); ++i) index[model.layers[i].name] = static_cast<int>(i);

  std::vector<ReceivedValue> received;
  std::vector<ValueRef> sent;
  std::map<std::pair<int, int>, int> sent_slot;
  int tags = 0;
  for (std::size_t b = 0; b < plan.boundaries.size(); ++b) {
    const Boundary& boundary = plan.boundaries[b];
    first_tag_.push_back(tags);
    tags += 2 * static_cast<int>(boundary.tensors.size());
    slots_.emplace_back();
    if (boundary.destination == stage_) incoming_.push_back(static_cast<int>(b));
    if (boundary.source == stage_) outgoing_.push_back(static_cast<int>(b));
    for (const BoundaryTensor& tensor : boundary.tensors) {
      const ValueRef value{index.at(tensor.layer), *tensor.output, -1};
      if (boundary.destination == stage_) {
        slots_.back().push_back(static_cast<int>(received.size()));
        received.push_back({value, tensor.gradient});
      } else if (boundary.source == stage_) {
        const auto [it, fresh] = sent_slot.emplace(std::pair(value.layer, value.output), static_cast<int>(sent.size()));
        if (fresh) sent.push_back(value);
        slots_.back().push_back(it->second);
      }
    }
  }
  if (tags > Channel::kControlTag)
    throw std::invalid_argument("the plan has " + std::to_string(tags) + " tensor edges, more than a channel has tags");
  program_ = std::make_unique<StageProgram>(model, layers[at_(stage_)], std::move(received), std::move(sent), seed);

  for (auto& by_boundary : posted_) {
    by_boundary.resize(plan.boundaries.size());
    for (const int b : incoming_) by_boundary[at_(b)].resize(at_(plan.microbatches));
    for (const int b : outgoing_) by_boundary[at_(b)].resize(at_(plan.microbatches));
  }
  flights_.resize(at_(plan.microbatches));
  input_gradients_.resize(at_(plan.microbatches));
  for (int r = 0; r < static_cast<int>(plan.stages[at_(stage_)].devices.size()); ++r)
    replica_group_.push_back(rank_of(plan, stage_, r));

  // A name that several layers hold, here or elsewhere, is summed over all its holders.
  std::map<std::string, std::vector<int>> copies;
  for (std::size_t i = 0; i < program_->parameters().size(); ++i)
    copies[program_->parameters()[i].name].push_back(static_cast<int>(i));
  for (const auto& [name, positions] : copies) {
    const auto it = tied.find(name);
    if (positions.size() < 2 && it == tied.end()) continue;
    Tie tie;
    tie.parameters = positions;
    const std::vector<int> stages = it == tied.end() ? std::vector<int>{stage_} : it->second;
    for (const int s : stages) {
      for (int r = 0; r < static_cast<int>(plan.stages[at_(s)].devices.size()); ++r)
        tie.ranks.push_back(rank_of(plan, s, r));
    }
    // Every holder numbers the name alike: its place among all tied names.
    tie.tag = Channel::kControlTag + 16 +
              (it == tied.end() ? 512 + static_cast<int>(ties_.size())
                                : static_cast<int>(std::distance(tied.begin(), tied.find(name))));
    ties_.push_back(std::move(tie));
  }
  std::vector<at::Tensor> values;
  for (const Parameter& parameter : program_->parameters()) values.push_back(parameter.value);
  optimizer_ = std::make_unique<Optimizer>(optimizer, std::move(values));
}

int StageWorker::boundary_with(int peer) const {
  for (const auto* list : {&incoming_, &outgoing_}) {
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

void StageWorker::prepare_gradients() {
  std::vector<Parameter>& parameters = program_->parameters();
  for (Parameter& parameter : parameters) parameter.value.mutable_grad() = at::Tensor();
  if (replica_group_.size() < 2) return;
  std::vector<bool> tied(parameters.size(), false);
  for (const Tie& tie : ties_) {
    for (const int i : tie.parameters) tied[at_(i)] = true;
  }
  if (!flat_.defined()) {
    std::int64_t count = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) count += tied[i] ? 0 : parameters[i].value.numel();
    flat_ = at::zeros({count}, at::kFloat);
  } else {
    flat_.zero_();
  }
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (tied[i]) continue;
    const std::int64_t n = parameters[i].value.numel();
    parameters[i].value.mutable_grad() = flat_.narrow(0, offset, n).view(parameters[i].value.sizes());
    offset += n;
  }
}

void StageWorker::compute(std::int64_t step) {
  losses_.clear();
  prepare_gradients();
  bool reduced = false;
  for (std::size_t i = 0; i < actions_.size(); ++i) {
    const Action& action = actions_[i];
    if (action.kind == ActionKind::Update) continue;
    if (doing_) doing_(action);
    const Range range(ranges_[i], step);
    try {
      run(action, step);
    } catch (const ChannelError& e) { throw ChannelError(describe(rank_, action) + ": " + e.what()); }
    reduced = reduced || action.kind == ActionKind::Reduce;
  }
  if (!reduced && !ties_.empty()) reduce();
  for (const auto& sending : sending_) sending->wait();
  sending_.clear();
}

void StageWorker::update(std::int64_t step) {
  const Action action{ActionKind::Update, stage_, -1, -1};
  if (doing_) doing_(action);
  const Range range(ranges_.back(), step);  // the update ends the list
  const double start = now_();
  optimizer_->step(plan_.microbatches);
  record(action, step, start);
}

void StageWorker::run(const Action& action, std::int64_t step) {
  // Asking costs a thread on Gloo, so a few finished sends are let stand rather than looked at every time.
  if (sending_.size() >= kManySends) std::erase_if(sending_, [](const auto& sending) { return sending->done(); });
  switch (action.kind) {
    case ActionKind::Forward:
      return forward(action, step);
    case ActionKind::Backward:
      return backward(action, step);
    case ActionKind::ReceiveActivation:
    case ActionKind::ReceiveGradient:
      return post_receive(action);
    case ActionKind::SendActivation: {
      const double start = now_();
      send(action, flights_[at_(action.microbatch)].sent);
      return record(action, step, start);
    }
    case ActionKind::SendGradient: {
      const double start = now_();
      send(action, input_gradients_[at_(action.microbatch)]);
      return record(action, step, start);
    }
    case ActionKind::Reduce: {
      const double start = now_();
      reduce();
      return record(action, step, start);
    }
    default:
      throw std::logic_error("an action list holds an action that this runtime does not know");
  }
}

void StageWorker::post_receive(const Action& action) {
  const bool gradient = action.kind == ActionKind::ReceiveGradient;
  const int b = boundary_with(action.peer);
  const int peers = static_cast<int>(plan_.stages[at_(action.peer)].devices.size());
  const int from = rank_of(plan_, action.peer, action.microbatch % peers);
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
  std::vector<at::Tensor> out;
  auto& posted = posted_[gradient][at_(boundary)][at_(consumer.microbatch)];
  for (const auto& receiving : posted) out.push_back(receiving->wait());
  posted.clear();
  record({gradient ? ActionKind::ReceiveGradient : ActionKind::ReceiveActivation, stage_, consumer.microbatch, peer},
         step, start);
  return out;
}

void StageWorker::send(const Action& action, const std::vector<at::Tensor>& tensors) {
  const bool gradient = action.kind == ActionKind::SendGradient;
  const int b = boundary_with(action.peer);
  const int peers = static_cast<int>(plan_.stages[at_(action.peer)].devices.size());
  const int to = rank_of(plan_, action.peer, action.microbatch % peers);
  const auto& planned = plan_.boundaries[at_(b)].tensors;
  for (std::size_t t = 0; t < planned.size(); ++t) {
    if (gradient && !planned[t].gradient) continue;
    const at::Tensor tensor = tensors[at_(slots_[at_(b)][t])].detach().contiguous();
    if (tensor.sizes() != at::IntArrayRef(planned[t].shape) || tensor.scalar_type() != dtype_of(planned[t].dtype)) {
      throw std::invalid_argument(describe(rank_, action) + ": layer \"" + planned[t].layer + "\" gives " +
                                  shape_text(dtype_name(tensor.scalar_type()), tensor.sizes()) + ", the plan says " +
                                  shape_text(planned[t].dtype, planned[t].shape) +
                                  "; profile and plan this model again");
    }
    sending_.push_back(channel_.send(tensor, to, tag(b, t, gradient)));
  }
}

void StageWorker::forward(const Action& action, std::int64_t step) {
  std::vector<at::Tensor> received;
  for (const int b : incoming_) {
    for (at::Tensor& tensor : await(action, b, false, step)) received.push_back(std::move(tensor));
  }
  const double start = now_();
  std::vector<at::Tensor> data =
      data_.batch(step, action.microbatch, plan_.microbatches, *plan_.microbatch_samples, program_->data_inputs());
  const bool recompute = plan_.stages[at_(stage_)].recompute;
  Flight flight = program_->forward(std::move(received), std::move(data), step, action.microbatch, !recompute);
  if (flight.loss.defined()) losses_.push_back(flight.loss.item<double>());
  flights_[at_(action.microbatch)] = std::move(flight);
  record(action, step, start);
}

void StageWorker::backward(const Action& action, std::int64_t step) {
  Flight flight = std::move(flights_[at_(action.microbatch)]);
  flights_[at_(action.microbatch)] = {};
  // Later stages' gradients first, the order in which an unsplit backward meets them.
  std::vector<at::Tensor> gradients(flight.sent.size());
  for (auto b = outgoing_.rbegin(); b != outgoing_.rend(); ++b) {
    const auto& planned = plan_.boundaries[at_(*b)].tensors;
    if (std::none_of(planned.begin(), planned.end(), [](const BoundaryTensor& t) { return t.gradient; })) continue;
    const std::vector<at::Tensor> arrived = await(action, *b, true, step);
    std::size_t next = 0;
    for (std::size_t t = 0; t < planned.size(); ++t) {
      if (!planned[t].gradient) continue;
      at::Tensor& sum = gradients[at_(slots_[at_(*b)][t])];
      sum = sum.defined() ? sum.add(arrived[next]) : arrived[next];
      ++next;
    }
  }
  const double start = now_();
  if (plan_.stages[at_(stage_)].recompute) program_->recompute(flight);
  input_gradients_[at_(action.microbatch)] = program_->backward(std::move(flight), gradients);
  record(action, step, start);
}

void StageWorker::reduce() {
  const at::NoGradGuard no_graph;
  if (flat_.defined()) channel_.all_reduce(flat_, replica_group_, Channel::kControlTag);
  std::vector<Parameter>& parameters = program_->parameters();
  for (const Tie& tie : ties_) {
    at::Tensor sum;
    for (const int i : tie.parameters) {
      const at::Tensor& gradient = parameters[at_(i)].value.grad();
      if (!gradient.defined()) continue;
      sum = sum.defined() ? sum.add(gradient) : gradient.clone();
    }
    if (!sum.defined()) sum = at::zeros_like(parameters[at_(tie.parameters.front())].value);
    if (tie.ranks.size() > 1) channel_.all_reduce(sum, tie.ranks, tie.tag);
    // Copies take separate gradients: the optimizer divides each of them in place.
    for (const int i : tie.parameters) parameters[at_(i)].value.mutable_grad() = sum.clone();
  }
}

std::vector<Span> StageWorker::take_spans() {
  std::vector<Span> out;
  out.swap(spans_);
  return out;
}

}  // namespace stagecraft
