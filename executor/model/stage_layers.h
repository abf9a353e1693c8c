#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/plan.h"
#include "executor/model/model.h"

namespace stagecraft::model {

/// Index into Model::layers of each plan stage's layers, ascending. Throws std::invalid_argument if the plan does not
/// fit the model: a layer that the model lacks (listing its layers, or naming the layer that it is part of and why), a
/// layer in no stage, or a boundary without shapes.
[[nodiscard]] std::vector<std::vector<int>> layers_of_stages(const Plan& plan, const Model& model);

/// Throws std::invalid_argument naming model and bounds if `model` does not support microbatches of `samples`.
void check_samples(const Model& model, std::int64_t samples);

}  // namespace stagecraft::model
