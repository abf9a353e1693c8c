#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "executor/device/memory_tracker.h"
#include "executor/stage/stage_program.h"
#include "profiler/backward_watcher.h"

namespace stagecraft {

/// What each layer does to a tracker's bytes in one iteration. `tracker` must be counting on this thread.
class LayerMemory : public LayerObserver {
 public:
  LayerMemory(std::size_t layers, const std::vector<Parameter>& parameters, MemoryTracker& tracker);
  void begin(int layer) override;
  void end(int layer) override;
  /// To be called right before and after the backward.
  void begin_backward();
  void end_backward();

  /// Bytes that each layer's forward left allocated: negative where it let go of more.
  [[nodiscard]] const std::vector<std::int64_t>& growth() const { return growth_; }
  /// The most bytes that were allocated at once. The tracker's own peak is begun anew with each layer.
  [[nodiscard]] std::int64_t peak() const { return std::max(peak_, tracker_.peak().value); }
  /// The most bytes on top of what was there before and after, in either direction.
  [[nodiscard]] const std::vector<std::int64_t>& transient() const { return transient_; }

 private:
  void switch_to(int layer);
  void begin_peak();

  MemoryTracker& tracker_;
  std::vector<std::int64_t> growth_;
  std::vector<std::int64_t> transient_;
  BackwardWatcher watcher_;
  int current_ = -1;
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace stagecraft
