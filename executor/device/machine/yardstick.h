#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

#include "costmodel/conditions.h"

namespace stagecraft::device {

/// A piece of work that is always the same. `run` returns when it is done, on a GPU too.
struct FixedWork {
  std::string name;  ///< YardstickTimes::work
  std::function<void()> run;
};

/// A matrix product and a copy on `device`, by this thread with LibTorch's current number of threads. On a processor
/// they take less than a millisecond together; on a GPU each is repeated 20 times, and the GPU first computes for a
/// tenth of a second, so that its clocks are up. They hold their tensors.
[[nodiscard]] std::vector<FixedWork> fixed_works(c10::Device device);

/// Times fixed work before, during and after a measurement. Not thread-safe.
class YardstickMeter {
 public:
  /// Makes the works of one reading, which are released after it: nothing is held in between.
  using MakeWorks = std::function<std::vector<FixedWork>()>;

  /// `now` gives the seconds of a steady clock.
  YardstickMeter(std::string device, int threads, MakeWorks make, std::function<double()> now);

  /// Takes a reading: each work once to warm up, then the median of 15 runs.
  void read();
  /// Takes a reading if the last one is long enough ago: four seconds, or 200 times what it took.
  void read_if_due();
  /// All readings so far; there must be at least one.
  [[nodiscard]] Yardstick result() const;

 private:
  std::string device_;
  int threads_;
  MakeWorks make_;
  std::function<double()> now_;
  std::vector<std::string> names_;
  std::vector<std::vector<double>> readings_;  ///< by work, in order of time
  double last_end_ = 0;
  double last_took_ = 0;
};

/// A meter of fixed_works on `device` with `threads` threads, which LibTorch must be using, by the steady clock.
[[nodiscard]] YardstickMeter device_yardstick(c10::Device device, int threads);

}  // namespace stagecraft::device
