#pragma once

#include <algorithm>
#include <numeric>

#include "executor/model/model.h"

namespace stagecraft::testing {

/// `model` with the same initial values in a different memory layout: in parameters with two or more axes, the first
/// axis is innermost (almost channels_last for a convolution, transposed for a linear layer).
inline model::Model laid_out_model(model::Model model) {
  constexpr std::uint64_t kSeed = 5;
  for (model::LayerSpec& layer : model.layers) {
    for (model::ParameterSpec& parameter : layer.parameters) {
      if (!parameter.trainable || parameter.shape.size() < 2) continue;
      parameter.load = [plain = parameter] {
        std::vector<std::int64_t> order(plain.shape.size());
        std::iota(order.begin(), order.end(), 1);
        order.back() = 0;
        std::vector<std::int64_t> back(order.size());
        for (std::size_t i = 0; i < order.size(); ++i) back[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
        return model::initial_value(plain, kSeed).permute(order).contiguous().permute(back);
      };
    }
  }
  return model;
}

/// `model` with the initial values of laid_out_model, but contiguous.
inline model::Model contiguous_model(model::Model model) {
  model = laid_out_model(std::move(model));
  for (model::LayerSpec& layer : model.layers) {
    for (model::ParameterSpec& parameter : layer.parameters) {
      if (parameter.load) parameter.load = [laid_out = parameter.load] { return laid_out().contiguous(); };
    }
  }
  return model;
}

}  // namespace stagecraft::testing
