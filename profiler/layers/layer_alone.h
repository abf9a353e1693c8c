#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "executor/model/model.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::profiler {

/// One layer of a model as a separate stage, with what it reads in an iteration over `batch`. `outputs` are the outputs
/// of all layers in that iteration, see layer_outputs.
struct LayerAlone {
  LayerAlone(const model::Model& model, int layer, const std::vector<at::Tensor>& batch,
             const std::vector<std::vector<at::Tensor>>& outputs, std::uint64_t seed, stage::Placement placement);

  stage::StageProgram program;
  std::vector<at::Tensor> inputs;     ///< from other layers
  std::vector<at::Tensor> data;       ///< from the batch
  std::vector<at::Tensor> gradients;  ///< ones, for each output that has a gradient
};

/// Whether a backward of `layer` has a gradient to send to another layer.
[[nodiscard]] bool sends_gradient(const model::Model& model, int layer,
                                  const std::vector<std::vector<at::Tensor>>& outputs);

}  // namespace stagecraft::profiler
