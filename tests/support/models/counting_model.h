#pragma once

#include <ATen/ops/scalar_tensor.h>

#include <cstdint>

#include "executor/intake/layer_sources.h"

namespace stagecraft::testing {

inline constexpr std::int64_t kNoDouble = (std::int64_t{1} << 53) + 1;  // the first integer that is not a double

/// A small mlp in which every layer with weights counts its calls from kNoDouble, and keeps a moving mean of its first
/// input in float64 and half of its last mean in bfloat16.
inline model::Model counting_model() {
  model::Model model = intake::build_model("mlp", {{"inputs", "4"}, {"width", "8"}, {"layers", "3"}, {"classes", "3"}});
  for (model::LayerSpec& layer : model.layers) {
    if (layer.parameters.empty()) continue;
    model::ParameterSpec calls{.name = layer.name + ".calls", .shape = {}, .trainable = false, .dtype = at::kLong};
    calls.load = [] { return at::scalar_tensor(kNoDouble, at::TensorOptions().dtype(at::kLong)); };
    calls.decay = 1;
    model::ParameterSpec mean{.name = layer.name + ".mean", .shape = {2}, .trainable = false, .dtype = at::kDouble};
    mean.decay = 0.75;
    model::ParameterSpec last{.name = layer.name + ".last", .shape = {1}, .trainable = false, .dtype = at::kBFloat16};
    last.decay = 0;
    model::ParameterSpec frozen{
        .name = layer.name + ".frozen", .shape = {3}, .init = model::Init::Ones, .trainable = false};
    layer.parameters.insert(layer.parameters.end(), {calls, mean, last, frozen});
    layer.forward = [inner = layer.forward](const model::LayerCall& call) {
      const at::Tensor seen = call.inputs[0].detach().mean().to(at::kDouble);
      call.buffers[0].add_(1);
      call.buffers[1].mul_(0.75).add_(seen.mul(0.25));
      call.buffers[2].copy_(seen.mul(0.5));
      return inner(call);
    };
  }
  return model;
}

}  // namespace stagecraft::testing
