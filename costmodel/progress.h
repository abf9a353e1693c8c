#pragma once

#include <string>

namespace stagecraft {

/// One line on standard error that is written over as work goes on, and taken away at the end. Says nothing where
/// standard error is not a terminal.
class ProgressLine {
 public:
  ProgressLine();
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// At most ten times a second; more frequent calls cost next to nothing.
  void show(const std::string& text);
  [[nodiscard]] bool visible() const { return terminal_; }

 private:
  bool terminal_;
  bool shown_ = false;
  double last_ = 0;
};

}  // namespace stagecraft
