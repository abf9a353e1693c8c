#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "costmodel/timeline.h"

namespace stagecraft::run {

/// Moments of a rank's work in seconds of the run's clock. On a CPU, a mark is the time of the call. On a GPU, it is
/// the time at which this thread's current stream reaches it, which is only known later; a call never waits.
class DeviceClock {
 public:
  /// `now` gives the seconds of the run's clock.
  DeviceClock(c10::Device device, std::function<double()> now);

  struct Moment {
    double seconds = 0;  ///< on a CPU
    int event = -1;      ///< on a GPU
  };
  [[nodiscard]] Moment mark();
  /// Whether the mark has been reached. Marks of one stream are reached in order.
  [[nodiscard]] bool is_reached(const Moment& moment) const;
  /// Its time. Call once per mark, after it was reached, in the order of the marks.
  [[nodiscard]] double seconds(const Moment& moment);

 private:
  c10::Device device_;
  std::function<double()> now_;
  std::vector<std::unique_ptr<c10::Event>> events_;
  std::vector<int> idle_;
  int base_ = -1;  ///< an event whose time is known; other times are relative to it
  double base_seconds_ = 0;
};

/// Records when a rank did what. On a GPU, a span is known once the device has passed both of its marks.
class SpanRecorder {
 public:
  /// `now` returns seconds since the run's start; `room` spans are recorded without allocating.
  SpanRecorder(int rank, c10::Device device, std::function<double()> now, std::size_t room);

  [[nodiscard]] DeviceClock::Moment mark() { return clock_.mark(); }
  /// Records `action` of `step` from `start` until now.
  void record(const Action& action, std::int64_t step, DeviceClock::Moment start);
  /// Moves what the device has finished to the spans that take returns.
  void settle();
  /// Spans since the last call, in their order; on a GPU, those known without waiting.
  [[nodiscard]] std::vector<Span> take();
  /// The same for everything recorded: waits for a GPU.
  [[nodiscard]] std::vector<Span> take_all();

 private:
  struct Unsettled {
    Span span;
    DeviceClock::Moment start;
    DeviceClock::Moment end;
  };
  int rank_;
  c10::Device device_;
  DeviceClock clock_;
  std::deque<Unsettled> unsettled_;  // spans whose marks have not been reached
  std::vector<Span> spans_;
};

}  // namespace stagecraft::run
