#pragma once

#include <c10/core/DeviceType.h>

#include <optional>

#include "costmodel/units.h"
#include "executor/device/memory_tracker.h"

namespace stagecraft::run {

/// The tensor memory of one rank, counted from the start until `stop`.
class MemoryCount {
 public:
  explicit MemoryCount(c10::DeviceType device) : tracker_(device), counting_(std::in_place, tracker_) {}

  /// Calls `work`; what it allocates does not count for the rank. Not after `stop`.
  template <class Work>
  void uncounted(const Work& work) {
    stop();
    work();
    counting_.emplace(tracker_);
  }
  /// Ends counting; no effect if it has ended.
  void stop() { counting_.reset(); }

  /// Bytes allocated now, and the peak since the start.
  [[nodiscard]] Bytes live() const { return tracker_.live(); }
  [[nodiscard]] Bytes peak() const { return tracker_.peak(); }

 private:
  device::MemoryTracker tracker_;
  std::optional<device::MemoryTracker::Scope> counting_;
};

}  // namespace stagecraft::run
