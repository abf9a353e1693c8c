#include "executor/stage/optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_abs.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_reciprocal.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_fused_adagrad.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "costmodel/gradient_sums.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::stage {
namespace {

using Tensors = std::vector<at::Tensor>;

/// How many values of parameters are updated in float32 copies together, in whole blocks, so that kernels round as for
/// whole parameters: what a processor's cache holds, and enough for a GPU.
std::int64_t copied_values(c10::Device device) { return (device.is_cpu() ? 64 : 4096) * kOwnedBlock; }

bool is_fused(const std::string& name) {
  return name == "sgd" || name == "adam" || name == "adamw" || name == "adagrad";
}

/// A scalar for each of `steps`.
template <class Function>
std::vector<at::Scalar> for_each_step(const Tensors& steps, Function function) {
  std::vector<at::Scalar> out;
  for (const at::Tensor& step : steps) out.emplace_back(function(step.item<double>()));
  return out;
}

/// What a step changes, by lists of tensors: one of each per parameter.
struct ListedStep {
  Tensors& values;
  const Tensors& slopes;  ///< gradients, with the weight decay that is part of them
  const Tensors& steps;
  Tensors& products;
  std::array<Tensors, 3>& kept;
  double rate;
};

void step_lion(const OptimizerOptions& o, const ListedStep& on) {
  auto& [values, slopes, steps, products, kept, rate] = on;
  const double beta2 = beta2_of(o);
  Tensors moves = at::_foreach_lerp(kept[0], slopes, 1 - o.beta1);
  at::_foreach_sign_(moves);
  at::_foreach_add_(values, moves, -rate);
  at::_foreach_lerp_(kept[0], slopes, 1 - beta2);
}

void step_rmsprop(const OptimizerOptions& o, const ListedStep& on) {
  auto& [values, slopes, steps, products, kept, rate] = on;
  const double epsilon = epsilon_of(o);
  Tensors& squares = kept[0];
  at::_foreach_mul_(squares, o.alpha);
  at::_foreach_addcmul_(squares, slopes, slopes, 1 - o.alpha);
  Tensors roots;
  if (o.centered) {
    Tensors& means = kept[o.momentum != 0 ? 2 : 1];
    at::_foreach_lerp_(means, slopes, 1 - o.alpha);
    roots = at::_foreach_addcmul(squares, means, means, -1);
    at::_foreach_sqrt_(roots);
  } else {
    roots = at::_foreach_sqrt(squares);
  }
  at::_foreach_add_(roots, epsilon);
  if (o.momentum != 0) {
    at::_foreach_mul_(kept[1], o.momentum);
    at::_foreach_addcdiv_(kept[1], slopes, roots);
    at::_foreach_add_(values, kept[1], -rate);
  } else {
    at::_foreach_addcdiv_(values, slopes, roots, -rate);
  }
}

void step_adadelta(const OptimizerOptions& o, const ListedStep& on) {
  auto& [values, slopes, steps, products, kept, rate] = on;
  const double epsilon = epsilon_of(o);
  auto& [squares, moved, none] = kept;
  at::_foreach_mul_(squares, o.rho);
  at::_foreach_addcmul_(squares, slopes, slopes, 1 - o.rho);
  Tensors roots = at::_foreach_add(squares, epsilon);
  at::_foreach_sqrt_(roots);
  Tensors moves = at::_foreach_add(moved, epsilon);
  at::_foreach_sqrt_(moves);
  at::_foreach_div_(moves, roots);
  at::_foreach_mul_(moves, slopes);
  at::_foreach_mul_(moved, o.rho);
  at::_foreach_addcmul_(moved, moves, moves, 1 - o.rho);
  at::_foreach_add_(values, moves, -rate);
}

/// adamax, like nadam and radam below, keeps moments and corrects them for the number of steps so far.
void step_adamax(const OptimizerOptions& o, const ListedStep& on) {
  auto& [values, slopes, steps, products, kept, rate] = on;
  const double epsilon = epsilon_of(o);
  const double beta2 = beta2_of(o);
  at::_foreach_lerp_(kept[0], slopes, 1 - o.beta1);
  at::_foreach_mul_(kept[1], beta2);
  Tensors sizes = at::_foreach_abs(slopes);
  at::_foreach_add_(sizes, epsilon);
  at::_foreach_maximum_(kept[1], sizes);
  const auto moves = for_each_step(steps, [&](double t) { return -(rate / (1 - std::pow(o.beta1, t))); });
  at::_foreach_addcdiv_(values, kept[0], kept[1], moves);
}

/// Adds the gradients to the first and the second moment; returns the roots of the second.
Tensors move_moments(const OptimizerOptions& o, const ListedStep& on) {
  const double beta2 = beta2_of(o);
  at::_foreach_lerp_(on.kept[0], on.slopes, 1 - o.beta1);
  at::_foreach_mul_(on.kept[1], beta2);
  at::_foreach_addcmul_(on.kept[1], on.slopes, on.slopes, 1 - beta2);
  return at::_foreach_sqrt(on.kept[1]);
}

void step_nadam(const OptimizerOptions& o, const ListedStep& on) {
  auto& [values, slopes, steps, products, kept, rate] = on;
  const double epsilon = epsilon_of(o);
  const double beta2 = beta2_of(o);
  Tensors roots = move_moments(o, on);
  const auto momentum = [&](double t) { return o.beta1 * (1 - 0.5 * std::pow(0.96, t * o.momentum_decay)); };
  at::_foreach_mul_(products, for_each_step(steps, momentum));
  at::_foreach_div_(roots, for_each_step(steps, [&](double t) { return std::sqrt(1 - std::pow(beta2, t)); }));
  at::_foreach_add_(roots, epsilon);
  std::size_t i = 0;
  const auto of_gradient =
      for_each_step(steps, [&](double t) { return -(rate * (1 - momentum(t)) / (1 - products[i++].item<double>())); });
  i = 0;
  const auto of_moment = for_each_step(steps, [&](double t) {
    const double next = momentum(t + 1);
    return -(rate * next / (1 - products[i++].item<double>() * next));
  });
  at::_foreach_addcdiv_(values, slopes, roots, of_gradient);
  at::_foreach_addcdiv_(values, kept[0], roots, of_moment);
}

void step_radam(const OptimizerOptions& o, const ListedStep& on) {
  auto& [values, slopes, steps, products, kept, rate] = on;
  const double epsilon = epsilon_of(o);
  const double beta2 = beta2_of(o);
  Tensors roots = move_moments(o, on);
  const double most = 2 / (1 - beta2) - 1;  // length of the average, in the limit
  // The rectification; 0 while the average is too short for one.
  const auto rectified = [&](double t) {
    const double power = std::pow(beta2, t);
    const double length = most - 2 * t * power / (1 - power);
    return length > 5 ? std::sqrt((length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)) : 0;
  };
  const auto plain =
      for_each_step(steps, [&](double t) { return -(rate * (rectified(t) > 0 ? 0 : 1) / (1 - std::pow(o.beta1, t))); });
  const auto adaptive = for_each_step(steps, [&](double t) {
    return -(std::sqrt(1 - std::pow(beta2, t)) * (rate * rectified(t) / (1 - std::pow(o.beta1, t))));
  });
  at::_foreach_add_(roots, epsilon);
  at::_foreach_div_(roots, adaptive);
  at::_foreach_reciprocal_(roots);
  at::_foreach_add_(roots, plain);
  at::_foreach_addcmul_(values, kept[0], roots);
}

/// Without the moving average.
OptimizerKeeps kept_by_rule(const OptimizerOptions& options) {
  const std::string& name = options.name;
  const int momentum = options.momentum != 0 ? 1 : 0;
  if (name == "sgd") return {.tensors = momentum};
  if (name == "lion") return {.tensors = 1};
  if (name == "adagrad") return {.tensors = 1, .steps = true};
  if (name == "rmsprop") return {.tensors = 1 + momentum + (options.centered ? 1 : 0)};
  if (name == "adadelta") return {.tensors = 2};
  return {.tensors = options.amsgrad ? 3 : 2, .steps = true, .product = name == "nadam"};
}

}  // namespace

OptimizerKeeps keeps(const OptimizerOptions& options) {
  OptimizerKeeps out = kept_by_rule(options);
  out.average = options.ema_decay != 0;
  return out;
}

std::int64_t state_values(const OptimizerOptions& options) {
  const OptimizerKeeps kept = keeps(options);
  const int average = options.types.moments == StateType::Float32 ? 1 : 2;
  return kept.tensors + (kept.average ? average : 0);
}

Optimizer::Optimizer(OptimizerOptions options, std::vector<at::Tensor> parameters,
                     const std::vector<std::string>& names)
    : options_(std::move(options)),
      group_options_(options_.groups.size() + 1, options_),
      group_of_(groups_of(options_.groups, names)),
      keeps_(keeps(options_)),
      parameters_(std::move(parameters)),
      states_(parameters_.size()),
      begun_(parameters_.size(), false) {
  validate(options_);
  group_of_.resize(parameters_.size(), options_.groups.size());
  for (std::size_t g = 0; g < options_.groups.size(); ++g) {
    const ParameterGroup& group = options_.groups[g];
    OptimizerOptions& o = group_options_[g];
    o.weight_decay = group.weight_decay.value_or(o.weight_decay);
    o.learning_rate = group.learning_rate.value_or(o.learning_rate) * group.rate_factor;
  }
}

void Optimizer::rebind(std::vector<at::Tensor> parameters) { parameters_ = std::move(parameters); }

void Optimizer::Lists::clear() {
  for (Tensors* list : {&values, &gradients, &steps, &products, &kept[0], &kept[1], &kept[2]}) list->clear();
}

namespace {

/// The type in which a parameter is updated.
at::ScalarType updated_type(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kBFloat16 ? at::kFloat : parameter.scalar_type();
}

bool is_exact(const at::Tensor& tensor) { return tensor.scalar_type() != at::kBFloat16; }

/// A copy in float32 of an inexact tensor; others are returned.
at::Tensor exact(const at::Tensor& tensor) { return is_exact(tensor) ? tensor : tensor.to(at::kFloat); }

}  // namespace

at::TensorOptions Optimizer::scalar_options(const at::Tensor& parameter) const {
  const at::TensorOptions out = parameter.options().requires_grad(false).dtype(updated_type(parameter));
  return is_fused(options_.name) ? out : out.device(at::kCPU);
}

at::TensorOptions Optimizer::moment_options(const at::Tensor& parameter) const {
  const bool as_updated = options_.types.moments == StateType::Float32;
  return parameter.options().requires_grad(false).dtype(as_updated ? updated_type(parameter) : at::kBFloat16);
}

void Optimizer::begin(const at::Tensor& parameter, OptimizerState& state) const {
  OptimizerState out;
  out.average = std::move(state.average);
  out.master = std::move(state.master);
  const at::TensorOptions moments = moment_options(parameter);
  const double value = options_.name == "adagrad" ? options_.initial_accumulator : 0;
  int count = 0;
  for (at::Tensor* const tensor : {&out.first, &out.second, &out.third}) {
    if (count++ < keeps_.tensors)
      *tensor = value == 0 ? at::zeros_like(parameter, moments) : at::full_like(parameter, value, moments);
  }
  if (keeps_.steps) out.steps = at::zeros({}, scalar_options(parameter));
  if (keeps_.product) out.product = at::ones({}, scalar_options(parameter));
  state = std::move(out);
}

void Optimizer::step(double divisor, double rate_factor) {
  const at::NoGradGuard no_graph;
  for (std::size_t g = 0; g < group_options_.size(); ++g) step_group(g, divisor, rate_factor);
  lists_.clear();
  for (std::size_t i = 0; i < parameters_.size(); ++i) begun_[i] = begun_[i] || parameters_[i].grad().defined();
  if (keeps_.average) move_averages();
}

void Optimizer::step_group(std::size_t group, double divisor, double rate_factor) {
  const OptimizerOptions& options = group_options_[group];
  const double rate = options.learning_rate * rate_factor;
  // Parameters in their first step are separate: SGD then uses the gradient itself as momentum.
  for (const bool first_step : {true, false}) {
    lists_.clear();
    std::int64_t copied = 0;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      const at::Tensor& gradient = parameters_[i].grad();
      if (group_of_[i] != group || !gradient.defined() || begun_[i] == first_step) continue;
      OptimizerState& state = states_[i];
      if (first_step) begin(parameters_[i], state);
      if (!state.master.defined() && !is_exact(parameters_[i])) state.master = exact(parameters_[i].detach());
      const at::Tensor laid_out = laid_out_like(gradient, parameters_[i]);
      const bool as_it_is = is_exact(laid_out) && (keeps_.tensors == 0 || is_exact(state.first));
      if (as_it_is) {
        add(parameters_[i], laid_out, state);
        continue;
      }
      const std::int64_t all = parameters_[i].numel();
      const std::int64_t most = copied_values(parameters_[i].device());
      for (std::int64_t first = 0; first < all; first += most) {
        const std::int64_t count = std::min(most, all - first);
        add_part(parameters_[i], laid_out, state, first, count, first + count == all);
        copied += count;
        if (copied < most) continue;
        update_listed(options, divisor, rate, first_step);
        copied = 0;
      }
    }
    update_listed(options, divisor, rate, first_step);
  }
}

void Optimizer::add(const at::Tensor& parameter, const at::Tensor& gradient, const OptimizerState& state) {
  if (state.master.defined()) {
    computed_.push_back(state.master);
    stored_.push_back(parameter);
  }
  lists_.values.push_back(state.master.defined() ? state.master : parameter);
  lists_.gradients.push_back(gradient);
  if (keeps_.tensors >= 1) lists_.kept[0].push_back(state.first);
  if (keeps_.tensors >= 2) lists_.kept[1].push_back(state.second);
  if (keeps_.tensors >= 3) lists_.kept[2].push_back(state.third);
  if (keeps_.steps) lists_.steps.push_back(state.steps);
  if (keeps_.product) lists_.products.push_back(state.product);
}

void Optimizer::add_part(const at::Tensor& parameter, const at::Tensor& gradient, const OptimizerState& state,
                         std::int64_t first, std::int64_t count, bool last) {
  const auto part = [&](const at::Tensor& whole) {
    return whole.defined() ? in_memory_order(whole).narrow(0, first, count) : whole;
  };
  const auto moved = [&](const at::Tensor& whole) {
    const at::Tensor stored = part(whole);
    if (!stored.defined() || is_exact(stored)) return stored;
    stored_.push_back(stored);
    return computed_.emplace_back(exact(stored));
  };
  const auto count_of = [&](const at::Tensor& scalar) { return scalar.defined() && !last ? scalar.clone() : scalar; };
  add(part(parameter), moved(gradient),
      {.first = moved(state.first),
       .second = moved(state.second),
       .third = moved(state.third),
       .steps = count_of(state.steps),
       .product = count_of(state.product),
       .average = {},
       .master = part(state.master)});
}

void Optimizer::update_listed(const OptimizerOptions& options, double divisor, double rate, bool first_step) {
  if (lists_.values.empty()) return;
  if (!lists_.steps.empty()) at::_foreach_add_(lists_.steps, 1);
  if (is_fused(options.name)) {
    fused(options, lists_, divisor, rate, first_step);
  } else {
    listed(options, lists_, divisor, rate);
  }
  if (!stored_.empty()) at::_foreach_copy_(stored_, computed_);
  lists_.clear();
  stored_.clear();
  computed_.clear();
}

void Optimizer::move_averages() {
  Tensors averages, values;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    OptimizerState& state = states_[i];
    const at::Tensor value = state.master.defined() ? state.master : exact(parameters_[i].detach());
    if (!state.average.defined()) {
      state.average = value.clone();
      continue;
    }
    averages.push_back(state.average);
    values.push_back(value);
  }
  if (!averages.empty()) at::_foreach_lerp_(averages, values, 1 - options_.ema_decay);
}

void Optimizer::fused(const OptimizerOptions& o, Lists& lists, double divisor, double rate, bool first_step) {
  auto& [values, gradients, steps, products, kept] = lists;
  const std::optional<at::Tensor> scale =
      divisor == 1 ? std::optional<at::Tensor>{}
                   : at::scalar_tensor(divisor, values.front().options().requires_grad(false));
  if (o.name == "sgd") {
    at::_fused_sgd_(values, gradients, kept[0], o.weight_decay, o.momentum, rate, o.dampening, o.nesterov,
                    /*maximize=*/false, first_step, scale);
  } else if (o.name == "adagrad") {
    at::_fused_adagrad_(values, gradients, kept[0], steps, rate, o.learning_rate_decay, o.weight_decay, epsilon_of(o),
                        /*maximize=*/false, scale);
  } else if (o.name == "adam") {
    at::_fused_adam_(values, gradients, kept[0], kept[1], kept[2], steps, rate, o.beta1, beta2_of(o), o.weight_decay,
                     epsilon_of(o), o.amsgrad, /*maximize=*/false, scale);
  } else {
    at::_fused_adamw_(values, gradients, kept[0], kept[1], kept[2], steps, rate, o.beta1, beta2_of(o), o.weight_decay,
                      epsilon_of(o), o.amsgrad, /*maximize=*/false, scale);
  }
}

void Optimizer::listed(const OptimizerOptions& o, Lists& lists, double divisor, double rate) {
  auto& [values, gradients, steps, products, kept] = lists;
  if (divisor != 1) at::_foreach_div_(gradients, divisor);

  const bool decoupled = o.decoupled_weight_decay || o.name == "lion";
  if (o.weight_decay != 0 && decoupled) at::_foreach_mul_(values, 1 - rate * o.weight_decay);
  Tensors decayed;
  if (o.weight_decay != 0 && !decoupled) decayed = at::_foreach_add(gradients, values, o.weight_decay);
  const Tensors& slopes = decayed.empty() ? gradients : decayed;

  const ListedStep on{values, slopes, steps, products, kept, rate};
  if (o.name == "lion") return step_lion(o, on);
  if (o.name == "rmsprop") return step_rmsprop(o, on);
  if (o.name == "adadelta") return step_adadelta(o, on);
  if (o.name == "adamax") return step_adamax(o, on);
  if (o.name == "nadam") return step_nadam(o, on);
  step_radam(o, on);
}

void Optimizer::set_state(std::size_t i, const OptimizerState& state) {
  const at::Tensor& parameter = parameters_.at(i);
  begun_.at(i) = state.first.defined();
  const auto values = [&](const at::Tensor& tensor, const at::TensorOptions& like) {
    return tensor.defined() ? laid_out_like(tensor.to(like), parameter) : tensor;
  };
  const at::TensorOptions moments = moment_options(parameter);
  const at::TensorOptions updated = parameter.options().requires_grad(false).dtype(updated_type(parameter));
  const auto scalar = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(scalar_options(parameter)) : tensor;
  };
  states_.at(i) = {.first = values(state.first, moments),
                   .second = values(state.second, moments),
                   .third = values(state.third, moments),
                   .steps = scalar(state.steps),
                   .product = scalar(state.product),
                   .average = values(state.average, updated),
                   .master = is_exact(parameter) ? at::Tensor() : values(state.master, updated)};
}

std::unique_ptr<Optimizer> optimizer_of(const OptimizerOptions& options, const std::vector<Parameter>& parameters) {
  std::vector<at::Tensor> values;
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters) {
    values.push_back(parameter.value);
    names.push_back(parameter.name);
  }
  return std::make_unique<Optimizer>(options, std::move(values), names);
}

}  // namespace stagecraft::stage
