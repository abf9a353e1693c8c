#pragma once

#include <csignal>

#include <atomic>
#include <thread>

namespace stagecraft::launch {

/// While it exists, the first SIGINT or SIGTERM asks the process to stop instead of ending it; a second one ends it
/// immediately, with status 128 + signal. Construct before other threads are started, which would otherwise receive the
/// signals.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// True once a signal has arrived. Thread-safe.
  [[nodiscard]] bool asked() const { return asked_; }

 private:
  sigset_t before_{};
  std::atomic<bool> asked_ = false;
  std::jthread waiting_;
};

}  // namespace stagecraft::launch
