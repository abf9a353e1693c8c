#include "executor/run/reference.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <numeric>
#include <ranges>
#include <set>

#include "costmodel/index.h"
#include "executor/device/dtype.h"
#include "executor/stage/gradients/gradient_norm.h"

namespace stagecraft::run {

Reference::Reference(const BoundModel& bound, const data::DataSource& data, const stage::OptimizerOptions& optimizer,
                     std::uint64_t seed, c10::Device device)
    : plan_(bound.plan.plan()),
      bound_(bound.plan),
      data_(data),
      options_(optimizer),
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
  std::vector<at::Tensor> values;
  for (const stage::Parameter& parameter : program_->parameters()) values.push_back(parameter.value);
  optimizer_ = std::make_unique<stage::Optimizer>(optimizer, std::move(values));
  statistics_ = std::make_unique<stage::MovingStatistics>(
      model, *program_, [this](int layer) { return bound_.replicas(stage_of_layer_[to_index(layer)]) > 1; });
}

void Reference::compute(std::int64_t step) {
  step_ = step;
  std::vector<stage::Parameter>& parameters = program_->parameters();
  const auto stage_of = [&](std::size_t i) { return stage_of_layer_[to_index(parameters[i].layer)]; };
  // Layers of one stage that share a parameter count as one holder.
  std::map<std::string, std::map<int, std::vector<std::size_t>>> holders;  // name -> stage -> parameters
  for (std::size_t i = 0; i < parameters.size(); ++i) holders[parameters[i].name][stage_of(i)].push_back(i);
  // One sum for each parameter and replica of its stage, under its first holder; replicated stages start from zero.
  std::vector<std::vector<at::Tensor>> sums(parameters.size());
  for (const auto& [name, by_stage] : holders) {
    for (const auto& [stage, copies_on_stage] : by_stage) {
      std::vector<at::Tensor>& of_replicas = sums[copies_on_stage.front()];
      of_replicas.resize(to_index(bound_.replicas(stage)));
      if (of_replicas.size() < 2) continue;
      for (at::Tensor& sum : of_replicas)
        sum = at::zeros_like(parameters[copies_on_stage.front()].value, at::TensorOptions().requires_grad(false));
    }
  }
  const auto add = [](at::Tensor& sum, const at::Tensor& value) {
    if (value.defined()) sum = sum.defined() ? sum.add(value) : value.clone();
  };
  losses_.clear();
  for (int m = 0; m < plan_.microbatches; ++m) {
    for (const stage::Parameter& parameter : parameters) parameter.value.mutable_grad() = at::Tensor();
    statistics_->begin();
    stage::Flight flight = program_->forward(
        {}, data_.batch(step, m, plan_.microbatches, *plan_.microbatch_samples, program_->data_inputs()), step, m);
    statistics_->end(m);
    losses_.push_back(flight.loss.item<double>());
    (void)program_->backward(std::move(flight), {}, scaler_ ? scaler_->scale() : 1);
    const at::NoGradGuard no_graph;
    for (const auto& [name, by_stage] : holders) {
      for (const auto& [stage, copies_on_stage] : by_stage) {
        at::Tensor uses;
        for (const std::size_t i : std::views::reverse(copies_on_stage)) add(uses, parameters[i].value.grad());
        add(sums[copies_on_stage.front()][to_index(bound_.replica_of(stage, m))], uses);
      }
    }
  }

  // Holders of a tied parameter by rank: stage, then replica.
  const at::NoGradGuard no_graph;
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
  if (!skipped) optimizer_->step(divisor, stage::rate_factor(options_.rate, step_));
}

at::Tensor Reference::gradient(int layer, const std::string& name) const {
  const auto it = gradients_.find({layer, name});
  return it == gradients_.end() ? at::Tensor() : it->second;
}

}  // namespace stagecraft::run
