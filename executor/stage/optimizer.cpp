#include "executor/stage/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "executor/stage/tensor_layout.h"

namespace stagecraft::stage {

const std::vector<std::string>& optimizer_names() {
  static const std::vector<std::string> names{"sgd", "adam", "adamw"};
  return names;
}

void validate(const OptimizerOptions& options) {
  bool known = false;
  for (const std::string& name : optimizer_names()) known = known || name == options.name;
  if (!known) throw std::invalid_argument(unknown_name("optimizer", options.name, optimizer_names()));
  const auto check = [](const char* what, double value, double low, double high) {
    if (!(value >= low && value <= high)) {
      throw std::invalid_argument(std::string(what) + " is " + std::to_string(value) + ", must be from " +
                                  std::to_string(low) + " to " + std::to_string(high));
    }
  };
  check("the learning rate", options.learning_rate, 0, 1e6);
  check("the momentum", options.momentum, 0, 1);
  check("the weight decay", options.weight_decay, 0, 1e6);
  check("the largest gradient norm", options.clip_norm, 0, 1e30);
  validate(options.rate);
  if (options.name != "sgd" && options.momentum != 0) {
    throw std::invalid_argument("optimizer \"" + options.name + "\" has no momentum; use sgd");
  }
}

const std::vector<std::string>& rate_schedule_names() {
  static const std::vector<std::string> names{"constant", "cosine"};
  return names;
}

void validate(const RateSchedule& schedule) {
  if (std::ranges::find(rate_schedule_names(), schedule.name) == rate_schedule_names().end())
    throw std::invalid_argument(unknown_name("rate schedule", schedule.name, rate_schedule_names()));
  if (schedule.warmup < 0)
    throw std::invalid_argument("the warm-up is " + std::to_string(schedule.warmup) + " steps, must be at least 0");
  if (!(schedule.last >= 0 && schedule.last <= 1))
    throw std::invalid_argument("the last rate is " + std::to_string(schedule.last) +
                                " of the full one, must be 0 to 1");
  if (schedule.name == "cosine" && schedule.steps <= schedule.warmup) {
    throw std::invalid_argument("a cosine of " + std::to_string(schedule.steps) + " steps with a warm-up of " +
                                std::to_string(schedule.warmup) + ": there must be more steps than warm-up");
  }
}

double rate_factor(const RateSchedule& schedule, std::int64_t step) {
  if (step + 1 < schedule.warmup) return static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  if (schedule.name == "constant") return 1;
  const double x = std::clamp(
      static_cast<double>(step - schedule.warmup) / static_cast<double>(schedule.steps - schedule.warmup), 0.0, 1.0);
  return schedule.last + (1 - schedule.last) * (1 + std::cos(std::numbers::pi * x)) / 2;
}

std::int64_t state_values(const OptimizerOptions& options) {
  if (options.name == "sgd") return options.momentum != 0 ? 1 : 0;
  return 2;
}

Optimizer::Optimizer(OptimizerOptions options, std::vector<at::Tensor> parameters)
    : options_(std::move(options)),
      parameters_(std::move(parameters)),
      first_(parameters_.size()),
      second_(parameters_.size()),
      steps_(parameters_.size()),
      begun_(parameters_.size(), false) {
  validate(options_);
}

void Optimizer::rebind(std::vector<at::Tensor> parameters) { parameters_ = std::move(parameters); }

void Optimizer::Lists::clear() {
  for (std::vector<at::Tensor>* list : {&values, &gradients, &first, &second, &steps}) list->clear();
}

void Optimizer::step(double divisor, double rate_factor) {
  const at::NoGradGuard no_graph;
  const double rate = options_.learning_rate * rate_factor;
  const std::int64_t kept = state_values(options_);
  // Parameters in their first step are separate: SGD then uses the gradient itself as momentum.
  for (const bool first_step : {true, false}) {
    lists_.clear();
    auto& [values, gradients, first, second, steps] = lists_;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& gradient = parameters_[i].grad();
      if (!gradient.defined() || begun_[i] == first_step) continue;
      if (first_step) {
        if (kept >= 1) first_[i] = at::zeros_like(parameters_[i]);
        if (kept >= 2) {
          second_[i] = at::zeros_like(parameters_[i]);
          steps_[i] = at::zeros({}, parameters_[i].options().requires_grad(false));
        }
      }
      values.push_back(parameters_[i]);
      gradients.push_back(laid_out_like(gradient, parameters_[i]));
      if (kept >= 1) first.push_back(first_[i]);
      if (kept >= 2) {
        second.push_back(second_[i]);
        steps.push_back(steps_[i]);
      }
    }
    if (values.empty()) continue;
    if (!steps.empty()) at::_foreach_add_(steps, 1);
    const std::optional<at::Tensor> scale =
        divisor == 1 ? std::optional<at::Tensor>{}
                     : at::scalar_tensor(divisor, values.front().options().requires_grad(false));
    if (options_.name == "sgd") {
      at::_fused_sgd_(values, gradients, first, options_.weight_decay, options_.momentum, rate,
                      /*dampening=*/0.0, /*nesterov=*/false, /*maximize=*/false, first_step, scale);
    } else if (options_.name == "adam") {
      at::_fused_adam_(values, gradients, first, second, {}, steps, rate, options_.beta1, options_.beta2,
                       options_.weight_decay, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false, scale);
    } else {
      at::_fused_adamw_(values, gradients, first, second, {}, steps, rate, options_.beta1, options_.beta2,
                        options_.weight_decay, options_.epsilon, /*amsgrad=*/false, /*maximize=*/false, scale);
    }
  }
  lists_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) begun_[i] = begun_[i] || parameters_[i].grad().defined();
}

OptimizerState Optimizer::state(std::size_t i) const { return {first_.at(i), second_.at(i), steps_.at(i)}; }

void Optimizer::set_state(std::size_t i, const OptimizerState& state) {
  const at::Tensor& parameter = parameters_.at(i);
  begun_.at(i) = state.first.defined();
  const auto place = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(parameter.device()) : tensor;
  };
  const auto place_values = [&](const at::Tensor& tensor) {
    return tensor.defined() ? laid_out_like(place(tensor), parameter) : tensor;
  };
  first_.at(i) = place_values(state.first);
  second_.at(i) = place_values(state.second);
  steps_.at(i) = place(state.steps);
}

}  // namespace stagecraft::stage
