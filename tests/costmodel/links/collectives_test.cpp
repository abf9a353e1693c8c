#include "costmodel/links/collectives.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/accuracy/intervals.h"
#include "costmodel/format/files/files.h"
#include "costmodel/interchange/nccl_tests.h"
#include "tests/support/places.h"

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
  } catch (const std::invalid_argument& e) { EXPECT_STREQ(e.what(), "a collective of no devices"); }
}

/// Two servers of two GPUs: 100 B/s within a server, 50 B/s between servers, 1 s and 2 s of latency.
Topology two_servers_of_gpus() {
  Topology out = topology_of({{"server", 2, link(100, 1)}, {"rack", 2, link(50, 2)}});
  out.device.kind = DeviceKind::Gpu;
  return out;
}

// A ring of 4: 3 steps, of which 2 are inside servers, 2 * 1 + 1 * 2 s of latency. 3/4 of 4000 B pass each link inside,
// 30 s; 3/4 of 2000 B each link between servers, 30 s as well. A chunk takes 2/3 of the former, 1/3 of the latter and
// the latency, 34 s; the links inside slow those between servers by 0.1256 * 30 s.
TEST(Pipelined, RingsMoveDataThroughAllLevelsAtOnce) {
  const Topology topology = two_servers_of_gpus();
  const CollectiveTime time = collective_time(Collective::AllGather, 4000_B, {0, 1, 2, 3}, topology);
  EXPECT_NEAR(time.time.value, 4 + 30 * 1.1256, 1e-12);
  EXPECT_NEAR(time.least.value, 4 + 30, 1e-12);
  EXPECT_NEAR(time.most.value, 2.8 * 4 + 30 * 1.3, 1e-12);
  EXPECT_EQ(collective_time(Collective::ReduceScatter, 4000_B, {0, 1, 2, 3}, topology), time);
  // With twice the data outside, 60 s there: more than a chunk's way of 4 + 2/3 * 30 + 1/3 * 60 s.
  Topology slow = topology;
  slow.levels[1].link.bandwidth = BytesPerSecond(25);
  EXPECT_NEAR(all_gather_time(4000_B, {0, 1, 2, 3}, slow).value, 60 + 0.1256 * 30, 1e-12);
  // One level is one level, as ever: 1 + 2000 / 100 s.
  EXPECT_EQ(all_gather_time(4000_B, {0, 1}, topology), 21_s);
}

// Of 4000 B, each of 4 devices sends half to its own server's: one message of 1 s and 1/2 * 2000 B, 10 s. All but its
// server's share goes to the other server: 1/2 of 4000 B at 50 B/s, 40 s, and 2 s.
TEST(Pipelined, AllToAllSendsEachPartOverItsLevel) {
  const CollectiveTime time = collective_time(Collective::AllToAll, 4000_B, {0, 1, 2, 3}, two_servers_of_gpus());
  EXPECT_NEAR(time.time.value, 3 + 40 + 0.1256 * 10, 1e-12);
}

// With small messages, NCCL's tuner takes the tree, which has fewer messages. Inside, a ring of 2 sends 2 * 1000 B, 20
// s, after 2 * 1 s. Between servers half of the data crosses once, 1000 / 50 = 20 s, after 2 messages of 2 s and two
// pieces of a quarter, 5 s each. Both at once: 2 + 4 + 10 + 20 + 0.1256 * 20 s.
TEST(Pipelined, TreesReduceInsideFirst) {
  Topology topology = two_servers_of_gpus();
  for (Level& level : topology.levels) level.link.bandwidth = level.link.bandwidth * 1e9;
  const Seconds time = all_reduce_time(2000_B, {0, 1, 2, 3}, topology);
  // The same times but for the latency, a billionth of the others.
  EXPECT_NEAR(time.value, 2 + 4 + (10 + 20 + 0.1256 * 20) * 1e-9, 1e-15);
}

TEST(Pipelined, ACurveOfTheWholeShapeWins) {
  Topology topology = two_servers_of_gpus();
  topology.levels[1].link.spans[{Collective::AllGather, 4, 2}] = {{{4000_B, 7_s}}};
  EXPECT_EQ(all_gather_time(4000_B, {0, 1, 2, 3}, topology), 7_s);
  EXPECT_GT(all_gather_time(4000_B, {0, 1, 2}, topology), 7_s);  // another shape
}

// More than 64 GPUs on several levels have one channel for each message: 14 GB/s instead of the link's 20.
TEST(NeighbourExchange, HasOneChannelForEachMessageOfManyGpus) {
  Topology topology = topology_of({{"node", 8, link(100e9, 0)}, {"cluster", 10, link(20e9, 0)}});
  std::vector<int> all(80);
  std::iota(all.begin(), all.end(), 0);
  const Bytes data(140'000'000'000);
  EXPECT_EQ(neighbour_exchange_time(data, all, topology).time, 7_s);
  topology.device.kind = DeviceKind::Gpu;
  EXPECT_EQ(neighbour_exchange_time(data, all, topology), (CollectiveTime{10_s, 7_s, 10_s}));
  all.resize(64);
  EXPECT_EQ(neighbour_exchange_time(data, all, topology).time, 7_s);
}

/// Times of nccl-tests on ten hosts of eight H100, one-level tables and those of 10 x 8; see the folder's README.
class TwoLevels : public ::testing::Test {
 protected:
  struct Table {
    std::string operation;
    int hosts;
    int per_host;
    std::vector<CurvePoint> points;
  };

  TwoLevels() {
    const auto document = nlohmann::json::parse(
        format::read_text(source_folder() + "/tests/golden/collectives/nccl_tests_h100_two_levels.json"));
    for (const auto& table : document["tables"]) {
      Table out{table["collective"], table["nodes"], table["gpus_per_node"], {}};
      for (const auto& point : table["points"])
        out.points.push_back(
            {Bytes(point["message_bytes"].get<std::int64_t>()), Seconds(point["time_s"].get<double>())});
      tables_.push_back(out);
    }
  }

  /// As imported from the one-level tables of `operations`, or of all of them.
  Topology one_level_topology(const std::set<std::string>& operations = {}) const {
    std::vector<interchange::NcclTest> tests;
    for (const Table& table : tables_) {
      if (table.hosts > 1 && table.per_host > 1) continue;
      if (!operations.empty() && !operations.contains(table.operation)) continue;
      interchange::NcclTest test;
      test.operation = table.operation == "send_receive" ? "sendrecv" : table.operation;
      for (int rank = 0; rank < table.hosts * table.per_host; ++rank)
        test.hosts.push_back(std::to_string(rank / table.per_host));
      test.curve.points = table.points;
      tests.push_back(test);
    }
    return interchange::measured_topology(tests);
  }

  /// |predicted / measured - 1| of the rows of 10 x 8; checks the intervals.
  std::vector<double> errors(const std::string& operation, const Topology& topology) const {
    static const std::map<std::string, Collective> collectives{{"all_reduce", Collective::AllReduce},
                                                               {"all_gather", Collective::AllGather},
                                                               {"reduce_scatter", Collective::ReduceScatter},
                                                               {"all_to_all", Collective::AllToAll}};
    std::vector<int> all(80);
    std::iota(all.begin(), all.end(), 0);
    std::vector<double> out;
    for (const Table& table : tables_) {
      if (table.operation != operation || table.hosts == 1 || table.per_host == 1) continue;
      for (const CurvePoint& point : table.points) {
        Seconds time;
        if (operation == "send_receive") {
          const CollectiveTime exchange = neighbour_exchange_time(point.bytes, all, topology);
          time = exchange.time;
          EXPECT_LE(exchange.least, point.time);
          EXPECT_GE(exchange.most * 1.179 * 1.2, point.time);
        } else {
          time = collective_time(collectives.at(operation), point.bytes, all, topology).time;
          const Range<Seconds> range = collective_range(collectives.at(operation), point.bytes, all, topology);
          EXPECT_LE(range.low / 1.2, point.time) << operation << " of " << point.bytes.value;
          EXPECT_GE(range.high * 1.2, point.time) << operation << " of " << point.bytes.value;
        }
        out.push_back(std::abs(time / point.time - 1));
      }
    }
    EXPECT_EQ(out.size(), 10U);
    return out;
  }

  static double median(std::vector<double> values) {
    std::ranges::sort(values);
    return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
  }

  std::vector<Table> tables_;
};

TEST_F(TwoLevels, ArePredictedFromEach) {
  const Topology topology = one_level_topology();
  std::vector<double> all;
  for (const auto& [operation, most] : std::map<std::string, double>{{"all_reduce", 0.05},
                                                                     {"all_gather", 0.05},
                                                                     {"all_to_all", 0.05},
                                                                     {"reduce_scatter", 0.1},
                                                                     {"send_receive", 0.1}}) {
    const std::vector<double> found = errors(operation, topology);
    EXPECT_LE(median(found), most) << operation;
    all.insert(all.end(), found.begin(), found.end());
  }
  EXPECT_LE(median(all), 0.055);
}

// Without the halves, which are rings inside a host.
TEST_F(TwoLevels, ArePredictedFromAllReducesAlone) {
  EXPECT_LE(median(errors("all_reduce", one_level_topology({"all_reduce"}))), 0.11);
}

}  // namespace
}  // namespace stagecraft
