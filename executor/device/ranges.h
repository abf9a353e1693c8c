#pragma once

#include <cstdint>
#include <string>

// Ranges of time by name for tools that listen to NVTX, such as Nsight Systems: domain "stagecraft". Built without the
// CUDA headers, nothing here does anything. They cost a few nanoseconds while no tool listens.

namespace stagecraft {

/// A name that NVTX has in its table: cheap to copy, lasts as long as the process.
struct RangeName {
  void* handle = nullptr;
  friend bool operator==(const RangeName&, const RangeName&) = default;
};

/// Registers `text`. To be done once, ahead: a tool keeps every text that it is given.
[[nodiscard]] RangeName range_name(const std::string& text);

/// Opens a range inside those that this thread has open; `number` (a step, a microbatch) is its payload.
void push_range(RangeName name, std::int64_t number) noexcept;
/// Closes the range that this thread opened last. For code that has no scope to tie a Range to.
void pop_range() noexcept;

/// A range as long as a scope.
class Range {
 public:
  explicit Range(RangeName name, std::int64_t number = 0) noexcept { push_range(name, number); }
  ~Range() { pop_range(); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace stagecraft
