#pragma once

#include <ATen/ops/exp.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sum.h>

#include <functional>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/index.h"
#include "executor/stage/stage_program.h"

// A model of hand-written layers whose work can be counted.

namespace stagecraft {

using LayerForward = std::function<std::vector<at::Tensor>(const model::LayerCall&)>;

/// A layer with one trainable parameter "NAME.weight" of `values` values, none if 0.
inline model::LayerSpec hand_layer(const std::string& name, std::int64_t values, LayerForward forward) {
  model::LayerSpec out;
  out.name = name;
  out.kind = "Hand";
  if (values > 0) out.parameters = {{.name = name + ".weight", .shape = {values}, .init = model::Init::Ones}};
  out.forward = std::move(forward);
  return out;
}

/// Consecutive layers: each reads the previous one, the first reads the input "x"; the last returns the loss.
inline model::Model row_of_layers(std::vector<model::LayerSpec> layers) {
  model::Model model;
  model.name = "row";
  for (std::size_t i = 0; i < layers.size(); ++i) {
    model::ValueRef input;
    if (i == 0) {
      input.input = 0;
    } else {
      input.layer = to_int(i) - 1;
    }
    layers[i].inputs = {input};
  }
  model.inputs = {{"x", "float32", {}, 0}};
  model.layers = std::move(layers);
  return model;
}

/// Layers weight * x, exp(exp(x)) and sum, with 256 values between them.
inline model::Model scale_exp_sum() {
  return row_of_layers(
      {hand_layer(
           "scale", 256,
           [](const model::LayerCall& c) { return std::vector<at::Tensor>{at::mul(c.inputs[0], c.parameters[0])}; }),
       hand_layer("exp", 0,
                  [](const model::LayerCall& c) { return std::vector<at::Tensor>{at::exp(at::exp(c.inputs[0]))}; }),
       hand_layer("sum", 0, [](const model::LayerCall& c) { return std::vector<at::Tensor>{at::sum(c.inputs[0])}; })});
}

inline std::vector<at::Tensor> row_batch() { return {at::ones({256})}; }

}  // namespace stagecraft
