#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "executor/device/ranges.h"
#include "executor/stage/stage_program.h"
#include "profiler/kernels/trace.h"

namespace stagecraft::profiler {

/// Reports the layer of each autograd node right before the node runs. A node belongs to the layer whose forward
/// created it, identified by the interval of sequence numbers that this forward used; a gradient accumulation belongs
/// to the layer that holds the parameter. Forward and the call of backward must be on one thread; the nodes may run on
/// others. At most one watcher may exist per thread.
class BackwardWatcher {
 public:
  /// `on_node(layer, phase)` is called for each node, on the thread that will run it; phase is Backward or Accumulate.
  /// It is not called for a node without a layer. While a node runs, the NVTX range ranges[layer] is open, unless
  /// `ranges` is empty.
  BackwardWatcher(const std::vector<stage::Parameter>& parameters, std::function<void(int layer, Phase phase)> on_node,
                  std::vector<device::RangeName> ranges = {});
  ~BackwardWatcher();
  BackwardWatcher(const BackwardWatcher&) = delete;
  BackwardWatcher& operator=(const BackwardWatcher&) = delete;

  /// Must be called right before and right after each layer's forward.
  void begin(int layer);
  void end(int layer);
  /// Must be called right before and right after the backward.
  void begin_backward();
  void end_backward();
  /// Forgets all forwards so far.
  void reset();
  /// Nodes since the last reset that could not be assigned to a layer.
  [[nodiscard]] std::int64_t unmapped() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace stagecraft::profiler
