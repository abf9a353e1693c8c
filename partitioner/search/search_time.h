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
    limit_ = std::max(limit_ / 2, limit_ - passed());
    start_ = std::chrono::steady_clock::now();
  }

  /// What is under way may go on up to this share.
  void allow(double share) { share_ = share; }
  [[nodiscard]] double allowed() const { return share_; }
  [[nodiscard]] bool is_up() const { return is_past(share_); }
  /// is_up(), for what asks now and then whether to stop. Must not outlive the time.
  [[nodiscard]] std::function<bool()> stop() const {
    return [this] { return is_up(); };
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  Seconds limit_;
  double share_ = 1;
};

}  // namespace stagecraft::partitioner
