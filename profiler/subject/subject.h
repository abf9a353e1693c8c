#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "costmodel/graph.h"
#include "executor/model/model.h"
#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"
#include "profiler/subject/watch.h"

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
                                                                 std::uint64_t seed, stage::ComputePlace placement);

/// The layers and edges of `model`, without times: inputs as in `batch`, outputs as in `outputs`, both for a microbatch
/// of `samples`; parameters and tied parameters. An input that no layer reads has the shape that the model declares, or
/// no output at all if the input is derived.
[[nodiscard]] Graph model_graph(const model::Model& model, const std::vector<at::Tensor>& batch,
                                const std::vector<std::vector<at::Tensor>>& outputs, std::int64_t samples,
                                const StateTypes& types = {});

/// Times whole unwatched steps: by a host clock on a CPU, by events on the stream of another device.
class StepTimer {
 public:
  explicit StepTimer(c10::Device device);
  void begin();
  void end();
  /// Seconds of each step since the last call. The device must have finished all work.
  [[nodiscard]] std::vector<double> take();

 private:
  std::unique_ptr<Marks> marks_;
};

/// A model as one stage, with its optimizer at learning rate 0: the work is that of training, but the parameters do not
/// diverge. Unless said otherwise, gradients accumulate into existing buffers, as they do for every microbatch of a
/// step except the first. Nothing clears them between iterations, as nothing does between microbatches; each update
/// halves them, so that they stay below those of one microbatch.
class Subject {
 public:
  /// If `update_by_layer`, a watched update runs layer by layer. Otherwise one update covers all parameters, as in a
  /// run, and counts as a part of layer 0.
  Subject(const model::Model& model, const stage::OptimizerOptions& optimizer, std::uint64_t seed,
          stage::ComputePlace placement, bool update_by_layer);

  [[nodiscard]] stage::StageProgram& program() { return program_; }
  /// Runs forward, backward and update as a run does. `timer` measures these.
  void iterate(const std::vector<at::Tensor>& batch, int step, StepTimer& timer);
  /// The same, watched by `watch`. If `creates_gradients`, the backward creates the gradients, as that of a step's
  /// first microbatch does.
  void watch(const std::vector<at::Tensor>& batch, int step, Watch& watch, bool creates_gradients = false);
  /// Runs forward and backward of `count` microbatches, whose gradients it adds up: all forwards first if `in_flight`,
  /// else each backward after its forward. `timer` measures them together.
  void run_microbatches(const std::vector<at::Tensor>& batch, int count, bool in_flight, StepTimer& timer);
  /// Clears the gradients, and runs forward and backward. `forward` observes the layers of the forward; the two
  /// functions are called right before and right after the backward.
  void observe(const std::vector<at::Tensor>& batch, stage::LayerObserver& forward,
               const std::function<void()>& before_backward, const std::function<void()>& after_backward);
  void clear_gradients();
  /// What it keeps between iterations: parameters, their gradients, the optimizer's state and buffers.
  [[nodiscard]] std::vector<at::Tensor> kept_tensors();

 private:
  stage::StageProgram program_;
  device::RangeName plain_range_ = device::range_name("iteration");
  device::RangeName watched_range_ = device::range_name("watched iteration");
  std::unique_ptr<stage::Optimizer> whole_;
  struct LayerUpdate {
    int layer;
    std::vector<stage::Parameter> parameters;
    std::unique_ptr<stage::Optimizer> optimizer;
  };
  std::vector<LayerUpdate> layers_;
};

}  // namespace stagecraft::profiler
