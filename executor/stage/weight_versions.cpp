#include "executor/stage/weight_versions.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

namespace stagecraft::stage {
namespace {

std::shared_ptr<std::vector<at::Tensor>> copy_of(const std::vector<at::Tensor>& version) {
  auto out = std::make_shared<std::vector<at::Tensor>>();
  for (const at::Tensor& value : version) { out->push_back(make_leaf(value.detach().clone(), gradient_type(value))); }
  return out;
}

}  // namespace

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
  // With no microbatch in flight on it, the newest version is updated in place: the last stage never copies.
  const auto newest = versions_.extract(updates_);
  const bool needed = weights_ == Weights::StepBefore || newest.mapped().use_count() > 1;
  const Version next = needed ? copy_of(*newest.mapped()) : newest.mapped();
  for (std::size_t i = 0; i < waiting_.size(); ++i) {
    (*next)[i].mutable_grad() = std::exchange(waiting_[i], at::Tensor());
  }
  optimizer_.rebind(*next);
  optimizer_.step(divisor, rate_factor);
  for (at::Tensor& value : *next) value.mutable_grad() = at::Tensor();
  program_.bind(*next);
  // A step that is one late uses the version before the newest.
  versions_.clear();
  if (weights_ == Weights::StepBefore) versions_[updates_] = newest.mapped();
  versions_[++updates_] = next;
}

}  // namespace stagecraft::stage
