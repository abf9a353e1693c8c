#include "executor/stage/gradients/gradient_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "costmodel/index.h"
#include "executor/channel/control_tags.h"

namespace stagecraft::stage {

std::map<std::string, double> squared_norms(const std::vector<Parameter>& parameters) {
  const at::NoGradGuard no_graph;
  std::map<std::string, double> out;
  std::vector<std::string> names;
  std::vector<at::Tensor> gradients;
  for (const Parameter& parameter : parameters) {
    const at::Tensor& gradient = parameter.value.grad();
    if (!out.emplace(parameter.name, 0).second || !gradient.defined()) continue;
    names.push_back(parameter.name);
    gradients.push_back(gradient);
  }
  if (gradients.empty()) return out;
  // On a GPU, a few kernels and one copy to the host for all of them.
  const at::Tensor norms = at::stack(at::_foreach_norm(gradients, 2, at::kDouble)).cpu();
  for (std::size_t i = 0; i < names.size(); ++i) {
    const double norm = norms.const_data_ptr<double>()[i];
    out[names[i]] = norm * norm;
  }
  return out;
}

std::map<std::string, double> gather_squared_norms(channel::Channel& channel,
                                                   const std::map<std::string, double>& norms,
                                                   const std::vector<std::string>& names) {
  constexpr double kAbsent = -1;
  const auto count = static_cast<std::int64_t>(names.size());
  at::Tensor rows = at::full({channel.ranks() * count}, kAbsent, at::TensorOptions().dtype(at::kDouble));
  double* const values = rows.data_ptr<double>();
  for (std::int64_t i = 0; i < count; ++i) {
    const auto it = norms.find(names[to_index(i)]);
    if (it != norms.end()) values[channel.rank() * count + i] = it->second;
  }
  channel
      .start({.kind = Collective::AllGather,
              .values = rows,
              .members = channel::all_ranks(channel),
              .tag = channel::kNormTag})
      ->wait();
  std::map<std::string, double> out;
  for (std::int64_t rank = 0; rank < channel.ranks(); ++rank) {
    for (std::int64_t i = 0; i < count; ++i) {
      // NaN is kept: a diverging run must show.
      const double value = rows.const_data_ptr<double>()[rank * count + i];
      if (value != kAbsent) out.emplace(names[to_index(i)], value);
    }
  }
  return out;
}

double gradient_norm(const std::map<std::string, double>& squared, double divisor) {
  double sum = 0;
  for (const auto& [name, square] : squared) sum += square;
  return std::sqrt(sum) / divisor;
}

double clip_divisor(const std::map<std::string, double>& squared, double divisor, double limit) {
  return std::max(1.0, gradient_norm(squared, divisor) / limit);
}

std::vector<std::string> trainable_names(const model::Model& model) {
  std::set<std::string> out;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ParameterSpec& parameter : layer.parameters) {
      if (parameter.trainable) out.insert(parameter.name);
    }
  }
  return {out.begin(), out.end()};
}

}  // namespace stagecraft::stage
