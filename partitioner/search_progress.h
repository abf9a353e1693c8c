#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "costmodel/units.h"

namespace stagecraft::partitioner {

/// How far the search for a plan is.
struct SearchState {
  std::string part;                         ///< "zb-h1 (2 of 6)", of work that asks several searches; empty: of one
  std::string search;                       ///< "optimal"; empty: none has begun
  Seconds passed;                           ///< since the search began
  std::optional<Seconds> limit = {};        ///< when it ends
  std::optional<Seconds> best = {};         ///< the shortest step of a plan that fits
  std::optional<Seconds> lower_bound = {};  ///< no plan that the search considers has a shorter step
  std::size_t done = 0, all = 0;            ///< things to try, if their number is known
  std::int64_t predicted = 0;               ///< plans
  double simulated = 0;                     ///< share of the plan that is being predicted; 0 unless that takes long
};

/// The progress that searches report, for a display in another thread. Reporting costs next to nothing: an uncontended
/// lock a few times per search, and an addition per predicted plan.
class SearchProgress {
 public:
  using Clock = std::chrono::steady_clock;
  /// `now` tells the time.
  explicit SearchProgress(std::function<Clock::time_point()> now = Clock::now) : now_(std::move(now)) {}

  /// The state now.
  [[nodiscard]] SearchState state() const;

  /// A plan that fits has this step, by whichever search.
  void found(Seconds step);
  /// A plan was predicted.
  void predicted();
  /// SearchState::simulated.
  void simulated(double share) { simulated_.store(share, std::memory_order_relaxed); }

 private:
  friend class ToldSearch;
  friend class ToldPart;
  template <class Change>
  void change(Change change_state) {
    const std::lock_guard lock(mutex_);
    change_state(state_);
  }

  std::function<Clock::time_point()> now_;
  mutable std::mutex mutex_;
  SearchState state_;
  Clock::time_point begin_;
  int searches_ = 0;  ///< under way, each within the one before
  std::atomic<std::int64_t> predicted_ = 0;
  std::atomic<double> simulated_ = 0;
};

/// A search that reports its progress while this object exists. A search inside another one reports only its plans,
/// because its limit and its bound are not those of the whole.
class ToldSearch {
 public:
  /// `progress` may be null. `name`: SearchState::search.
  ToldSearch(SearchProgress* progress, const std::string& name);
  ~ToldSearch();
  ToldSearch(const ToldSearch&) = delete;
  ToldSearch& operator=(const ToldSearch&) = delete;

  /// SearchState::limit.
  void ends_after(Seconds limit) const;
  /// No plan that the search considers has a shorter step.
  void proved(Seconds lower_bound) const;
  /// SearchState::done and all.
  void tried(std::size_t done, std::size_t all) const;

 private:
  SearchProgress* progress_ = nullptr;  ///< null for a search within another one
  SearchProgress* counted_;             ///< where it counts as a search
};

/// A part of work that asks several searches, as long as this object exists. Of a part of a part, both are named.
class ToldPart {
 public:
  /// `progress` may be null. `name`: SearchState::part.
  ToldPart(SearchProgress* progress, const std::string& name);
  ~ToldPart();
  ToldPart(const ToldPart&) = delete;
  ToldPart& operator=(const ToldPart&) = delete;

 private:
  SearchProgress* progress_;
  std::string before_;
};

}  // namespace stagecraft::partitioner
