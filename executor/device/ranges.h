#pragma once

#include <cstdint>
#include <string>

// Ranges of time by name for tools that listen to NVTX, such as Nsight Systems: domain "stagecraft". No effect if built
// without the CUDA headers. A range costs a few nanoseconds while no tool listens.

namespace stagecraft::device {

/// A name registered with NVTX: cheap to copy, valid as long as the process.
struct RangeName {
  void* handle = nullptr;
  friend bool operator==(const RangeName&, const RangeName&) = default;
};

/// Registers `text`. Do this once, ahead of use: tools keep every registered text.
[[nodiscard]] RangeName range_name(const std::string& text);

/// Opens a range inside the open ranges of this thread; `number` (a step, a microbatch) is its payload.
void push_range(RangeName name, std::int64_t number) noexcept;
/// Closes this thread's innermost range. For code without a scope for a ScopedRange.
void pop_range() noexcept;

/// A range as long as a scope.
class ScopedRange {
 public:
  explicit ScopedRange(RangeName name, std::int64_t number = 0) noexcept { push_range(name, number); }
  ~ScopedRange() { pop_range(); }
  ScopedRange(const ScopedRange&) = delete;
  ScopedRange& operator=(const ScopedRange&) = delete;
};

}  // namespace stagecraft::device
