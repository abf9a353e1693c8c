#include "executor/device/memory_tracker.h"

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

namespace stagecraft::device {

struct MemoryTracker::Counter : c10::MemoryReportingInfoBase {
  explicit Counter(c10::DeviceType kind) : device(kind) {}
  c10::DeviceType device;
  std::mutex mutex;
  std::unordered_map<void*, std::int64_t> blocks;
  std::int64_t live = 0;
  std::int64_t peak = 0;

  bool memoryProfilingEnabled() const override { return true; }
  void reportMemoryUsage(void* ptr, std::int64_t alloc_size, std::size_t, std::size_t, c10::Device where) override;

  void add(void* ptr, std::int64_t bytes) {
    const std::lock_guard lock(mutex);
    blocks[ptr] = bytes;
    live += bytes;
    peak = std::max(peak, live);
  }
  bool remove(void* ptr) {
    const std::lock_guard lock(mutex);
    const auto it = blocks.find(ptr);
    if (it == blocks.end()) return false;
    live -= it->second;
    blocks.erase(it);
    return true;
  }
};

namespace {

/// All existing counters, to find a block that another rank's thread frees.
struct Registry {
  std::mutex mutex;
  std::vector<void*> counters;
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

void MemoryTracker::Counter::reportMemoryUsage(void* ptr, std::int64_t alloc_size, std::size_t, std::size_t,
                                               c10::Device where) {
  if (where.type() != device) return;
  if (alloc_size > 0) {
    add(ptr, alloc_size);
    return;
  }
  if (remove(ptr)) return;
  const std::lock_guard lock(registry().mutex);
  for (void* other : registry().counters) {
    if (other != this && static_cast<Counter*>(other)->remove(ptr)) return;
  }
}

struct MemoryTracker::Scope::Guard {
  explicit Guard(std::shared_ptr<c10::DebugInfoBase> info)
      : guard(c10::DebugInfoKind::PROFILER_STATE, std::move(info)) {}
  c10::DebugInfoGuard guard;
};

MemoryTracker::MemoryTracker(c10::DeviceType device) : counter_(std::make_shared<Counter>(device)) {
  const std::lock_guard lock(registry().mutex);
  registry().counters.push_back(counter_.get());
}

MemoryTracker::~MemoryTracker() {
  const std::lock_guard lock(registry().mutex);
  std::erase(registry().counters, counter_.get());
}

Bytes MemoryTracker::live() const {
  const std::lock_guard lock(counter_->mutex);
  return Bytes(counter_->live);
}

Bytes MemoryTracker::peak() const {
  const std::lock_guard lock(counter_->mutex);
  return Bytes(counter_->peak);
}

void MemoryTracker::reset_peak() {
  const std::lock_guard lock(counter_->mutex);
  counter_->peak = counter_->live;
}

MemoryTracker::Scope::Scope(MemoryTracker& tracker) : guard_(std::make_unique<Guard>(tracker.counter_)) {}
MemoryTracker::Scope::~Scope() = default;

}  // namespace stagecraft::device
