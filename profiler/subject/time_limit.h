#pragma once

#include "profiler/subject/watch.h"

namespace stagecraft::profiler {

/// A time budget in seconds of the steady clock. It starts when it is built.
class TimeLimit {
 public:
  explicit TimeLimit(double seconds) : begin_(steady_seconds()), seconds_(seconds) {}
  [[nodiscard]] double spent() const { return steady_seconds() - begin_; }
  /// The time since it was built that it allows; less than what is spent ends it.
  void allow(double seconds) { seconds_ = seconds; }
  /// Negative once the time is up.
  [[nodiscard]] double left() const { return seconds_ - spent(); }

 private:
  double begin_;
  double seconds_;
};

}  // namespace stagecraft::profiler
