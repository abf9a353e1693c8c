#pragma once

#include <csignal>

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

namespace stagecraft::launch {

/// While it exists, the first SIGINT or SIGTERM asks the process to stop instead of ending it. A later one ends it
/// immediately, with status 128 + signal, unless it arrives within kOneRequest of the first: then it is the same
/// request, repeated by a launcher or by coreutils' timeout, which signal a process and then its group. Once
/// asked, the signals stay blocked afterwards too, so that such a repeat does not change how the process ends.
/// Construct it before anything starts other threads, as LibTorch does when it computes: a thread that exists already
/// receives the signals, and ends the process.
class StopSignals {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::seconds kOneRequest{2};

  /// `now` tells the time; it is called by another thread.
  explicit StopSignals(std::function<Clock::time_point()> now = Clock::now);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// True once a signal has arrived. Thread-safe.
  [[nodiscard]] bool asked() const { return number_ != 0; }
  /// The signal that asked; 0: none has. Thread-safe.
  [[nodiscard]] int number() const { return number_; }

 private:
  sigset_t before_{};
  std::atomic<int> number_ = 0;
  std::jthread waiting_;
};

}  // namespace stagecraft::launch
