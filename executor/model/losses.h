#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "executor/model/model.h"

namespace stagecraft {

/// An entry of the table of losses, which have the names that export_model.py takes.
struct Loss {
  std::string name;
  std::string help;
};

/// All losses that a model may end with.
[[nodiscard]] const std::vector<Loss>& losses();

/// What a loss is taken of.
struct LossOutput {
  ValueRef value;
  std::vector<std::int64_t> shape;  ///< without the batch axis
  at::ScalarType dtype = at::kFloat;
  int batch_axis = 0;
};

/// Appends the layer "loss" to `model`: the mean of loss `name` over `output`, computed by the operators that
/// torch.nn.functional calls. `tokens` names the input that next_token reads; the others get an input "target".
/// cross_entropy takes classes [classes], [positions, classes] or [classes, height, ...] against int64 of what is left
/// of the shape; mse and bce a target like the output; next_token [positions, classes] against the tokens [positions],
/// each position but the last against the token after it. "none" appends nothing: the output is the loss itself.
/// Throws std::invalid_argument for an unknown name (listing the known), an output that the loss cannot take, a model
/// that has an input "target" or a layer "loss" already, and tokens that it does not have.
void append_loss(Model& model, const std::string& name, const LossOutput& output, const std::string& tokens = {});

}  // namespace stagecraft
