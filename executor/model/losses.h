#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "executor/model/model.h"

namespace stagecraft::model {

/// An entry of the table of losses, with the names of export_model.py.
struct Loss {
  std::string name;
  std::string help;
};

/// All losses.
[[nodiscard]] const std::vector<Loss>& losses();

/// The output from which a loss is computed.
struct LossOutput {
  ValueRef value;
  std::vector<std::int64_t> shape;  ///< without the batch axis
  at::ScalarType dtype = at::kFloat;
  int batch_axis = 0;
};

/// Appends the layer "loss" to `model`: the mean of loss `name` over `output`, computed by torch.nn.functional's
/// operators. `tokens` names the input that next_token reads; the others get an input "target". cross_entropy takes
/// classes [classes], [positions, classes] or [classes, height, ...] against int64 of the remaining shape; mse and bce
/// take a target of the output's shape; next_token takes [positions, classes] against the tokens [positions], each
/// position except the last against the next token. "none" appends nothing: the output is the loss itself.
/// Throws std::invalid_argument for an unknown name (listing the known ones), an output that does not fit the loss, a
/// model that already has an input "target" or a layer "loss", and tokens that it does not have.
void append_loss(Model& model, const std::string& name, const LossOutput& output, const std::string& tokens = {});

}  // namespace stagecraft::model
