#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "costmodel/graph.h"
#include "executor/model/model.h"
#include "executor/stage/stage_program.h"

namespace stagecraft {

/// 0, 1, ... for each layer of `model`.
[[nodiscard]] std::vector<int> all_layers(const Model& model);

/// The model's inputs that some layer reads, ascending: what a batch holds, in this order.
[[nodiscard]] std::vector<int> inputs_read(const Model& model);

/// What each layer gives for `batch`, with its autograd graph.
[[nodiscard]] std::vector<std::vector<at::Tensor>> layer_outputs(const Model& model,
                                                                 const std::vector<at::Tensor>& batch,
                                                                 std::uint64_t seed, Placement placement);

/// The layers and edges of `model` without times: inputs as in `batch`, outputs as `outputs` of a microbatch of
/// `samples`, parameters, ties. An input that no layer reads is what the model says of it; a derived one then has no
/// output.
[[nodiscard]] Graph model_graph(const Model& model, const std::vector<at::Tensor>& batch,
                                const std::vector<std::vector<at::Tensor>>& outputs, std::int64_t samples);

}  // namespace stagecraft
