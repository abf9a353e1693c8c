#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <memory>

#include "costmodel/units.h"

namespace stagecraft::device {

/// Counts the tensor bytes that the threads of one rank hold on one kind of device, from LibTorch's allocators. A block
/// counts for the tracker under which it was allocated, no matter which thread frees it.
class MemoryTracker {
 public:
  explicit MemoryTracker(c10::DeviceType device = c10::DeviceType::CPU);
  ~MemoryTracker();
  MemoryTracker(const MemoryTracker&) = delete;
  MemoryTracker& operator=(const MemoryTracker&) = delete;

  /// Bytes allocated now, and the peak since the start or the last reset_peak.
  [[nodiscard]] Bytes live() const;
  [[nodiscard]] Bytes peak() const;
  void reset_peak();

  /// While it exists, allocations of this thread and of the autograd work that it starts count for the tracker.
  class Scope {
   public:
    explicit Scope(MemoryTracker& tracker);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    struct Guard;
    std::unique_ptr<Guard> guard_;
  };

 private:
  struct Counter;
  std::shared_ptr<Counter> counter_;
};

}  // namespace stagecraft::device
