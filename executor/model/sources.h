#pragma once

#include "executor/model/layer_source.h"

namespace stagecraft {

/// One entry of the table of layer sources each.
[[nodiscard]] LayerSource mlp_source();
[[nodiscard]] LayerSource convnet_source();
[[nodiscard]] LayerSource alexnet_source();
[[nodiscard]] LayerSource vgg16_source();
[[nodiscard]] LayerSource resnet18_source();
[[nodiscard]] LayerSource resnet50_source();
[[nodiscard]] LayerSource gnmt_source();
[[nodiscard]] LayerSource transformer_source();
[[nodiscard]] LayerSource gpt_source();

}  // namespace stagecraft
