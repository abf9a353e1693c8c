#include "executor/stage/weight_versions.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace stagecraft::stage {

WeightVersions::WeightVersions(Weights weights, StageProgram& program, Optimizer& optimizer)
    : weights_(weights), program_(program), optimizer_(optimizer) {
  auto first = std::make_shared<std::vector<at::Tensor>>();
  for (const Parameter& parameter : program_.parameters()) first->push_back(parameter.value);
  waiting_.resize(first->size());
  versions_[0] = std::move(first);
}

void WeightVersions::begin(int microbatch, int step) {
  const int wanted = weights_ == Weights::StepBefore ? std::max(0, step - 1) : updates_;
  used_[microbatch] = versions_.at(wanted);
  program_.bind(*used_[microbatch]);
}

void WeightVersions::resume(int microbatch) { program_.bind(*used_.at(microbatch)); }

void WeightVersions::collect(int microbatch) {
  const at::NoGradGuard no_graph;
  const auto used = used_.extract(microbatch);
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    at::Tensor& gradient = (*used.mapped())[i].mutable_grad();
    if (!gradient.defined()) continue;
    waiting_[i] = waiting_[i].defined() ? waiting_[i].add(gradient) : gradient;
    gradient = at::Tensor();
  }
}

void WeightVersions::update(double divisor, double rate_factor) {
  const at::NoGradGuard no_graph;
  auto next = std::make_shared<std::vector<at::Tensor>>();
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    at::Tensor value = (*versions_.at(updates_))[i].detach().clone();
    value.requires_grad_(true);
    value.mutable_grad() = std::exchange(waiting_[i], at::Tensor());
    next->push_back(std::move(value));
  }
  optimizer_.rebind(*next);
  optimizer_.step(divisor, rate_factor);
  for (at::Tensor& value : *next) value.mutable_grad() = at::Tensor();
  program_.bind(*next);
  versions_[++updates_] = std::move(next);
  // A step that is one late uses the version before the newest.
  const int kept = weights_ == Weights::StepBefore ? updates_ - 1 : updates_;
  std::erase_if(versions_, [&](const auto& entry) { return entry.first < kept; });
}

}  // namespace stagecraft::stage
