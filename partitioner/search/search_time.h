#pragma once

#include <functional>
#include <set>
#include <string>

#include "costmodel/units.h"

namespace stagecraft::partitioner {

/// The time limit of a search whose parts each end when some share of the limit has passed. Only time for which the
/// calling thread had a processor counts, so that other programs do not shorten a search.
///
/// A long search has rounds. In each round, all parts get SearchTuning::kRoundFactor times as much time as in the round
/// before. So a search with a longer limit begins like one with a shorter limit, and finds at least the same plans.
class SearchTime {
 public:
  explicit SearchTime(Seconds limit);

  /// The time since the round began.
  [[nodiscard]] Seconds passed() const;
  [[nodiscard]] bool is_past(double share) const { return passed() > limit_ * share; }

  /// Begins the first round. All rounds together have the time that is left, but at least half of the limit.
  void begin_rounds();
  /// Begins the next round if this one was cut off and time is left; otherwise returns false.
  bool next_round();
  [[nodiscard]] int round() const { return round_; }

  /// The time from the beginning to the end of the whole search.
  [[nodiscard]] Seconds end() const { return before_ + left_; }

  /// Lets the current part go on up to this share. If the part is not done by then, the search was cut off.
  void allow(double share, std::string part);
  /// The same for a part that may end at any time, such as a search for better plans that nothing depends on.
  void allow_some(double share);
  [[nodiscard]] double allowed() const { return share_; }
  /// Whether the current part has to end.
  [[nodiscard]] bool is_up();
  /// is_up() as a function, for searches that ask now and then whether to stop. Must not outlive this object.
  [[nodiscard]] std::function<bool()> stop() {
    return [this] { return is_up(); };
  }

  /// Notes that some of this part was left out for want of time.
  void cut_off(std::string part) { cut_.insert(std::move(part)); }
  [[nodiscard]] bool was_cut_off() const { return !cut_.empty(); }
  /// The parts that were cut off in this round.
  [[nodiscard]] const std::set<std::string>& cut() const { return cut_; }

 private:
  Seconds start_;   ///< of the round, on the thread's clock
  Seconds before_;  ///< the time that had passed when the rounds began
  Seconds left_;    ///< the time for all rounds
  Seconds limit_;   ///< of the round
  int round_ = 0;
  double share_ = 1;
  std::string part_;  ///< the current part, if its end cuts the search off; else empty
  std::set<std::string> cut_;
};

}  // namespace stagecraft::partitioner
