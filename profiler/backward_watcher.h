#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "executor/device/ranges.h"
#include "executor/stage/stage_program.h"
#include "profiler/kernels/tag.h"

namespace stagecraft {

/// Tells whose work an autograd node is, right before it runs. A node belongs to the layer whose forward made it, told
/// by the interval of sequence numbers that the layer's forward used; a gradient accumulation belongs to the layer that
/// holds the parameter. Forward and the call of backward must be one thread's; the nodes may run on others.
/// One at a time on a thread.
class BackwardWatcher {
 public:
  /// `on_node(layer, phase)` hears the layer of each node, on the thread that will run it; phase is Backward or
  /// Accumulate. Of a node that belongs to nobody it hears nothing. While a node runs, its
  /// layer's range of `ranges` is open for tools that listen to NVTX; without any there are none.
  BackwardWatcher(const std::vector<Parameter>& parameters, std::function<void(int layer, Phase phase)> on_node,
                  std::vector<RangeName> ranges = {});
  ~BackwardWatcher();
  BackwardWatcher(const BackwardWatcher&) = delete;
  BackwardWatcher& operator=(const BackwardWatcher&) = delete;

  /// Around each layer's forward.
  void begin(int layer);
  void end(int layer);
  /// Around the backward.
  void begin_backward();
  void end_backward();
  /// Forgets the forwards so far.
  void reset();
  /// Nodes since the last reset that could not be given to a layer.
  [[nodiscard]] std::int64_t unmapped() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace stagecraft
