#include "costmodel/links/collectives.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace stagecraft {
namespace {

Link link(double bandwidth, double latency) { return {BytesPerSecond(bandwidth), Seconds(latency), {}, {}}; }

Topology topology_of(const std::vector<Level>& levels) {
  Topology topology;
  topology.levels = levels;
  return topology;
}

/// Two servers with two devices each: 100 B/s within a server, 50 B/s between servers.
Topology two_servers() { return topology_of({{"server", 2, link(100, 0)}, {"rack", 2, link(50, 0)}}); }

TEST(RingAllReduce, IsTwiceRanksLessOneStepsOfAShareEach) {
  // 2 * 3 steps, each with 1 s of latency and 400 / 4 B at 100 B/s
  EXPECT_EQ(ring_all_reduce_time(400_B, 4, link(100, 1)), 12_s);
  EXPECT_EQ(ring_all_reduce_time(400_B, 2, link(100, 0)), 4_s);
}

TEST(RingAllReduce, IsFreeForOneRank) { EXPECT_EQ(ring_all_reduce_time(400_B, 1, link(100, 1)), 0_s); }

TEST(RingAllReduce, RefusesNoRanks) {
  try {
    (void)ring_all_reduce_time(1_B, 0, link(1, 0));
    FAIL();
  } catch (const std::invalid_argument& e) { EXPECT_STREQ(e.what(), "an all-reduce of 0 ranks, must be at least 1"); }
}

TEST(AllReduce, GoesLevelByLevel) {
  // Within a server: 2 * 400 / (2 * 100) = 4 s; then each share of 200 B between servers: 2 * 200 / (2 * 50) = 4 s.
  EXPECT_EQ(all_reduce_time(400_B, {0, 1, 2, 3}, two_servers()), 8_s);
  // The larger group determines the time.
  EXPECT_EQ(all_reduce_time(400_B, {0, 1, 2}, two_servers()), 8_s);
  // One device per server: all 400 B go between the servers, 2 * 400 / (2 * 50) s.
  EXPECT_EQ(all_reduce_time(400_B, {1, 2}, two_servers()), 8_s);
  EXPECT_EQ(all_reduce_time(400_B, {2, 3}, two_servers()), 4_s);
}

TEST(AllReduce, TakesTheMeasuredCurveOfThatManyRanks) {
  Topology topology = two_servers();
  topology.levels[0].link.all_reduce[2] = {{{400_B, 3_s}}};
  EXPECT_EQ(all_reduce_time(400_B, {0, 1}, topology), 3_s);
  EXPECT_EQ(all_reduce_time(400_B, {0, 1, 2, 3}, topology), 7_s);
  Topology flat = topology_of({{"node", 3, link(100, 0)}});
  flat.levels[0].link.all_reduce[2] = {{{300_B, 9_s}}};
  EXPECT_EQ(all_reduce_time(300_B, {0, 1, 2}, flat), 4_s);  // no curve for 3 ranks: a ring, 4 steps of 100 B
}

TEST(AllReduce, IsFreeForOneDeviceAndRefusesNone) {
  EXPECT_EQ(all_reduce_time(400_B, {3}, two_servers()), 0_s);
  try {
    (void)all_reduce_time(1_B, {}, two_servers());
    FAIL();
  } catch (const std::invalid_argument& e) { EXPECT_STREQ(e.what(), "an all-reduce of no devices"); }
}

}  // namespace
}  // namespace stagecraft
