#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "executor/stage/optimizer.h"
#include "executor/stage/stage_program.h"
#include "profiler/watch.h"

namespace stagecraft {

/// Times whole steps that nobody watches: on a host clock, or on a device's stream by events.
class StepTimer {
 public:
  explicit StepTimer(c10::Device device);
  void begin();
  void end();
  /// Seconds of the steps since the last call. The device must have done all work.
  [[nodiscard]] std::vector<double> take();

 private:
  std::unique_ptr<Marks> marks_;
};

/// A model as one stage, with its optimizer at learning rate 0, so that the numbers stay tame while the work is the
/// same. Gradients accumulate into existing buffers, as they do for all but the first microbatch of a step.
class Subject {
 public:
  /// `update_by_layer`: under a watch the update goes layer by layer. Otherwise it is one for all parameters, as in a
  /// run, in a part of the layer 0.
  Subject(const Model& model, const OptimizerOptions& optimizer, std::uint64_t seed, Placement placement,
          bool update_by_layer);

  [[nodiscard]] StageProgram& program() { return program_; }
  /// Forward, backward and update as a run does them; `timer` sees them, and not the clearing of gradients before.
  void iterate(const std::vector<at::Tensor>& batch, int step, StepTimer& timer);
  /// The same under a watch.
  void watch(const std::vector<at::Tensor>& batch, int step, Watch& watch);
  /// Forward and backward, each layer's memory observed.
  void observe(const std::vector<at::Tensor>& batch, LayerObserver& forward,
               const std::function<void()>& before_backward, const std::function<void()>& after_backward);
  void clear_gradients();

 private:
  StageProgram program_;
  RangeName plain_range_ = range_name("iteration");
  RangeName watched_range_ = range_name("watched iteration");
  std::unique_ptr<Optimizer> whole_;
  std::vector<std::pair<int, std::unique_ptr<Optimizer>>> layers_;
};

}  // namespace stagecraft
