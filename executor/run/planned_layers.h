#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "costmodel/plan.h"
#include "executor/model/layer_source.h"
#include "executor/stage/tied_gradients.h"

namespace stagecraft {

/// Index into Model::layers of each plan stage's layers. Throws std::invalid_argument if the plan does not fit the
/// model: a layer that the model lacks (listing what it has, or saying which one it is part of and why), one that no
/// stage runs, or a boundary without shapes.
[[nodiscard]] std::vector<std::vector<int>> layers_of_stages(const Plan& plan, const Model& model);

/// Throws std::invalid_argument naming model and bounds if `model` does not run with `samples` in a microbatch.
void check_samples(const Model& model, std::int64_t samples);

/// Throws std::invalid_argument as check_samples, and naming layer and buffer if the plan gives a stage replicas that
/// would have to agree on a buffer which a forward writes in a way that nobody can replay. `layers` as
/// layers_of_stages gives it.
void check_fits(const Plan& plan, const Model& model, const std::vector<std::vector<int>>& layers);

/// Stages that share a parameter with another one, by parameter name: name -> stages ascending, at least two.
[[nodiscard]] std::map<std::string, std::vector<int>> tied_parameters(const Model& model,
                                                                      const std::vector<std::vector<int>>& layers);

/// Those that `rank` holds, in the order in which it sums them. `tied` as tied_parameters gives it.
[[nodiscard]] std::vector<TiedGradient> tied_of_rank(const Plan& plan, const Model& model,
                                                     const std::vector<std::vector<int>>& layers,
                                                     const std::map<std::string, std::vector<int>>& tied, int rank);

/// The ranks that run `stage`, by replica.
[[nodiscard]] std::vector<int> replica_ranks(const Plan& plan, int stage);

/// The action lists of all ranks as they are run: action_lists, two microbatches ahead, with a Reduce for each stage of
/// `tied`.
[[nodiscard]] std::vector<std::vector<Action>> planned_actions(const Plan& plan,
                                                               const std::map<std::string, std::vector<int>>& tied,
                                                               int steps);

/// Stages that share a parameter reduce together: a number for each stage, the same for those that do. For verify.
[[nodiscard]] std::vector<int> tied_groups(const Plan& plan, const std::map<std::string, std::vector<int>>& tied);

}  // namespace stagecraft
