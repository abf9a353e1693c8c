#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace stagecraft {

/// One line on standard error that is overwritten as work continues and removed at the end. Prints nothing if standard
/// error is not a terminal.
class ProgressLine {
 public:
  using Clock = std::chrono::steady_clock;
  /// `now` tells the time.
  explicit ProgressLine(std::function<Clock::time_point()> now = Clock::now);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// At most ten times a second; more frequent calls do nothing.
  void show(const std::string& text);
  /// Removes the line, so that others can be printed; the next show prints it again.
  void clear();
  [[nodiscard]] bool visible() const { return terminal_; }

 private:
  bool terminal_;
  bool shown_ = false;
  std::function<Clock::time_point()> now_;
  Clock::time_point last_;
};

}  // namespace stagecraft
