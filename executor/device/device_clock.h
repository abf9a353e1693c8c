#pragma once

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <functional>
#include <memory>
#include <vector>

namespace stagecraft::device {

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

}  // namespace stagecraft::device
