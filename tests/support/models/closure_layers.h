#pragma once

#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "executor/model/model.h"

namespace stagecraft::testing {

/// Layers that are functions rather than graphs: each appends layer `name`, which reads `in`.
inline model::ValueRef closure_layer(model::Model& model, const std::string& name, model::ValueRef in,
                                     std::vector<model::ParameterSpec> parameters,
                                     std::function<at::Tensor(const model::LayerCall&)> forward) {
  return model::append(
      model, {.name = name,
              .kind = "Test",
              .inputs = {in},
              .parameters = std::move(parameters),
              .forward = [forward = std::move(forward)](const model::LayerCall& call) -> std::vector<at::Tensor> {
                return {forward(call)};
              }});
}

inline model::ValueRef closure_relu(model::Model& model, const std::string& name, model::ValueRef in) {
  return closure_layer(model, name, in, {}, [](const model::LayerCall& call) { return at::relu(call.inputs[0]); });
}

/// A convolution of 3 x 3 that keeps the size, from `from` to `to` channels.
inline model::ValueRef closure_conv2d(model::Model& model, const std::string& name, model::ValueRef in,
                                      std::int64_t from, std::int64_t to) {
  const double scale = model::fan_in_scale(9 * from);
  return closure_layer(
      model, name, in,
      {model::uniform(name + ".weight", {to, from, 3, 3}, scale), model::uniform(name + ".bias", {to}, scale)},
      [](const model::LayerCall& call) {
        return at::conv2d(call.inputs[0], call.parameters[0], call.parameters[1], 1, 1);
      });
}

inline model::ValueRef closure_batch_norm2d(model::Model& model, const std::string& name, model::ValueRef in,
                                            std::int64_t channels) {
  model::ParameterSpec mean = model::zeros(name + ".running_mean", {channels});
  model::ParameterSpec variance = model::ones(name + ".running_var", {channels});
  mean.trainable = variance.trainable = false;
  mean.decay = variance.decay = 0.9;
  return closure_layer(
      model, name, in,
      {model::ones(name + ".weight", {channels}), model::zeros(name + ".bias", {channels}), mean, variance},
      [](const model::LayerCall& call) {
        return at::batch_norm(call.inputs[0], call.parameters[0], call.parameters[1], call.buffers[0], call.buffers[1],
                              call.training, 0.1, 1e-5, true);
      });
}

inline model::ValueRef closure_layer_norm(model::Model& model, const std::string& name, model::ValueRef in,
                                          std::int64_t width) {
  return closure_layer(model, name, in, {model::ones(name + ".weight", {width}), model::zeros(name + ".bias", {width})},
                       [width](const model::LayerCall& call) {
                         return at::layer_norm(call.inputs[0], {width}, call.parameters[0], call.parameters[1]);
                       });
}

inline model::ValueRef closure_linear(model::Model& model, const std::string& name, model::ValueRef in,
                                      std::int64_t from, std::int64_t to) {
  const double scale = model::fan_in_scale(from);
  return closure_layer(
      model, name, in,
      {model::uniform(name + ".weight", {to, from}, scale), model::uniform(name + ".bias", {to}, scale)},
      [](const model::LayerCall& call) { return at::linear(call.inputs[0], call.parameters[0], call.parameters[1]); });
}

}  // namespace stagecraft::testing
