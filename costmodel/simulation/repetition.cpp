#include "costmodel/simulation/repetition.h"

#include <algorithm>
#include <cmath>

namespace stagecraft::simulation {

bool is_repeated(const Snapshot& earlier, const Snapshot& later) {
  if (earlier.counts != later.counts || earlier.times.size() != later.times.size() ||
      earlier.rates.size() != later.rates.size())
    return false;
  const Seconds tolerance = kEqual * (later.now - earlier.now);
  for (std::size_t i = 0; i < earlier.times.size(); ++i) {
    if (!(Seconds(std::abs((earlier.times[i] - later.times[i]).value)) <= tolerance)) return false;
  }
  for (std::size_t i = 0; i < earlier.rates.size(); ++i) {
    if (!(std::abs(earlier.rates[i] - later.rates[i]) <= kEqual)) return false;
  }
  return later.now > earlier.now;
}

bool lists_repeat(const std::vector<std::vector<Action>>& lists, const Snapshot& earlier, const Snapshot& later) {
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    const std::vector<Action>& list = lists[rank];
    const std::size_t length = later.next[rank] - earlier.next[rank];
    if (length == 0 || later.next[rank] + length > list.size()) return false;
    for (std::size_t i = earlier.next[rank]; i < later.next[rank]; ++i) {
      Action shifted = list[i];
      if (shifted.microbatch < 0) return false;
      shifted.microbatch += later.microbatch - earlier.microbatch;
      if (shifted != list[i + length]) return false;
    }
  }
  return true;
}

Snapshot& Repetition::add() {
  Snapshot& out = snapshots_[added_++ % snapshots_.size()];
  out.next.clear();
  out.counts.clear();
  out.times.clear();
  out.rates.clear();
  return out;
}

std::optional<Period> Repetition::find(const std::vector<std::vector<Action>>& lists) const {
  const Snapshot& latest = snapshots_[(added_ - 1) % snapshots_.size()];
  for (std::size_t back = 1; back < std::min(added_, snapshots_.size()); ++back) {
    const Snapshot& earlier = snapshots_[(added_ - 1 - back) % snapshots_.size()];
    if (!is_repeated(earlier, latest) || !lists_repeat(lists, earlier, latest)) continue;
    return Period{earlier.now, latest.now, latest.microbatch - earlier.microbatch, earlier.next, latest.next};
  }
  return std::nullopt;
}

}  // namespace stagecraft::simulation
