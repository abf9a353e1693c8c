#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "costmodel/timeline.h"
#include "executor/device/device_clock.h"

namespace stagecraft::run {

/// Records when a rank did what. On a GPU, a span is known once the device has passed both of its marks.
class SpanRecorder {
 public:
  /// `now` returns seconds since the run's start; `room` spans are recorded without allocating.
  SpanRecorder(int rank, c10::Device device, std::function<double()> now, std::size_t room);

  [[nodiscard]] device::DeviceClock::Moment mark() { return clock_.mark(); }
  /// Records `action` of `step` from `start` until now.
  void record(const Action& action, std::int64_t step, device::DeviceClock::Moment start);
  /// Moves what the device has finished to the spans that take returns.
  void settle();
  /// Spans since the last call, in their order; on a GPU, those known without waiting.
  [[nodiscard]] std::vector<Span> take();
  /// The same for everything recorded: waits for a GPU.
  [[nodiscard]] std::vector<Span> take_all();

 private:
  struct Unsettled {
    Span span;
    device::DeviceClock::Moment start;
    device::DeviceClock::Moment end;
  };
  int rank_;
  c10::Device device_;
  device::DeviceClock clock_;
  std::deque<Unsettled> unsettled_;  // spans whose marks have not been reached
  std::vector<Span> spans_;
};

}  // namespace stagecraft::run
