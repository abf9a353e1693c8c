#pragma once

#include <map>
#include <string>
#include <vector>

#include "costmodel/index.h"
#include "executor/model/model.h"

namespace stagecraft {

/// Parameters and buffers of a model by name; a shared name is one tensor.
using Parameters = std::map<std::string, at::Tensor>;

inline Parameters make_parameters(const model::Model& model, std::uint64_t seed) {
  Parameters out;
  for (const model::LayerSpec& layer : model.layers)
    for (const model::ParameterSpec& spec : layer.parameters)
      if (!out.contains(spec.name)) out[spec.name] = model::initial_value(spec, seed).set_requires_grad(spec.trainable);
  return out;
}

struct LayerRunOptions {
  std::uint64_t seed = 1;
  bool training = true;
};

/// Runs the model; returns the outputs of every layer.
inline std::vector<std::vector<at::Tensor>> run_layers(const model::Model& model, const Parameters& parameters,
                                                       const std::vector<at::Tensor>& inputs,
                                                       const LayerRunOptions& options = {}) {
  std::vector<std::vector<at::Tensor>> outputs;
  for (const model::LayerSpec& layer : model.layers) {
    std::vector<at::Tensor> arguments, trainable, buffers;
    for (const model::ValueRef& ref : layer.inputs)
      arguments.push_back(ref.layer < 0 ? inputs.at(to_index(ref.input))
                                        : outputs.at(to_index(ref.layer)).at(to_index(ref.output)));
    for (const model::ParameterSpec& spec : layer.parameters)
      (spec.trainable ? trainable : buffers).push_back(parameters.at(spec.name));
    outputs.push_back(layer.forward({arguments, trainable, buffers, options.training, options.seed}));
  }
  return outputs;
}

/// Runs the model; returns its loss.
inline at::Tensor run_model(const model::Model& model, const Parameters& parameters,
                            const std::vector<at::Tensor>& inputs, const LayerRunOptions& options = {}) {
  return run_layers(model, parameters, inputs, options).back().at(0);
}

}  // namespace stagecraft
