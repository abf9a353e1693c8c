#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "costmodel/units.h"

namespace stagecraft::partitioner {

// What the bounds on all splits know about 1F1B, that is, about schedules with ScheduleEntry::alternates.

/// The number of microbatches that the `replicas` replicas of a stage hold together at once, if the replicas of the
/// next stage hold `next` together; see warmup_counts.
[[nodiscard]] constexpr std::int64_t flight(std::int64_t next, int replicas) {
  return replicas * ((next + replicas - 1) / replicas + 1);
}

/// Numbers of replicas that compute as many microbatches each: `share`.
struct ReplicaRange {
  int first = 1, last = 1;
  std::int64_t share = 0;
};

/// Ranges that cover 1 to `most` replicas: each small number is a range of its own, and larger numbers with the same
/// share of `microbatches` that differ by at most 2 % form one range.
[[nodiscard]] std::vector<ReplicaRange> replica_ranges(int most, int microbatches);

/// least_flight <= flight(next, r) <= most_flight for each number r of replicas in the range.
[[nodiscard]] constexpr std::int64_t least_flight(std::int64_t next, const ReplicaRange& replicas) {
  return std::max(next, (next + replicas.last - 1) / replicas.last * replicas.first) + replicas.first;
}
[[nodiscard]] constexpr std::int64_t most_flight(std::int64_t next, const ReplicaRange& replicas) {
  return std::min(next + replicas.last - 1, (next + replicas.first - 1) / replicas.first * replicas.last) +
         replicas.last;
}

/// The least time in which a replica runs n = `share` microbatches of one stage, from its first forward F_1 to the end
/// of its last backward B_n, if each B_i ends `trip` or more after F_i begins, F_1, F_2, ... and B_1, B_2, ... are in
/// order, and B_i precedes F_(i + W), W = `in_flight`. W = n if all forwards may come first. Precondition: 1 <= W <= n.
///
/// Proof: at most W forwards lie between the start of F_1 and the end of B_1, and at most W backwards between the start
/// of F_n and the end of B_n. A chain of k trips, each begun by the first forward after the end of the trip before,
/// covers (k - 1) W + 1 microbatches; the replica computes all others outside these trips.
[[nodiscard]] Seconds trips_of(Seconds trip, Seconds forward, Seconds back, std::int64_t share, std::int64_t in_flight);

}  // namespace stagecraft::partitioner
