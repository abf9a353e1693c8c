#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/model/model.h"
#include "executor/stage/stage_program.h"
#include "profiler/subject/statistics.h"

namespace stagecraft::profiler {

/// Blocks the current stream of a device, so that work launched meanwhile runs without gaps once the gate opens.
class StreamGate {
 public:
  virtual ~StreamGate() = default;
  /// Work launched from now on waits for open(), but at most 50 ms: a launch that waits for the stream must not block
  /// forever.
  virtual void close() = 0;
  virtual void open() = 0;
};

/// A gate for `device`. On a CPU, where a call returns when its work is done, it does nothing. Throws DeviceError if
/// the device fails.
[[nodiscard]] std::unique_ptr<StreamGate> make_stream_gate(c10::Device device);

/// One layer of a model as a separate stage, with what it reads in an iteration over `batch`. `outputs` are the outputs
/// of all layers in that iteration, see layer_outputs.
struct LayerAlone {
  LayerAlone(const model::Model& model, int layer, const std::vector<at::Tensor>& batch,
             const std::vector<std::vector<at::Tensor>>& outputs, std::uint64_t seed, stage::ComputePlace placement);

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
                                                       std::uint64_t seed, stage::ComputePlace placement, Bytes cache,
                                                       const StoppingRule& rule,
                                                       const std::function<void(const std::string&)>& progress = {});

/// The backward of a layer that runs alone, whole and in the executor's two parts.
struct SplitTime {
  Timing whole;
  Timing inputs;
  Timing weights;         ///< right after the inputs
  Timing late;            ///< of the weights, after the cache was overwritten
  bool separable = true;  ///< BackwardParts::separable; if not, `inputs` is all of it
  friend bool operator==(const SplitTime&, const SplitTime&) = default;
};

/// Times of each layer of `model`, whole and split in turn, under the conditions of isolated_times, whose arguments
/// these are. On CPUs too, the cache is overwritten before SplitTime::late. Absent for a layer without trainable
/// parameters, or without a gradient to send to another layer: there is nothing to split.
[[nodiscard]] std::vector<std::optional<SplitTime>> split_times(
    const model::Model& model, const std::vector<at::Tensor>& batch,
    const std::vector<std::vector<at::Tensor>>& outputs, std::uint64_t seed, stage::ComputePlace placement, Bytes cache,
    const StoppingRule& rule, const std::function<void(const std::string&)>& progress = {});

/// The parts of a layer's backward that takes `backward` in a step: those of `alone`, scaled by one factor, so that its
/// whole would take `backward`. A layer alone finds its data in caches that other layers empty in a step; the factor
/// assumes that this costs both parts alike. The part of the weights takes at least `alone.late`: in a run, it comes
/// after the inputs' parts of the whole stage.
[[nodiscard]] BackwardParts backward_parts(const Timing& backward, const SplitTime& alone);

/// The parts of a backward with nothing to split: all of it is for the weights if the layer sends no gradient to other
/// layers, else for the inputs.
[[nodiscard]] BackwardParts backward_parts(const Timing& backward, bool sends_gradient);

}  // namespace stagecraft::profiler
