#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "executor/model/model.h"
#include "executor/stage/stage_program.h"
#include "profiler/subject/statistics.h"

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

/// Times of one layer that runs alone.
struct IsolatedTime {
  Timing forward;
  Timing backward;
  friend bool operator==(const IsolatedTime&, const IsolatedTime&) = default;
};

/// Times of each layer of `model`, run alone repeatedly on its inputs in an iteration over `batch`. `outputs` are the
/// outputs of all layers in that iteration, see layer_outputs. On a GPU, runs are launched behind a closed gate, so
/// that no run waits for its launch, and the second-level cache of `cache` bytes is overwritten between runs. Each
/// layer is measured for at most about `rule.most_seconds`. `progress` is called with the name of each layer before it
/// runs.
[[nodiscard]] std::vector<IsolatedTime> isolated_times(const model::Model& model, const std::vector<at::Tensor>& batch,
                                                       const std::vector<std::vector<at::Tensor>>& outputs,
                                                       std::uint64_t seed, stage::Placement placement, Bytes cache,
                                                       const StoppingRule& rule,
                                                       const std::function<void(const std::string&)>& progress = {});

}  // namespace stagecraft::profiler
