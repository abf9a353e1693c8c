#pragma once

#include <algorithm>
#include <chrono>
#include <functional>

#include "costmodel/units.h"

namespace stagecraft::partitioner {

/// The time limit of a search, whose parts each go on until some share of it has passed.
class SearchTime {
 public:
  explicit SearchTime(Seconds limit) : limit_(limit) {}

  [[nodiscard]] Seconds passed() const {
    return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count());
  }
  [[nodiscard]] bool is_past(double share) const { return passed() > limit_ * share; }

  /// From now on shares are those of the time that is left, but of no less than half.
  void start_again() {
    const Seconds passed_now = passed();
    before_ += passed_now;
    limit_ = std::max(limit_ / 2, limit_ - passed_now);
    start_ = std::chrono::steady_clock::now();
  }

  /// When all of the search ends, since it began.
  [[nodiscard]] Seconds end() const { return before_ + limit_; }

  /// What is under way may go on up to this share. If it is not done by then, the search was cut off.
  void allow(double share) {
    share_ = share;
    is_needed_ = true;
  }
  /// The same for what may end at any time, such as a search for better plans that nothing depends on.
  void allow_some(double share) {
    share_ = share;
    is_needed_ = false;
  }
  [[nodiscard]] double allowed() const { return share_; }
  /// Whether what is under way has to end.
  [[nodiscard]] bool is_up() {
    const bool up = is_past(share_);
    if (up && is_needed_) cut_off();
    return up;
  }
  /// is_up(), for what asks now and then whether to stop. Must not outlive the time.
  [[nodiscard]] std::function<bool()> stop() {
    return [this] { return is_up(); };
  }

  /// Something was left out for want of time.
  void cut_off() { was_cut_off_ = true; }
  [[nodiscard]] bool was_cut_off() const { return was_cut_off_; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Seconds limit_;
  Seconds before_;  ///< what had passed when it started again
  double share_ = 1;
  bool is_needed_ = true;
  bool was_cut_off_ = false;
};

}  // namespace stagecraft::partitioner
