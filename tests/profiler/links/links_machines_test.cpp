#include "profiler/links/links_machines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/index.h"
#include "tests/support/channels/ranks.h"

namespace stagecraft::profiler {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr LinksOptions kQuick{.most_bytes = Bytes(64), .most_time = Seconds(0.1)};

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
