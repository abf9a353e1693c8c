#pragma once

#include <functional>
#include <set>
#include <string>

#include "costmodel/units.h"

namespace stagecraft::partitioner {

/// The time limit of a search, whose parts each go on until some share of it has passed. Time is that for which the
/// calling thread had a processor: other programs do not take it away.
///
/// A long search has rounds, in which all parts get six times as much time as in the one before. So a search with a
/// longer limit begins like one with a shorter limit, and finds what that finds.
class SearchTime {
 public:
  explicit SearchTime(Seconds limit);

  /// Since the round began.
  [[nodiscard]] Seconds passed() const;
  [[nodiscard]] bool is_past(double share) const { return passed() > limit_ * share; }

  /// The first round begins. It and those that follow have the time that is left, but no less than half.
  void begin_rounds();
  /// The next round begins, if this one was cut off and time is left; otherwise false.
  bool next_round();
  [[nodiscard]] int round() const { return round_; }

  /// When all of the search ends, since it began.
  [[nodiscard]] Seconds end() const { return before_ + left_; }

  /// The part that is under way may go on up to this share. If it is not done by then, the search was cut off.
  void allow(double share, std::string part);
  /// The same for what may end at any time, such as a search for better plans that nothing depends on.
  void allow_some(double share);
  [[nodiscard]] double allowed() const { return share_; }
  /// Whether what is under way has to end.
  [[nodiscard]] bool is_up();
  /// is_up(), for what asks now and then whether to stop. Must not outlive the time.
  [[nodiscard]] std::function<bool()> stop() {
    return [this] { return is_up(); };
  }

  /// Something of this part was left out for want of time.
  void cut_off(std::string part) { cut_.insert(std::move(part)); }
  [[nodiscard]] bool was_cut_off() const { return !cut_.empty(); }
  /// Which parts were, in this round.
  [[nodiscard]] const std::set<std::string>& cut() const { return cut_; }

 private:
  Seconds start_;   ///< of the round, on the thread's clock
  Seconds before_;  ///< what had passed when the rounds began
  Seconds left_;    ///< for all rounds
  Seconds limit_;   ///< of the round
  int round_ = 0;
  double share_ = 1;
  std::string part_;  ///< that is needed; empty: none is
  std::set<std::string> cut_;
};

}  // namespace stagecraft::partitioner
