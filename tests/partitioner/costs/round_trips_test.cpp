#include "partitioner/costs/round_trips.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "costmodel/schedule.h"

namespace stagecraft::partitioner {
namespace {

/// A replica holds its warm-up and one more: flight is that of all replicas, by the recurrence of warmup_counts.
TEST(Flight, IsOneMoreThanTheWarmupOfEachReplica) {
  for (const std::vector<int>& replicas : {std::vector<int>{1, 1, 1}, {2, 3, 1}, {15, 1}, {3, 1, 4, 2}}) {
    const std::vector<int> warmups = warmup_counts(replicas);
    std::int64_t next = 0;
    for (std::size_t s = replicas.size(); s-- > 0;) {
      next = flight(next, replicas[s]);
      EXPECT_EQ(next, (warmups[s] + 1) * replicas[s]) << s;
    }
  }
}

/// Of a uniform pipeline of S stages of 1 + 2 s, the first has trips of 3 S seconds and holds S microbatches: m of them
/// take 3 (m + S - 1) s by two trips and those between them; up to S by one trip and the other backwards.
TEST(TripsOf, IsTheStepOfAUniformPipeline) {
  for (int stages = 1; stages <= 6; ++stages) {
    for (int m = 1; m <= 20; ++m) {
      const Seconds step = trips_of(Seconds(3 * stages), Seconds(1), Seconds(2), m, std::min(stages, m));
      EXPECT_EQ(step, m > stages ? Seconds(3 * (m + stages - 1)) : Seconds(3 * stages + 2 * (m - 1)))
          << stages << " " << m;
    }
  }
}

/// Trips of 10 s with 2 microbatches at once: 7 take 4 trips; without a limit, one and the 6 other backwards of 2 s.
TEST(TripsOf, TakesAsManyTripsAsAreLonger) {
  EXPECT_EQ(trips_of(Seconds(10), Seconds(1), Seconds(2), 7, 2), Seconds(40));
  EXPECT_EQ(trips_of(Seconds(10), Seconds(1), Seconds(2), 7, 7), Seconds(22));
  EXPECT_EQ(trips_of(Seconds(10), Seconds(2), Seconds(1), 7, 7), Seconds(22));
}

/// Every number is in one range, with its share; up to 64 by itself, and of more at most 2 % apart.
TEST(ReplicaRanges, CoverEachNumberOnce) {
  for (const int microbatches : {1, 7, 64, 1024}) {
    int next = 1;
    for (const ReplicaRange& range : replica_ranges(300, microbatches)) {
      EXPECT_EQ(range.first, next);
      EXPECT_TRUE(range.last == range.first || range.first >= 64);
      EXPECT_LE(range.last, 1.02 * range.first);
      for (int r = range.first; r <= range.last; ++r) EXPECT_EQ((microbatches + r - 1) / r, range.share);
      next = range.last + 1;
    }
    EXPECT_EQ(next, 301);
  }
}

TEST(ReplicaRanges, BoundWhatIsInFlight) {
  for (const ReplicaRange range : {ReplicaRange{3, 3, 1}, ReplicaRange{65, 66, 1}, ReplicaRange{100, 102, 1}}) {
    for (std::int64_t next = 0; next < 500; ++next) {
      for (int r = range.first; r <= range.last; ++r) {
        EXPECT_LE(least_flight(next, range), flight(next, r));
        EXPECT_GE(most_flight(next, range), flight(next, r));
      }
      if (range.first == range.last) { EXPECT_EQ(least_flight(next, range), flight(next, range.first)); }
    }
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
