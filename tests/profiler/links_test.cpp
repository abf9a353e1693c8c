#include "profiler/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "costmodel/format/json.h"
#include "tests/support/ranks.h"

namespace stagecraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

LinkPoint point(Bytes bytes, double seconds) {
  return {bytes, {Seconds(seconds), Seconds(seconds / 100), 7}, Stop::Precise};
}

// ---- what is measured

TEST(MessageBytes, GrowsByFour) {
  EXPECT_THAT(message_bytes(300_B), ElementsAre(4_B, 16_B, 64_B, 256_B, 300_B));
  EXPECT_THAT(message_bytes(256_B), ElementsAre(4_B, 16_B, 64_B, 256_B));
  EXPECT_EQ(message_bytes(64_MiB).size(), 13U);  // 4 = 4^1, 64 MiB = 4^13
}

TEST(MessageBytes, CountsWholeFloats) {
  EXPECT_THAT(message_bytes(19_B), ElementsAre(4_B, 16_B));
  EXPECT_THAT(message_bytes(7_B), ElementsAre(4_B));
}

TEST(MessageBytes, RefusesLessThanAFloatAndMoreThanMemory) {
  EXPECT_THAT([] { (void)message_bytes(3_B); },
              ThrowsMessage<std::invalid_argument>("the largest message is 3 bytes, wanted 4 to 17179869184"));
  EXPECT_THAT([] { (void)message_bytes(17_GiB); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("wanted 4 to 17179869184")));
}

// ---- the topology of given points

/// Two ranks; 1 ms for the smallest message, 2 s for 8 MB: 4 MB/s.
LinkMeasurement two_ranks() {
  LinkMeasurement out;
  out.ranks = 2;
  out.send_receive = {point(4_B, 0.001), point(4000_B, 0.003), point(8000000_B, 2)};
  out.all_reduce[2] = {point(4_B, 0.002), point(8000000_B, 5)};
  return out;
}

TEST(TopologyOf, TakesLatencyAndBandwidthFromTheEnds) {
  const Topology topology = topology_of(two_ranks(), "gloo", {"a processor", 1_GiB}, {});
  EXPECT_EQ(topology.name, "2 ranks on one host, gloo channel");
  EXPECT_EQ(topology.device, (Device{"a processor", 1_GiB}));
  ASSERT_EQ(topology.levels.size(), 1U);
  const Level& host = topology.levels.front();
  EXPECT_EQ(host.name, "host");
  EXPECT_EQ(host.count, 2);
  EXPECT_EQ(host.link.latency, Seconds(0.001));
  EXPECT_EQ(host.link.bandwidth, BytesPerSecond(4e6));
  EXPECT_EQ(host.link.origin, Origin::Measured);
}

TEST(TopologyOf, KeepsTheCurves) {
  const Link link = topology_of(two_ranks(), "gloo", {}, {}).levels.front().link;
  EXPECT_THAT(link.send_receive.points, ElementsAre(CurvePoint{4_B, Seconds(0.001)}, CurvePoint{4000_B, Seconds(0.003)},
                                                    CurvePoint{8000000_B, Seconds(2)}));
  ASSERT_EQ(link.all_reduce.size(), 1U);
  EXPECT_THAT(link.all_reduce.at(2).points,
              ElementsAre(CurvePoint{4_B, Seconds(0.002)}, CurvePoint{8000000_B, Seconds(5)}));
}

TEST(TopologyOf, SmoothsNothing) {
  LinkMeasurement measured = two_ranks();
  measured.send_receive[1].time.median = Seconds(0.0005);  // faster than the smaller message, as small ones can be
  EXPECT_EQ(topology_of(measured, "local", {}, {}).levels.front().link.send_receive.points[1].time, Seconds(0.0005));
}

TEST(TopologyOf, NotesHowGoodThePointsAre) {
  LinkMeasurement measured = two_ranks();
  measured.send_receive[1].time = {Seconds(0.003), Seconds(0.0006), 40};
  measured.send_receive[2].stop = Stop::Time;
  const Topology topology = topology_of(
      measured, "gloo", {}, {.tool = "a tool", .device = {}, .versions = {}, .date = {}, .notes = {{"kept", "yes"}}});
  EXPECT_EQ(topology.provenance.tool, "a tool");
  const auto& notes = topology.provenance.notes;
  EXPECT_EQ(notes.at("kept"), "yes");
  EXPECT_EQ(notes.at("channel"), "gloo");
  EXPECT_EQ(notes.at("send_receive"),
            "3 points of 7 to 40 samples, 1 ended by time; spread up to 20.0 % of the median, at 3.91 KiB");
  EXPECT_EQ(notes.at("all_reduce of 2"),
            "2 points of 7 to 7 samples, 0 ended by time; spread up to 1.0 % of the median, at 4 B");
  EXPECT_EQ(notes.count("slowest pair"), 0U);
  measured.slowest_pair = SlowestPair{1, 2, 4000_B, 1.25};
  EXPECT_EQ(topology_of(measured, "gloo", {}, {}).provenance.notes.at("slowest pair"),
            "ranks 1 and 2: 1.25 times ranks 0 and 1, at 3.91 KiB");
}

TEST(TopologyOf, RefusesPointsThatMakeNoCurve) {
  LinkMeasurement measured = two_ranks();
  std::swap(measured.send_receive[0], measured.send_receive[1]);
  EXPECT_THAT([&] { (void)topology_of(measured, "local", {}, {}); },
              ThrowsMessage<std::invalid_argument>("level \"host\": send_receive: points are not ascending in bytes"));
  measured = two_ranks();
  measured.all_reduce[2][0].time.median = Seconds(0);
  EXPECT_THAT([&] { (void)topology_of(measured, "local", {}, {}); },
              ThrowsMessage<std::invalid_argument>("level \"host\": all_reduce: a time is not positive"));
  measured.send_receive.clear();
  EXPECT_THAT([&] { (void)topology_of(measured, "local", {}, {}); },
              ThrowsMessage<std::invalid_argument>("no transfer was measured"));
}

// ---- a real channel

constexpr LinksOptions kQuick{.most_bytes = Bytes(64), .rule = {.fewest = 5, .least = 5, .most_seconds = 0.01}};

/// The measurements by rank.
std::vector<LinkMeasurement> measure(const std::string& channel, int ranks, std::vector<std::string>* told = nullptr) {
  std::vector<LinkMeasurement> out(static_cast<std::size_t>(ranks));
  run_on_ranks(channel, ranks, std::chrono::seconds(20), [&](Channel& c) {
    out[static_cast<std::size_t>(c.rank())] = measure_links(c, kQuick, [&](const std::string& text) {
      if (told) told->push_back(text);
    });
  });
  return out;
}

class MeasureLinks : public testing::TestWithParam<std::string> {};

TEST_P(MeasureLinks, GivesEveryPointOfTwoRanks) {
  const LinkMeasurement measured = measure(GetParam(), 2).front();
  EXPECT_EQ(measured.ranks, 2);
  ASSERT_EQ(measured.all_reduce.size(), 1U);
  for (const auto& points : {measured.send_receive, measured.all_reduce.at(2)}) {
    ASSERT_EQ(points.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
      EXPECT_EQ(points[i].bytes, message_bytes(64_B)[i]);
      EXPECT_GT(points[i].time.median, Seconds(0));
      EXPECT_GE(points[i].time.count, 5);
      EXPECT_NE(points[i].stop, Stop::No);
    }
  }
  EXPECT_EQ(measured.slowest_pair, std::nullopt);
}

TEST_P(MeasureLinks, GivesAllReducesOfTwoAndThreeRanks) {
  const LinkMeasurement measured = measure(GetParam(), 3).front();
  ASSERT_EQ(measured.all_reduce.size(), 2U);
  EXPECT_EQ(measured.all_reduce.at(2).size(), 3U);
  EXPECT_EQ(measured.all_reduce.at(3).size(), 3U);
  ASSERT_TRUE(measured.slowest_pair);
  EXPECT_GE(measured.slowest_pair->ratio, 1);
  EXPECT_EQ(measured.slowest_pair->bytes, 64_B);
  const Topology topology = topology_of(measured, GetParam(), {"a processor", 1_GiB}, {});
  EXPECT_EQ(parse_topology(topology_json(topology), "topology.json"), topology);
}

INSTANTIATE_TEST_SUITE_P(Every, MeasureLinks, testing::ValuesIn(channel_names()),
                         [](const auto& tested) { return tested.param; });

TEST(MeasureLinksOn, OnlyRank0HasTheMeasurementAndReports) {
  std::vector<std::string> told;
  const auto all = measure("local", 2, &told);
  EXPECT_EQ(all[1], (LinkMeasurement{.ranks = 2, .send_receive = {}, .all_reduce = {}, .slowest_pair = {}}));
  EXPECT_THAT(told,
              ElementsAre("send and receive 4 B", "send and receive 16 B", "send and receive 64 B",
                          "all-reduce of 2 ranks, 4 B", "all-reduce of 2 ranks, 16 B", "all-reduce of 2 ranks, 64 B"));
}

TEST(MeasureLinksOn, RefusesOneRankAndNoThreads) {
  EXPECT_THAT(
      [] { run_on_ranks("local", 1, std::chrono::seconds(1), [](Channel& c) { (void)measure_links(c, kQuick); }); },
      ThrowsMessage<std::invalid_argument>("a channel of 1 rank has no links, wanted at least 2"));
  EXPECT_THAT(
      [] {
        run_on_ranks("local", 2, std::chrono::seconds(1), [](Channel& c) { (void)measure_links(c, {.threads = 0}); });
      },
      ThrowsMessage<std::invalid_argument>("the number of threads is 0, wanted at least 1"));
}

}  // namespace
}  // namespace stagecraft
