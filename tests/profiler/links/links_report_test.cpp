#include "profiler/links/links_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "costmodel/format/topology_json.h"

namespace stagecraft::profiler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using enum LinkOperation;

LinkPoint point(Bytes bytes, double seconds) {
  return {bytes, {Seconds(seconds), Seconds(seconds / 100), 7}, Stop::Precise, 70};
}

/// Two ranks; 1 ms for the smallest message, 2 s for 8 MB: 4 MB/s.
LinkMeasurement two_ranks() {
  LinkMeasurement out;
  out.ranks = 2;
  const auto curve = [&](LinkOperation operation, double first, double last) {
    out.curves.push_back({operation, 2, {point(4_B, first), point(4000_B, 0.003), point(8000000_B, last)}});
  };
  curve(SendReceive, 0.001, 2);
  curve(Duplex, 0.001, 3);
  curve(AllReduce, 0.002, 5);
  curve(AllGather, 0.0015, 2.5);
  curve(ReduceScatter, 0.0012, 2.6);
  return out;
}

TEST(TopologyOf, TakesTheBandwidthFromTheLargestMessage) {
  const Topology topology = topology_of(two_ranks(), "gloo", {"a processor", 1_GiB}, {});
  EXPECT_EQ(topology.name, "2 ranks on one host, gloo channel");
  EXPECT_EQ(topology.device, (Device{"a processor", 1_GiB}));
  ASSERT_EQ(topology.levels.size(), 1U);
  const Level& host = topology.levels.front();
  EXPECT_EQ(host.name, "host");
  EXPECT_EQ(host.count, 2);
  EXPECT_EQ(host.link.bandwidth, BytesPerSecond(4e6));
  EXPECT_EQ(host.link.origin, LinkOrigin::Measured);
}

/// The latency of a curve of 4, 8, ... bytes with these times.
double latency(const std::vector<double>& seconds) {
  LinkCurve curve{SendReceive, 2, {}};
  for (std::size_t i = 0; i < seconds.size(); ++i)
    curve.points.push_back(point(Bytes(std::int64_t{4} << i), seconds[i]));
  return topology_of({2, {curve}, {}}, "gloo", {}, {}).levels.front().link.latency.value;
}

/// 2^-17 s and 2^-30 s per byte for 4 bytes to 64 MiB; the smallest takes `smallest` times as long.
std::vector<double> line_with(double smallest) {
  std::vector<double> out;
  for (int i = 2; i <= 26; ++i) out.push_back(std::ldexp(1, -17) + std::ldexp(1, i - 30));
  out.front() *= smallest;
  return out;
}

// Of 300 slopes, 24 are of pairs with the smallest message; 12 messages, up to 2^13 bytes, are small.
TEST(TopologyOf, TakesTheLatencyOfAllSmallMessages) {
  for (const double smallest : {1.0, 0.25, 1.5, 4.0, 50.0})
    EXPECT_DOUBLE_EQ(latency(line_with(smallest)), 0x1p-17) << smallest;
}

// No slope is above 0, so all messages are small: the median of 6, 5, 4, 4, 3 and 3.
TEST(TopologyOf, TakesTheMedianWhereBytesCostNothing) { EXPECT_EQ(latency({6, 5, 4, 4, 3, 3}), 4); }

TEST(TopologyOf, TakesTheSmallestTimeWhereNoMessageIsSmall) {
  EXPECT_EQ(latency({3}), 3);
  EXPECT_EQ(latency({4, 8, 16, 32, 64}), 4);  // one second per byte, and no latency
}

TEST(TopologyOf, KeepsTheCurves) {
  const auto points = [](double first, double last) {
    return std::vector<CurvePoint>{{4_B, Seconds(first)}, {4000_B, Seconds(0.003)}, {8000000_B, Seconds(last)}};
  };
  const Topology topology = topology_of(two_ranks(), "gloo", {"a processor", 1_GiB}, {});
  const Link& link = topology.levels.front().link;
  EXPECT_EQ(link.send_receive.points, points(0.001, 2));
  EXPECT_EQ(link.all_reduce.at(2).points, points(0.002, 5));
  EXPECT_EQ(link.all_gather.at(2).points, points(0.0015, 2.5));
  EXPECT_EQ(link.reduce_scatter.at(2).points, points(0.0012, 2.6));
  EXPECT_TRUE(link.send_receive.log_spread);
  EXPECT_EQ(format::parse_topology(format::topology_json(topology), "topology.json"), topology);
}

TEST(TopologyOf, KeepsTheChannelAndTheProcessorTimeOfMessages) {
  LinkMeasurement measured = two_ranks();
  EXPECT_FALSE(topology_of(measured, "local", {"a processor", 1_GiB}, {}).levels.front().link.processing);
  measured.processing = MessageProcessing{MessageThread::Own,
                                          {{{4_B, Seconds(0.001)}, {1_MiB, Seconds(0.002)}}},
                                          {{{4_B, Seconds(0.003)}, {1_MiB, Seconds(0.004)}}}};
  const Topology topology = topology_of(measured, "ucx", {"a processor", 1_GiB}, {});
  EXPECT_EQ(topology.levels.front().link.channel, "ucx");
  EXPECT_EQ(topology.levels.front().link.processing, measured.processing);
  EXPECT_EQ(topology.provenance.notes.at("processor time of messages"),
            "on the thread that computes: 4 B 1.00 ms to send, 3.00 ms to receive; 1.00 MiB 2.00 ms to send, 4.00 ms "
            "to receive");
}

// Medians within 1.96 * 1.2533 * 1.4826 * MAD / (sqrt(7) * median): 1.4 % for a MAD of 1 %, 14 % for 10 %.
TEST(Distrust, NamesOtherProgramsAndVagueMedians) {
  LinkMeasurement measured = two_ranks();
  EXPECT_THAT(distrust(measured), ElementsAre());
  EXPECT_THAT(topology_of(measured, "gloo", {}, {}).levels.front().link.distrust, ElementsAre());

  measured.conditions.hosts = {{.ours = 1.25, .others = 0.75, .count = 2}};
  const std::string crowded = "other programs kept 0.8 of 2 processors busy, the ranks 1.2: measure on a quiet machine";
  EXPECT_THAT(distrust(measured), ElementsAre(crowded));

  std::size_t vague = 0;  // first 7 of 15 points: not more than half
  for (LinkCurve& curve : measured.curves) {
    for (LinkPoint& point : curve.points) {
      if (vague < 7) ++vague, point.time.spread = point.time.median * 0.1;
    }
  }
  EXPECT_THAT(distrust(measured), ElementsAre(crowded));
  measured.curves.back().points.back().time.spread = measured.curves.back().points.back().time.median * 0.1;
  const std::string uncertain =
      "8 of 15 medians are uncertain by more than 10 % (95 % confidence): the machine is busy, or --seconds is too "
      "small";
  EXPECT_THAT(distrust(measured), ElementsAre(crowded, uncertain));
  EXPECT_THAT(topology_of(measured, "gloo", {}, {}).levels.front().link.distrust, ElementsAre(crowded, uncertain));
}

// Faster than the smaller message, which happens with small messages: both take the lower median of 1 ms and 0.5 ms.
TEST(TopologyOf, FitsCurvesThatNeverFall) {
  LinkMeasurement measured = two_ranks();
  measured.curves[0].points[1].time.median = Seconds(0.0005);
  const Topology topology = topology_of(measured, "local", {}, {});
  const Curve& curve = topology.levels.front().link.send_receive;
  EXPECT_EQ(curve.points[0].time, Seconds(0.0005));
  EXPECT_EQ(curve.points[1].time, Seconds(0.0005));
  EXPECT_THAT(topology.provenance.notes.at("send_receive"),
              ::testing::EndsWith(
                  "; adjusted 1 of 3 times, by up to 50.0 % (at 4 bytes), so that the curve does not decrease"));
}

TEST(TopologyOf, OfOneDeviceKeepsItsCopiesAndSaysWhatTheRestIs) {
  LinkMeasurement measured;
  measured.ranks = 1;
  for (const LinkOperation operation : {SendReceive, AllReduce, AllGather, ReduceScatter})
    measured.curves.push_back({operation, 1, {point(4_B, 0.001), point(4000_B, 0.002)}});
  measured.curves.push_back({HostToDevice, 1, {point(4_B, 0.003), point(4000_B, 0.004)}});
  measured.curves.push_back({DeviceToHost, 1, {point(4_B, 0.005), point(4000_B, 0.006)}});
  const Topology topology = topology_of(measured, "nccl", {"a card", 1_GiB}, {});
  EXPECT_EQ(topology.name, "1 rank on one host, nccl channel");
  EXPECT_EQ(device_count(topology), 1);
  EXPECT_THAT(topology.device.host_to_device.points,
              ElementsAre(CurvePoint{4_B, Seconds(0.003)}, CurvePoint{4000_B, Seconds(0.004)}));
  EXPECT_THAT(topology.device.device_to_host.points,
              ElementsAre(CurvePoint{4_B, Seconds(0.005)}, CurvePoint{4000_B, Seconds(0.006)}));
  EXPECT_TRUE(topology.levels.front().link.all_reduce.empty());
  EXPECT_EQ(topology.provenance.notes.at("one rank"), "its send_receive is to itself, and its collectives are copies");
  EXPECT_EQ(topology.provenance.notes.count("all_reduce of 1"), 1U);
}

// Half-widths: 1.96 * 1.2533 * 1.4826 = 3.642; 3.642 * 0.2 / sqrt(40) = 11.5 %, 3.642 * 0.01 / sqrt(7) = 1.4 %.
TEST(TopologyOf, NotesHowGoodThePointsAre) {
  LinkMeasurement measured = two_ranks();
  measured.curves[0].points[1].time = {Seconds(0.003), Seconds(0.0006), 40};
  measured.curves[0].points[2].samples = 7;
  measured.curves[0].points[2].stop = Stop::Time;
  const Topology topology = topology_of(
      measured, "gloo", {}, {.tool = "a tool", .device = {}, .versions = {}, .date = {}, .notes = {{"kept", "yes"}}});
  EXPECT_EQ(topology.provenance.tool, "a tool");
  const auto& notes = topology.provenance.notes;
  EXPECT_EQ(notes.at("kept"), "yes");
  EXPECT_EQ(notes.at("channel"), "gloo");
  EXPECT_EQ(
      notes.at("send_receive"),
      "3 points of 7 to 40 rounds and 7 to 70 samples, 1 stopped by the time limit; medians within 11.5 % (95 %), the "
      "widest at 3.91 KiB");
  EXPECT_EQ(notes.at("all_reduce of 2"),
            "3 points of 7 rounds and 70 samples, 0 stopped by the time limit; medians within 1.4 % (95 %), the widest "
            "at 4 B");
  EXPECT_EQ(notes.at("duplex"), notes.at("all_reduce of 2") + "; at 7.63 MiB 1.50 times one way");  // 3 s over 2 s
  EXPECT_EQ(notes.count("slowest pair"), 0U);
  measured.slowest_pair = SlowestPair{1, 2, 4000_B, 1.25};
  EXPECT_EQ(topology_of(measured, "gloo", {}, {}).provenance.notes.at("slowest pair"),
            "ranks 1 and 2: 1.25 times ranks 0 and 1, at 3.91 KiB");
}

TEST(TopologyOf, RefusesPointsThatMakeNoCurve) {
  LinkMeasurement measured = two_ranks();
  std::swap(measured.curves[0].points[0], measured.curves[0].points[1]);
  EXPECT_THAT([&] { (void)topology_of(measured, "local", {}, {}); },
              ThrowsMessage<std::invalid_argument>("level \"host\": send_receive: points are not ascending in bytes"));
  measured = two_ranks();
  measured.curves[2].points[0].time.median = Seconds(0);
  EXPECT_THAT([&] { (void)topology_of(measured, "local", {}, {}); },
              ThrowsMessage<std::invalid_argument>("level \"host\": all_reduce: a time is not positive"));
  measured.curves.clear();
  EXPECT_THAT([&] { (void)topology_of(measured, "local", {}, {}); },
              ThrowsMessage<std::invalid_argument>("no transfer was measured"));
}

// 2^20 bytes in 2^-10 s is 1 GiB/s.
TEST(FitText, PrintsTheLineAndItsErrorAtHeldOutPoints) {
  LinkCurve curve{SendReceive, 2, {}};
  for (std::int64_t bytes = 4; bytes <= 1 << 20; bytes *= 4)
    curve.points.push_back(point(Bytes(bytes), 0x1p-14 + 0x1p-30 * static_cast<double>(bytes)));
  EXPECT_THAT(fit_text(curve),
              ::testing::StartsWith("1 line: from 0 B 61.0 us + 1.00 GiB/s; held out: median 0.0 %, p95 "
                                    "0.0 %, worst 0.0 % at "));
  EXPECT_EQ(topology_of({2, {curve}, {}}, "gloo", {}, {}).provenance.notes.at("send_receive fit"), fit_text(curve));
}

TEST(FitText, SaysWhenThereAreTooFewPoints) {
  EXPECT_EQ(fit_text({SendReceive, 2, {point(4_B, 1)}}), "too few points to fit");
  EXPECT_THAT(fit_text({SendReceive, 2, {point(4_B, 1), point(8_B, 2)}}),
              HasSubstr("; too few points for a held-out error"));
}

TEST(LinksTable, HasARowForEachMessageAndStarsWhatTimeEnded) {
  LinkMeasurement measured = two_ranks();
  measured.curves.resize(2);
  measured.curves[1].points[0].stop = Stop::Time;
  const std::string table = links_table(measured);
  EXPECT_THAT(table, HasSubstr("   message         send_receive               duplex\n"));
  EXPECT_THAT(table, HasSubstr("\n       4 B   1.00 ms +-  1.4 %    1.00 ms +-  1.4 %*\n"));
  EXPECT_THAT(table, HasSubstr("\n  7.63 MiB    2.00 s +-  1.4 %     3.00 s +-  1.4 % \n"));
  EXPECT_THAT(table, HasSubstr("*: time limit reached"));
}

}  // namespace
}  // namespace stagecraft::profiler
