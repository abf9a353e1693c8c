#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "costmodel/units.h"

namespace stagecraft {

/// One line on standard error that is overwritten as work continues and removed at the end. Prints nothing unless
/// standard error shows_progress (table.h).
class ProgressLine {
 public:
  using Clock = std::chrono::steady_clock;
  /// `now` tells the time.
  explicit ProgressLine(std::function<Clock::time_point()> now = Clock::now);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;
  /// At most ten times a second; more frequent calls do nothing. Text that does not fit into the terminal's line is
  /// cut.
  void show(const std::string& text);
  /// Removes the line, so that others can be printed; the next show prints it again.
  void clear();
  [[nodiscard]] bool visible() const { return visible_; }

 private:
  bool visible_;
  bool shown_ = false;
  std::function<Clock::time_point()> now_;
  Clock::time_point last_;
};

/// Work that takes less shows no progress.
inline constexpr Seconds kQuiet{0.5};

/// A ProgressLine that a thread of its own redraws ten times a second, so that the work need not call anything while it
/// goes on. If the line is not visible, no thread is started.
class LiveProgress {
 public:
  /// `text`, which that thread calls, gives the line after so much time; empty: shows nothing yet. It is shown from
  /// `quiet` on.
  explicit LiveProgress(std::function<std::string(Seconds passed)> text, Seconds quiet = kQuiet);
  ~LiveProgress() { end(); }
  LiveProgress(const LiveProgress&) = delete;
  LiveProgress& operator=(const LiveProgress&) = delete;
  /// Removes the line for good. Call it before something else is printed; a second call does nothing.
  void end();

 private:
  void redraw(const std::stop_token& stop, Seconds quiet);

  std::function<std::string(Seconds passed)> text_;
  ProgressLine line_;
  std::mutex mutex_;
  std::condition_variable_any ended_;
  std::jthread thread_;
};

/// LiveProgress of work whose done share is known.
class ShareProgress {
 public:
  /// `what` is being done: "predicting".
  explicit ShareProgress(std::string what, Seconds quiet = kQuiet);
  /// Says which share is done, from 0 to 1. From one thread; costs as much as a store.
  void tell(double done) { done_.store(done, std::memory_order_relaxed); }
  /// tell, as a function that must not outlive this object.
  [[nodiscard]] std::function<void(double)> teller() {
    return [this](double done) { tell(done); };
  }
  /// As LiveProgress::end.
  void end() { line_.end(); }

 private:
  std::atomic<double> done_ = 0;
  LiveProgress line_;
};

/// LiveProgress of work in steps that follow one another.
class StepProgress {
 public:
  /// `what` is being done: "proving".
  explicit StepProgress(std::string what, Seconds quiet = kQuiet);
  /// Says which step begins: "no deadlock". The line is as step_text gives it.
  void tell(const std::string& step);
  /// tell, as a function that must not outlive this object.
  [[nodiscard]] std::function<void(const std::string&)> teller() {
    return [this](const std::string& step) { tell(step); };
  }
  /// As LiveProgress::end.
  void end() { line_.end(); }

 private:
  std::mutex mutex_;
  std::string step_;
  LiveProgress line_;
};

/// "12 s"; with a limit "12 s of 2 min 0 s", or if that is short "1.2 of 3 s".
[[nodiscard]] std::string time_text(Seconds passed, const std::optional<Seconds>& limit = {});

/// "proving: no deadlock, 12 s"; without a step only `what`.
[[nodiscard]] std::string step_text(const std::string& what, const std::string& step, Seconds passed);

/// "predicting: 43 %, 12 s left": `passed` is how long the share took; the rest is assumed to take as long in
/// proportion. Without the time left below 1 %, without both at 0.
[[nodiscard]] std::string share_text(const std::string& what, double done, Seconds passed);

}  // namespace stagecraft
