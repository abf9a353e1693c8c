#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {

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
          stage::Placement placement, bool update_by_layer);

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
