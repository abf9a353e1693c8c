#pragma once

#include <map>
#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "executor/layer_source.h"

namespace stagecraft {

/// Index into Model::layers of each plan stage's layers. Throws std::invalid_argument if the plan does not fit the
/// model: a layer that the model lacks (listing what it has), one that no stage runs, or a boundary without shapes.
[[nodiscard]] std::vector<std::vector<int>> layers_of_stages(const Plan& plan, const Model& model);

/// Stages that share a parameter with another one, by parameter name: name -> stages ascending, at least two.
[[nodiscard]] std::map<std::string, std::vector<int>> tied_parameters(const Model& model,
                                                                      const std::vector<std::vector<int>>& layers);

}  // namespace stagecraft
