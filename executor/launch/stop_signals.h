#pragma once

#include <csignal>

#include <atomic>
#include <thread>

namespace stagecraft {

/// While it lives, the first SIGINT or SIGTERM asks the process to stop instead of ending it; a second one ends it at
/// once, with status 128 + signal. To be made before other threads are started, which would take the signals otherwise.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;
  /// True once a signal has come. Any thread may ask.
  [[nodiscard]] bool asked() const { return asked_; }

 private:
  sigset_t before_{};
  std::atomic<bool> asked_ = false;
  std::jthread waiting_;
};

}  // namespace stagecraft
