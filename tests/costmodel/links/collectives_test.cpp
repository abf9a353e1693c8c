#include "costmodel/links/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <utility>
#include <vector>

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

TEST(RingHalves, AreRanksLessOneStepsOfAShareEach) {
  // 3 steps, each with 1 s of latency and 400 / 4 B at 100 B/s: 3 * 2 s. Both halves are a ring all-reduce.
  EXPECT_EQ(ring_reduce_scatter_time(400_B, 4, link(100, 1)), 6_s);
  EXPECT_EQ(ring_all_gather_time(400_B, 4, link(100, 1)), 6_s);
  EXPECT_EQ(ring_all_gather_time(400_B, 1, link(100, 1)), 0_s);
  EXPECT_THAT([] { (void)ring_reduce_scatter_time(1_B, 0, link(1, 0)); },
              ::testing::ThrowsMessage<std::invalid_argument>("a reduce-scatter of 0 ranks, must be at least 1"));
  EXPECT_THAT([] { (void)ring_all_gather_time(1_B, 0, link(1, 0)); },
              ::testing::ThrowsMessage<std::invalid_argument>("an all-gather of 0 ranks, must be at least 1"));
}

TEST(TreeAllReduce, GoesUpAndDownTheHeightOfATree) {
  // ceil(log2 n) is 1, 2, 2, 3, 3 and 4; twice the bytes at 100 B/s.
  const std::vector<std::pair<int, int>> heights{{2, 1}, {3, 2}, {4, 2}, {5, 3}, {8, 3}, {9, 4}};
  for (const auto& [ranks, height] : heights)
    EXPECT_EQ(tree_all_reduce_time(400_B, ranks, link(100, 1)), Seconds(2 * height + 8)) << ranks;
  EXPECT_EQ(tree_all_reduce_time(400_B, 1, link(100, 1)), 0_s);
  EXPECT_THROW((void)tree_all_reduce_time(1_B, 0, link(1, 0)), std::invalid_argument);
}

TEST(AllReduce, TakesTheTreeOnGpusWhereItIsFaster) {
  Topology topology = topology_of({{"node", 8, link(100, 1)}});
  const std::vector<int> all{0, 1, 2, 3, 4, 5, 6, 7};
  // Ring of 800 B: 14 steps of 1 + 1 s. Tree: 6 + 16 s.
  EXPECT_EQ(all_reduce_time(800_B, all, topology), 28_s);
  topology.device.kind = DeviceKind::Gpu;
  EXPECT_EQ(all_reduce_time(800_B, all, topology), 22_s);
  // 1600 B: 14 * 3 = 42 s and 6 + 32 = 38 s; 3200 B: 14 * 5 = 70 s and 6 + 64 s.
  EXPECT_EQ(all_reduce_time(1600_B, all, topology), 38_s);
  EXPECT_EQ(all_reduce_time(3200_B, all, topology), 70_s);
  topology.device.kind = DeviceKind::Processor;
  EXPECT_EQ(all_reduce_time(800_B, all, topology), 28_s);
}

TEST(AllReduce, TakesMeasuredHalves) {
  Topology topology = two_servers();
  Link& inside = topology.levels[0].link;
  inside.reduce_scatter[2] = {{{400_B, 1_s}}};
  // One half alone is not enough: 4 s of ring inside, 4 s outside.
  EXPECT_EQ(all_reduce_time(400_B, {0, 1, 2, 3}, topology), 8_s);
  inside.all_gather[2] = {{{400_B, 2_s}}};
  EXPECT_EQ(all_reduce_time(400_B, {0, 1, 2, 3}, topology), 7_s);
  EXPECT_EQ(all_reduce_time(400_B, {0, 1}, topology), 3_s);
  // A measured all-reduce is what a single level does; an inner level does both halves.
  inside.all_reduce[2] = {{{400_B, 9_s}}};
  EXPECT_EQ(all_reduce_time(400_B, {0, 1}, topology), 9_s);
  EXPECT_EQ(all_reduce_time(400_B, {0, 1, 2, 3}, topology), 7_s);
}

TEST(ReduceScatterAndAllGather, GoLevelByLevel) {
  // Inside 1 * 400 / 2 / 100 = 2 s, outside 1 * 200 / 2 / 50 = 2 s.
  Topology topology = two_servers();
  EXPECT_EQ(reduce_scatter_time(400_B, {0, 1, 2, 3}, topology), 4_s);
  EXPECT_EQ(all_gather_time(400_B, {0, 1, 2, 3}, topology), 4_s);
  EXPECT_EQ(reduce_scatter_time(400_B, {1, 2}, topology), 4_s);  // 400 / 2 / 50
  EXPECT_EQ(all_gather_time(400_B, {3}, topology), 0_s);
  topology.levels[0].link.reduce_scatter[2] = {{{400_B, 5_s}}};
  topology.levels[1].link.all_gather[2] = {{{200_B, 6_s}}};
  EXPECT_EQ(reduce_scatter_time(400_B, {0, 1, 2, 3}, topology), 7_s);
  EXPECT_EQ(all_gather_time(400_B, {0, 1, 2, 3}, topology), 8_s);
  EXPECT_THROW((void)all_gather_time(1_B, {}, topology), std::invalid_argument);
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
