#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "costmodel/units.h"

namespace stagecraft::partitioner {

// What the bounds on all splits know about 1F1B, that is, about schedules with ScheduleEntry::alternates.

/// Microbatches that all `replicas` replicas of a stage hold at once, where those of the next stage hold `next`; see
/// warmup_counts.
[[nodiscard]] constexpr std::int64_t flight(std::int64_t next, int replicas) {
  return replicas * ((next + replicas - 1) / replicas + 1);
}

/// Numbers of replicas that compute as many microbatches each: `share`.
struct ReplicaRange {
  int first = 1, last = 1;
  std::int64_t share = 0;
};

/// 1 to `most` replicas for so many microbatches, each number by itself; of larger ones, those that have the same share
/// and hardly differ are one range.
[[nodiscard]] std::vector<ReplicaRange> replica_ranges(int most, int microbatches);

/// flight() of any of these numbers of replicas is between these.
[[nodiscard]] constexpr std::int64_t least_flight(std::int64_t next, const ReplicaRange& replicas) {
  return std::max(next, (next + replicas.last - 1) / replicas.last * replicas.first) + replicas.first;
}
[[nodiscard]] constexpr std::int64_t most_flight(std::int64_t next, const ReplicaRange& replicas) {
  return std::min(next + replicas.last - 1, (next + replicas.first - 1) / replicas.first * replicas.last) +
         replicas.last;
}

/// Least time in which a replica runs `share` microbatches of one stage, from its first forward to its last backward,
/// if each backward ends `trip` or more after its forward begins, forwards and backwards are in order, and backward i
/// comes before forward i + `in_flight` (1f1b; `share` where all forwards may come first). 1 <= in_flight <= share.
/// Between forward 1 and the end of backward 1 there are at most `in_flight` forwards, likewise between the last
/// forward and the last backward; chains of k such trips, each begun by the first forward after the one before, hold (k
/// - 1) in_flight + 1 microbatches, and the others are computed between them.
[[nodiscard]] Seconds trips_of(Seconds trip, Seconds forward, Seconds back, std::int64_t share, std::int64_t in_flight);

}  // namespace stagecraft::partitioner
