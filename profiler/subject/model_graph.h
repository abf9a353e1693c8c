#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "costmodel/graph.h"
#include "executor/model/model.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::profiler {

/// 0, 1, ... for each layer of `model`.
[[nodiscard]] std::vector<int> all_layers(const model::Model& model);

/// Indices of the inputs that some layer reads, ascending. A batch holds the tensors of these inputs, in this order.
[[nodiscard]] std::vector<int> inputs_read(const model::Model& model);

/// `model`, each of whose layers calls `begin` with its number right before its forward.
[[nodiscard]] model::Model announcing(model::Model model, const std::function<void(int layer)>& begin);

/// The outputs of each layer for `batch`, with their autograd graph.
[[nodiscard]] std::vector<std::vector<at::Tensor>> layer_outputs(const model::Model& model,
                                                                 const std::vector<at::Tensor>& batch,
                                                                 std::uint64_t seed, stage::Placement placement);

/// The layers and edges of `model`, without times: inputs as in `batch`, outputs as in `outputs`, both for a microbatch
/// of `samples`; parameters and tied parameters. An input that no layer reads has the shape that the model declares, or
/// no output at all if the input is derived.
[[nodiscard]] Graph model_graph(const model::Model& model, const std::vector<at::Tensor>& batch,
                                const std::vector<std::vector<at::Tensor>>& outputs, std::int64_t samples);

}  // namespace stagecraft::profiler
