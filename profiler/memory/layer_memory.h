#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "executor/device/memory_tracker.h"
#include "executor/stage/stage_program.h"
#include "profiler/subject/backward_watcher.h"

namespace stagecraft::profiler {

/// Bytes that each layer allocates and releases in one iteration, by a tracker that counts on this thread.
class LayerMemory : public stage::LayerObserver {
 public:
  LayerMemory(std::size_t layers, const std::vector<stage::Parameter>& parameters, device::MemoryTracker& tracker);
  void begin(int layer) override;
  void end(int layer) override;
  /// Must be called right before and right after the backward.
  void begin_backward();
  void end_backward();

  /// Bytes that each layer's forward left allocated; negative if it released more than it allocated.
  [[nodiscard]] const std::vector<std::int64_t>& growth() const { return growth_; }
  /// Largest number of bytes allocated at the same time. The tracker's own peak is reset with each layer.
  [[nodiscard]] std::int64_t peak() const { return std::max(peak_, tracker_.peak().value); }
  /// The most bytes that each layer needed temporarily, in forward or backward, beyond what was allocated before or
  /// after.
  [[nodiscard]] const std::vector<std::int64_t>& transient() const { return transient_; }

 private:
  void switch_to(int layer);
  void begin_peak();

  device::MemoryTracker& tracker_;
  std::vector<std::int64_t> growth_;
  std::vector<std::int64_t> transient_;
  BackwardWatcher watcher_;
  int current_ = -1;
  std::int64_t live_ = 0;
  std::int64_t peak_ = 0;
};

}  // namespace stagecraft::profiler
