#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "costmodel/graph.h"
#include "executor/layer_source.h"
#include "executor/stage_program.h"

namespace stagecraft {

/// 0, 1, ... for each layer of `model`.
[[nodiscard]] std::vector<int> all_layers(const Model& model);

/// What each layer gives for `batch`, with its autograd graph.
[[nodiscard]] std::vector<std::vector<at::Tensor>> layer_outputs(const Model& model,
                                                                 const std::vector<at::Tensor>& batch,
                                                                 std::uint64_t seed, Placement placement);

/// The layers and edges of `model` without times: inputs, outputs as `outputs` of a microbatch of `samples`,
/// parameters, ties.
[[nodiscard]] Graph model_graph(const Model& model, const std::vector<std::vector<at::Tensor>>& outputs,
                                std::int64_t samples);

}  // namespace stagecraft
