#include "partitioner/search/search_time.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "partitioner/search/search_tuning.h"

namespace stagecraft::partitioner {
namespace {

Seconds processor_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return Seconds(static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec));
}

}  // namespace

SearchTime::SearchTime(Seconds limit) : start_(processor_time()), left_(limit), limit_(limit) {}

Seconds SearchTime::passed() const { return processor_time() - start_; }

void SearchTime::begin_rounds() {
  before_ = passed();
  left_ = std::max(left_ / 2, left_ - before_);
  limit_ = std::min(left_, SearchTuning::kFirstRound);
  start_ += before_;
}

bool SearchTime::next_round() {
  if (!was_cut_off()) return false;
  const Seconds round = std::max(passed(), limit_);
  const Seconds left = left_ - round;
  if (left <= limit_ * SearchTuning::kLeastRound) return false;
  const Seconds now = passed();
  before_ += now;
  left_ -= now;
  start_ += now;
  limit_ = std::min(left_, limit_ * SearchTuning::kRoundFactor);
  ++round_;
  cut_.clear();
  return true;
}

void SearchTime::allow(double share, std::string part) {
  share_ = share;
  part_ = std::move(part);
}

void SearchTime::allow_some(double share) { allow(share, ""); }

bool SearchTime::is_up() {
  const bool up = is_past(share_);
  if (up && !part_.empty()) cut_off(part_);
  return up;
}

}  // namespace stagecraft::partitioner
