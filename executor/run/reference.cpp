#include "executor/run/reference.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <numeric>
#include <optional>
#include <ranges>
#include <set>

#include "costmodel/index.h"
#include "executor/device/autocast.h"
#include "executor/device/dtype.h"
#include "executor/run/binding/loss_shares.h"
#include "executor/stage/gradients/gradient_reduction.h"

namespace stagecraft::run {

Reference::Reference(const BoundModel& bound, const data::DataSource& data, const stage::OptimizerOptions& optimizer,
                     std::uint64_t seed, c10::Device device)
    : model_(bound.model),
      plan_(bound.plan.plan()),
      bound_(bound.plan),
      data_(data),
      options_(optimizer),
      seed_(seed),
      device_(device),
      stage_of_layer_(bound.model.layers.size()) {
  const model::Model& model = bound.model;
  for (std::size_t s = 0; s < bound.layers.size(); ++s) {
    for (const int layer : bound.layers[s]) stage_of_layer_[to_index(layer)] = to_int(s);
  }
  std::vector<int> all(model.layers.size());
  std::iota(all.begin(), all.end(), 0);
  program_ = std::make_unique<stage::StageProgram>(model, std::move(all), std::vector<stage::ReceivedValue>{},
                                                   std::vector<model::ValueRef>{}, seed,
                                                   stage::Placement{device, device::compute_type(plan_.dtype)});
  optimizer_ = stage::optimizer_of(optimizer, program_->parameters());
  const auto is_replicated = [this](int layer) { return bound_.replicas(stage_of_layer_[to_index(layer)]) > 1; };
  statistics_ = std::make_unique<stage::MovingStatistics>(model, *program_, is_replicated);
  const std::vector<stage::Parameter> state = program_->buffers();
  auto next = state.begin();
  for (std::size_t l = 0; l < model.layers.size(); ++l) {
    std::vector<at::Tensor>& of_layer = buffers_.emplace_back();
    for (const model::ParameterSpec& spec : model.layers[l].parameters) {
      if (spec.trainable) continue;
      of_layer.push_back(spec.constant ? model::initial_value(spec, seed).to(device) : (next++)->value);
      if (spec.decay && is_replicated(to_int(l))) replayed_.push_back(of_layer.back());
    }
  }
}

void Reference::record_statistics(std::int64_t step, int microbatch) {
  if (replayed_.empty()) return;
  std::vector<at::Tensor> before;
  for (const stage::Parameter& buffer : program_->buffers()) before.push_back(buffer.value.clone());
  statistics_->begin();
  (void)forward(step, microbatch);
  statistics_->end(microbatch);
  const at::NoGradGuard no_graph;
  auto kept = before.begin();
  for (const stage::Parameter& buffer : program_->buffers()) buffer.value.copy_(*kept++);
}

at::Tensor Reference::forward(std::int64_t step, int microbatch) {
  std::vector<std::vector<at::Tensor>> values;  // by layer
  const std::vector<stage::Parameter>& parameters = program_->leaves();
  std::size_t next_parameter = 0;
  std::vector<at::Tensor> data(model_.inputs.size());
  std::vector<at::Tensor> given =
      data_.batch(step, microbatch, plan_.microbatches, *plan_.microbatch_samples, program_->data_inputs());
  for (std::size_t i = 0; i < given.size(); ++i) data[to_index(program_->data_inputs()[i])] = given[i].to(device_);
  std::optional<device::AutocastScope> autocast;
  const at::ScalarType type = device::compute_type(plan_.dtype);
  if (type != at::kFloat) autocast.emplace(device_.type(), true, type);
  for (std::size_t l = 0; l < model_.layers.size(); ++l) {
    const model::LayerSpec& layer = model_.layers[l];
    std::vector<at::Tensor> inputs;
    for (const model::ValueRef& from : layer.inputs)
      inputs.push_back(from.layer < 0 ? data[to_index(from.input)]
                                      : values[to_index(from.layer)][to_index(from.output)]);
    std::vector<at::Tensor> own;
    for (const model::ParameterSpec& parameter : layer.parameters)
      if (parameter.trainable) own.push_back(parameters[next_parameter++].value);
    model::LayerCall call;
    call.inputs = inputs;
    call.parameters = own;
    call.buffers = buffers_[l];
    call.seed = seed_;
    call.step = step;
    call.microbatch = microbatch;
    values.push_back(layer.forward(call));
  }
  return values.back().front();
}

void Reference::compute(std::int64_t step) {
  step_ = step;
  std::vector<stage::Parameter>& parameters = program_->leaves();
  const auto stage_of = [&](std::size_t i) { return stage_of_layer_[to_index(parameters[i].layer)]; };
  // Layers of one stage that share a parameter count as one holder.
  std::map<std::string, std::map<int, std::vector<std::size_t>>> holders;  // name -> stage -> parameters
  for (std::size_t i = 0; i < parameters.size(); ++i) holders[parameters[i].name][stage_of(i)].push_back(i);
  // One sum for each parameter and replica of its stage, under its first holder.
  std::vector<std::vector<at::Tensor>> sums(parameters.size());
  for (const auto& [name, by_stage] : holders) {
    for (const auto& [stage, copies_on_stage] : by_stage) {
      sums[copies_on_stage.front()].resize(to_index(bound_.replicas(stage)));
    }
  }
  const auto add = [](at::Tensor& sum, const at::Tensor& value) {
    if (value.defined()) sum = sum.defined() ? sum.add(value) : value.clone();
  };
  std::vector<at::Tensor> before;
  for (const at::Tensor& buffer : replayed_) before.push_back(buffer.clone());
  losses_.clear();
  const std::vector<double> shares = loss_shares(model_, data_, step, plan_.microbatches, *plan_.microbatch_samples);
  for (int m = 0; m < plan_.microbatches; ++m) {
    for (const stage::Parameter& parameter : parameters) parameter.value.mutable_grad() = at::Tensor();
    record_statistics(step, m);
    const at::Tensor loss = forward(step, m);
    const double share = shares[to_index(m)];
    losses_.push_back(share == 0 ? 0 : (share == 1 ? loss : loss.mul(share)).item<double>());
    if (loss.requires_grad() && share != 0)
      torch::autograd::backward({loss}, {at::full_like(loss, (scaler_ ? scaler_->scale() : 1) * share)});
    const at::NoGradGuard no_graph;
    for (const auto& [name, by_stage] : holders) {
      for (const auto& [stage, copies_on_stage] : by_stage) {
        at::Tensor uses;
        for (const std::size_t i : std::views::reverse(copies_on_stage)) add(uses, parameters[i].value.grad());
        add(sums[copies_on_stage.front()][to_index(bound_.replica_of(stage, m))], uses);
      }
    }
  }

  const at::NoGradGuard no_graph;
  for (std::size_t i = 0; i < replayed_.size(); ++i) replayed_[i].copy_(before[i]);
  // Holders of a tied parameter by rank: stage, then replica.
  gradients_.clear();
  for (const auto& [name, by_stage] : holders) {
    at::Tensor total;
    std::vector<std::size_t> copies;
    for (const auto& [stage, copies_on_stage] : by_stage) {
      for (const at::Tensor& sum : sums[copies_on_stage.front()]) add(total, sum);
      copies.insert(copies.end(), copies_on_stage.begin(), copies_on_stage.end());
    }
    for (const std::size_t i : copies) {
      const at::Tensor gradient = copies.size() > 1 && total.defined() ? total.clone() : total;
      gradients_[{parameters[i].layer, name}] = gradient;
      parameters[i].value.mutable_grad() = gradient;
    }
  }
}

void Reference::update() {
  statistics_->apply();
  const bool skipped = overflow();
  double divisor = plan_.microbatches * (scaler_ ? scaler_->scale() : 1);
  if (options_.clip_norm > 0)
    divisor *= stage::clip_divisor(stage::squared_norms(program_->parameters()), divisor, options_.clip_norm);
  if (scaler_) scaler_->update(skipped);
  if (!skipped) optimizer_->step(divisor, stage::rate_factor(options_.rate, step_) * rate_scale_);
}

at::Tensor Reference::gradient(int layer, const std::string& name) const {
  const auto it = gradients_.find({layer, name});
  return it == gradients_.end() ? at::Tensor() : it->second;
}

}  // namespace stagecraft::run
