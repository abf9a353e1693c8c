#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/plan.h"
#include "executor/model/model.h"

namespace stagecraft {

/// Index into Model::layers of each plan stage's layers, ascending. Throws std::invalid_argument if the plan does not
/// fit the model: a layer that the model lacks (listing what it has, or saying which one it is part of and why), one
/// that no stage runs, or a boundary without shapes.
[[nodiscard]] std::vector<std::vector<int>> layers_of_stages(const Plan& plan, const Model& model);

/// Throws std::invalid_argument naming model and bounds if `model` does not run with `samples` in a microbatch.
void check_samples(const Model& model, std::int64_t samples);

}  // namespace stagecraft
