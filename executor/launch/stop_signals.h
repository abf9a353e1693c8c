#pragma once

#include <csignal>

#include <atomic>
#include <thread>

namespace stagecraft::launch {

/// While it exists, the first SIGINT or SIGTERM asks the process to stop instead of ending it; a second one ends it
/// immediately, with status 128 + signal. Construct it before anything starts other threads, as LibTorch does when it
/// computes: a thread that exists already receives the signals, and ends the process.
class StopSignals {
 public:
  StopSignals();
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
