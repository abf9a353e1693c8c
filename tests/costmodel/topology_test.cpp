#include "costmodel/topology.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <stdexcept>

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// 2 devices per server, 3 servers per rack, 2 racks: devices 0 1 | 2 3 | 4 5 || 6 7 | 8 9 | 10 11.
Topology three_levels() {
  Topology topology;
  topology.name = "three levels";
  topology.device = {"card", Bytes(100)};
  topology.levels = {{"server", 2, {BytesPerSecond(100), 1_s, {}, {}}},
                     {"rack", 3, {BytesPerSecond(10), 2_s, {}, {}}},
                     {"cluster", 2, {BytesPerSecond(1), 3_s, {}, {}}}};
  return topology;
}

TEST(Topology, LeavesOutWholeGroupsAndThenDevicesOfTheLastOne) {
  const auto counts = [](int devices) {
    std::vector<int> out;
    for (const Level& level : smaller_topology(three_levels(), devices).levels) out.push_back(level.count);
    return out;
  };
  ASSERT_EQ(counts(12), (std::vector{2, 3, 2}));
  EXPECT_EQ(counts(11), (std::vector{2, 3, 1}));
  EXPECT_EQ(counts(6), (std::vector{2, 3, 1}));
  EXPECT_EQ(counts(5), (std::vector{2, 2, 1}));
  EXPECT_EQ(counts(3), (std::vector{2, 1, 1}));
  EXPECT_EQ(counts(1), (std::vector{1, 1, 1}));
}

TEST(Topology, CountsDevicesAsTheProductOfItsLevels) { EXPECT_EQ(device_count(three_levels()), 12); }

TEST(Topology, FindsTheGroupThatHoldsADevice) {
  const Topology topology = three_levels();
  EXPECT_EQ(group_below(topology, 0, 7), 7);
  EXPECT_EQ(group_below(topology, 1, 7), 3);
  EXPECT_EQ(group_below(topology, 1, 6), 3);
  EXPECT_EQ(group_below(topology, 2, 5), 0);
  EXPECT_EQ(group_below(topology, 2, 6), 1);
}

TEST(Topology, JoinsDevicesAtTheOutermostLevelTheyDifferIn) {
  const Topology topology = three_levels();
  EXPECT_EQ(joining_level(topology, 0, 1), 0);
  EXPECT_EQ(joining_level(topology, 1, 2), 1);
  EXPECT_EQ(joining_level(topology, 5, 0), 1);
  EXPECT_EQ(joining_level(topology, 5, 6), 2);
  EXPECT_EQ(joining_level(topology, 0, 11), 2);
}

TEST(DistrustText, GivesTheReasonsOfEachLevel) {
  Topology topology = three_levels();
  EXPECT_EQ(distrust_text(topology), "");
  topology.levels[1].link.distrust = {"a", "b"};
  EXPECT_EQ(distrust_text(topology), "the links are not trusted: a; b");
  topology.levels[2].link.distrust = {"c"};
  EXPECT_EQ(distrust_text(topology), "the links are not trusted: rack: a; rack: b; cluster: c");
}

// 0.75 and 1.25 of 2 processors are all of them; 0.05 of others is below a tenth of a processor.
TEST(DistrustText, NamesOtherProgramsDuringTheMeasurement) {
  Topology topology = three_levels();
  topology.conditions.hosts = {{.ours = 1.25, .others = 0.75, .count = 2}};
  const std::string crowded = "other programs kept 0.8 of 2 processors busy, the ranks 1.2: measure on a quiet machine";
  EXPECT_EQ(distrust_text(topology), "the links are not trusted: " + crowded);
  topology.levels[0].link.distrust = {crowded};  // as links writes it
  EXPECT_EQ(distrust_text(topology), "the links are not trusted: " + crowded);
  topology.levels[0].link.distrust = {};
  topology.conditions.hosts = {{.ours = 1.95, .others = 0.05, .count = 2}};
  EXPECT_EQ(distrust_text(topology), "");
}

TEST(WithMeasured, KeepsTheDistrustOfLinks) {
  Topology measured = three_levels();
  measured.levels.resize(1);
  measured.levels[0].link.distrust = {"a"};
  EXPECT_EQ(distrust_text(with_measured(three_levels(), measured)), "the links are not trusted: a");
}

TEST(TransferTime, IsLatencyAndBytesOverBandwidthWithoutACurve) {
  const Link link{BytesPerSecond(4), 2_s, {}, {}};
  EXPECT_EQ(transfer_time(link, 12_B), 5_s);
  EXPECT_EQ(transfer_time(link, 0_B), 0_s);
}

TEST(TransferTime, FollowsTheCurveAndRisesAtTheBandwidthAboveIt) {
  const Link link{BytesPerSecond(4), 100_s, {{{10_B, 1_s}, {20_B, 3_s}}}, {}};
  EXPECT_EQ(transfer_time(link, 0_B), 0_s);
  EXPECT_EQ(transfer_time(link, 1_B), 1_s);
  EXPECT_EQ(transfer_time(link, 10_B), 1_s);
  EXPECT_EQ(transfer_time(link, 15_B), 2_s);
  EXPECT_EQ(transfer_time(link, 20_B), 3_s);
  EXPECT_EQ(transfer_time(link, 28_B), 5_s);  // 3 s and 8 B at 4 B/s
}

TEST(Interpolate, IsPiecewiseLinear) {
  const Curve curve{{{10_B, 1_s}, {20_B, 3_s}, {40_B, 5_s}}};
  EXPECT_EQ(interpolate(curve, 0_B), 1_s);
  EXPECT_EQ(interpolate(curve, 15_B), 2_s);
  EXPECT_EQ(interpolate(curve, 20_B), 3_s);
  EXPECT_EQ(interpolate(curve, 30_B), 4_s);
  EXPECT_EQ(interpolate(curve, 60_B), 7_s);  // 20 B more at 2 s per 20 B
}

TEST(Interpolate, TakesOnePointInProportionAboveIt) {
  EXPECT_EQ(interpolate({{{10_B, 2_s}}}, 5_B), 2_s);
  EXPECT_EQ(interpolate({{{10_B, 2_s}}}, 30_B), 6_s);
  EXPECT_EQ(interpolate({{{0_B, 2_s}}}, 30_B), 2_s);
}

TEST(Interpolate, NeverFallsBelowZero) { EXPECT_EQ(interpolate({{{10_B, 3_s}, {20_B, 1_s}}}, 100_B), 0_s); }

TEST(WithMeasured, PutsMeasuredLinksAtTheLevelsOfTheirName) {
  Topology measured;
  const Link link{BytesPerSecond(7), 5_s, {}, {{2, {{{1_B, 3_s}}}}}, {}, {}, LinkOrigin::Measured};
  measured.levels = {{"rack", 9, link}};
  measured.device.device_to_host = {{{1_B, 1_s}}};
  Topology wanted = three_levels();
  wanted.levels[1].link = link;
  wanted.device.device_to_host = measured.device.device_to_host;
  EXPECT_EQ(with_measured(three_levels(), measured), wanted);
  measured.device.kind = DeviceKind::Gpu;
  EXPECT_EQ(with_measured(three_levels(), measured).device.kind, DeviceKind::Gpu);
  measured.levels[0].name = "room";
  EXPECT_THAT([&] { (void)with_measured(three_levels(), measured); },
              ThrowsMessage<std::invalid_argument>("unknown level \"room\", known are server, rack, cluster"));
}

TEST(ValidateTopology, NamesTheFault) {
  const auto refused = [](auto&& change, const char* message) {
    Topology topology = three_levels();
    change(topology);
    EXPECT_THAT([&] { validate(topology); }, ThrowsMessage<std::invalid_argument>(HasSubstr(message)));
  };
  validate(three_levels());
  refused([](Topology& t) { t.levels.clear(); }, "the topology has no levels");
  refused([](Topology& t) { t.device.memory = 0_B; }, "the device memory is not positive");
  refused([](Topology& t) { t.levels[1].count = 0; }, "level \"rack\": the count is below 1");
  refused([](Topology& t) { t.levels[1].count = (1 << 23) + 1; }, "level \"rack\": more than 2^24 devices");
  refused([](Topology& t) { t.levels[2].link.bandwidth = {}; }, "level \"cluster\": the bandwidth is not a positive");
  refused([](Topology& t) { t.levels[2].link.bandwidth.value = std::numeric_limits<double>::infinity(); },
          "level \"cluster\": the bandwidth is not a positive");
  refused([](Topology& t) { t.levels[0].link.latency = Seconds(-1); }, "level \"server\": the latency is negative");
  refused([](Topology& t) { t.levels[0].link.send_receive = {{{2_B, 1_s}, {2_B, 2_s}}}; },
          "level \"server\": send_receive: points are not ascending in bytes");
  refused([](Topology& t) { t.levels[0].link.send_receive = {{{2_B, 0_s}}}; },
          "level \"server\": send_receive: a time is not positive");
  refused([](Topology& t) { t.levels[0].link.all_reduce[2] = {}; }, "all_reduce has a curve without points");
  refused([](Topology& t) { t.levels[0].link.all_reduce[1] = {{{2_B, 1_s}}}; }, "all_reduce of fewer than 2 ranks");
  refused([](Topology& t) { t.levels[1].link.all_gather[2] = {}; },
          "level \"rack\": all_gather has a curve without points");
  refused([](Topology& t) { t.levels[1].link.reduce_scatter[2] = {{{2_B, 1_s}, {1_B, 2_s}}}; },
          "level \"rack\": reduce_scatter: points are not ascending in bytes");
  refused([](Topology& t) { t.device.host_to_device = {{{2_B, 0_s}}}; }, "the device: host_to_device: a time is not");
  refused([](Topology& t) { t.device.device_to_host = {{{2_B, 0_s}}}; }, "the device: device_to_host: a time is not");
}

}  // namespace
}  // namespace stagecraft
