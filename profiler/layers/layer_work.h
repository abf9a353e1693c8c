#pragma once

#include <memory>
#include <vector>

#include "executor/stage/stage_program.h"
#include "profiler/layers/operator_work.h"
#include "profiler/subject/backward_watcher.h"
#include "profiler/subject/subject.h"

namespace stagecraft::profiler {

/// Counts the work of each layer of one iteration from the operators that LibTorch runs and their shapes, built-in or
/// imported alike. An operator without a kernel counts as those that it calls, unless work_of has a formula for it. In
/// the backward an operator belongs to the layer of the autograd node that runs; adding up gradients between two nodes
/// belongs to the first. Observes the forward and backward of this thread, and autograd's own threads. At most one
/// counter may exist per thread, and no other BackwardWatcher.
class LayerWorkCounter : public stage::LayerObserver {
 public:
  LayerWorkCounter(std::size_t layers, const std::vector<stage::Parameter>& parameters);
  ~LayerWorkCounter() override;
  LayerWorkCounter(const LayerWorkCounter&) = delete;
  LayerWorkCounter& operator=(const LayerWorkCounter&) = delete;
  void begin(int layer) override;
  void end(int layer) override;
  /// Must be called right before and right after the backward.
  void begin_backward();
  void end_backward();

  /// By layer.
  [[nodiscard]] const std::vector<Work>& forward() const;
  [[nodiscard]] const std::vector<Work>& backward() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::unique_ptr<BackwardWatcher> watcher_;
};

/// The work of each layer for one microbatch.
struct WorkByLayer {
  std::vector<Work> forward;
  std::vector<Work> backward;
};

/// Runs forward and backward of a model with `layers` layers over `batch`, and counts. Gradients are added to existing
/// ones, as for every microbatch of a step except the first: the first time, an iteration before it makes them.
[[nodiscard]] WorkByLayer count_work(Subject& subject, std::size_t layers, const std::vector<at::Tensor>& batch);

}  // namespace stagecraft::profiler
