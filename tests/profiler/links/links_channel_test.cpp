#include "profiler/links/links_channel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/index.h"
#include "executor/device/machine/processor.h"
#include "tests/support/channels/ranks.h"

namespace stagecraft::profiler {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr LinksOptions kQuick{.most_bytes = Bytes(64), .most_time = Seconds(0.1)};

/// The measurements by rank.
std::vector<LinkMeasurement> measure(const std::string& channel, int ranks, std::vector<std::string>* told = nullptr) {
  std::vector<LinkMeasurement> out(to_index(ranks));
  run_on_ranks(channel, ranks, std::chrono::seconds(20), [&](channel::Channel& c) {
    out[to_index(c.rank())] = measure_links(c, kQuick, 1, [&](const std::string& text) {
      if (told) told->push_back(text);
    });
  });
  return out;
}

class MeasureLinksOfChannel : public ::testing::TestWithParam<std::string> {};

TEST_P(MeasureLinksOfChannel, GivesEveryPointOfTwoToFourRanks) {
  for (const int ranks : {2, 3, 4}) {
    const LinkMeasurement measured = measure(GetParam(), ranks).front();
    EXPECT_EQ(measured.ranks, ranks);
    std::vector<LinkTask> given;
    for (const LinkCurve& curve : measured.curves) {
      for (const LinkPoint& point : curve.points) {
        given.push_back({curve.operation, point.bytes, curve.ranks, 0, 1});
        EXPECT_GT(point.time.median, Seconds(0));
        EXPECT_GE(point.time.count, 5);
        EXPECT_NE(point.stop, Stop::No);
      }
    }
    EXPECT_EQ(given, link_tasks(ranks, false, kQuick));
    EXPECT_EQ(measured.slowest_pair.has_value(), ranks > 2);
    if (measured.slowest_pair) { EXPECT_GE(measured.slowest_pair->ratio, 1); }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, MeasureLinksOfChannel, ::testing::ValuesIn(suite_channels()),
                         [](const auto& tested) { return tested.param; });

TEST(MeasureLinksOf, AChannelGivesRank0AloneTheMeasurementAndTheReports) {
  std::vector<std::string> told;
  const auto all = measure("local", 2, &told);
  EXPECT_EQ(all[1], (LinkMeasurement{.ranks = 2, .curves = {}, .slowest_pair = {}}));
  EXPECT_GE(told.size(), 5U * 6);  // before the warm-up and at least five rounds of each curve
  EXPECT_THAT(told.back(), ::testing::EndsWith("(5 of 5)"));
}

// Long enough for the counters of processor time; nothing else is assumed of the machine.
TEST(MeasureLinksOf, AChannelRecordsTheMachinesConditions) {
  std::vector<LinkMeasurement> out(2);
  run_on_ranks("local", 2, std::chrono::seconds(20), [&](channel::Channel& c) {
    out[to_index(c.rank())] = measure_links(c, {.most_bytes = Bytes(64), .most_time = Seconds(0.8), .error = 1e-9}, 1);
  });
  EXPECT_EQ(out[1].conditions, Conditions{});
  const Conditions& conditions = out[0].conditions;
  ASSERT_TRUE(conditions.yardstick);
  EXPECT_EQ(conditions.yardstick->threads, 1);
  for (const YardstickTimes& times : conditions.yardstick->works) EXPECT_EQ(times.readings, 2) << times.work;
  if (!device::processor_moment().machine) GTEST_SKIP() << "no /proc/stat";
  ASSERT_EQ(conditions.hosts.size(), 1U);
  EXPECT_GT(conditions.hosts.front().ours, 0);
}

TEST(MeasureLinksOf, AChannelRefusesOneRankAndNoThreads) {
  EXPECT_THAT(
      [] {
        run_on_ranks("local", 1, std::chrono::seconds(1),
                     [](channel::Channel& c) { (void)measure_links(c, kQuick, 1); });
      },
      ThrowsMessage<std::invalid_argument>("a channel of 1 rank has no links, must have at least 2"));
  EXPECT_THAT(
      [] {
        run_on_ranks("local", 2, std::chrono::seconds(1),
                     [](channel::Channel& c) { (void)measure_links(c, kQuick, 0); });
      },
      ThrowsMessage<std::invalid_argument>("the number of threads is 0, must be at least 1"));
}

MachineLinks measure(const std::vector<int>& machines) {
  MachineLinks out;
  run_on_ranks("local", to_int(machines.size()), std::chrono::seconds(20), [&](channel::Channel& channel) {
    MachineLinks links = measure_machines(channel, machines, kQuick, 1);
    if (channel.rank() == 0) out = std::move(links);
  });
  return out;
}

TEST(MeasureMachines, MeasuresInsideOneAndBetweenAll) {
  const MachineLinks measured = measure({0, 0, 1, 1, 2, 2});
  EXPECT_EQ(measured.ranks_per_machine, 2);
  EXPECT_EQ(measured.inside.ranks, 2);
  EXPECT_EQ(measured.between.ranks, 3);
  EXPECT_FALSE(measured.inside.curves.empty());

  const Topology topology = topology_of(measured, "ucx", {"a processor", Bytes(1)}, {});
  EXPECT_EQ(topology.name, "6 ranks on 3 hosts, ucx channel");
  ASSERT_EQ(topology.levels.size(), 2U);
  EXPECT_EQ(topology.levels[0].name, "host");
  EXPECT_EQ(topology.levels[0].count, 2);
  EXPECT_EQ(topology.levels[1].name, "network");
  EXPECT_EQ(topology.levels[1].count, 3);
  EXPECT_EQ(topology.levels[1].link.send_receive.points.size(), 5U);  // 4 B to 64 B
  EXPECT_TRUE(topology.provenance.notes.contains("network send_receive"));
}

TEST(MeasureMachines, KeepsTheConditionsOfEveryHost) {
  MachineLinks measured = measure({0, 0, 1, 1});
  ASSERT_TRUE(measured.inside.conditions.yardstick);
  measured.inside.conditions.hosts = {{2, 0, 4}};
  measured.between.conditions.hosts = {{0.5, 0, 4}, {1, 0.25, 8}};
  const Conditions conditions = topology_of(measured, "ucx", {"a processor", Bytes(1)}, {}).conditions;
  EXPECT_EQ(conditions.hosts, (std::vector<ProcessorUse>{{2, 0, 4}, {1, 0.25, 8}}));
  EXPECT_EQ(conditions.yardstick, measured.inside.conditions.yardstick);
}

TEST(MeasureMachines, SaysWhichLinksAreNotTrusted) {
  MachineLinks measured = measure({0, 0, 1, 1});
  measured.inside.conditions.hosts = {{1.25, 0.75, 2}};
  measured.between.conditions.hosts = {{0.5, 0, 2}, {0.5, 0, 2}};
  const Topology topology = topology_of(measured, "ucx", {"a processor", Bytes(1)}, {});
  EXPECT_THAT(topology.levels[0].link.distrust, ::testing::Contains(HasSubstr("other programs kept 0.8 of 2")));
  EXPECT_THAT(topology.levels[1].link.distrust, ::testing::Not(::testing::Contains(HasSubstr("other programs"))));
}

TEST(MeasureMachines, KnowsOnlyTheNetworkWithOneRankEach) {
  const MachineLinks measured = measure({0, 1});
  EXPECT_TRUE(measured.inside.curves.empty());
  const Topology topology = topology_of(measured, "gloo", {"a processor", Bytes(1)}, {});
  EXPECT_EQ(topology.name, "2 ranks on 2 hosts, gloo channel");
  ASSERT_EQ(topology.levels.size(), 1U);
  EXPECT_EQ(topology.levels[0].name, "network");
}

TEST(MeasureMachines, NamesARankThatIsOutOfPlace) {
  EXPECT_THAT([] { (void)measure({0, 1, 0, 1}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("rank 1 is on machine 1")));
  EXPECT_THAT([] { (void)measure({0, 0, 1}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("rank 1 is on machine 0")));
  EXPECT_THAT([] { (void)measure({0, 0}); }, ThrowsMessage<std::invalid_argument>(HasSubstr("on one machine")));
}

}  // namespace
}  // namespace stagecraft::profiler
