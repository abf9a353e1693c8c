#pragma once

#include "executor/model/builtin_models.h"

namespace stagecraft {

/// Each one is an entry of the table of built-in models.
[[nodiscard]] BuiltinModel mlp_model();
[[nodiscard]] BuiltinModel convnet_model();
[[nodiscard]] BuiltinModel alexnet_model();
[[nodiscard]] BuiltinModel vgg16_model();
[[nodiscard]] BuiltinModel resnet18_model();
[[nodiscard]] BuiltinModel resnet50_model();
[[nodiscard]] BuiltinModel gnmt_model();
[[nodiscard]] BuiltinModel transformer_model();
[[nodiscard]] BuiltinModel gpt_model();

}  // namespace stagecraft
