#include "costmodel/interchange/rank_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "costmodel/errors.h"
#include "tests/support/chains.h"

namespace stagecraft::interchange {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::vector<HostSlots> kTwoHosts{{"red", 2}, {"blue", 2}};

/// A plan of two stages of two replicas on these devices.
BoundPlan on_devices(const std::vector<int>& first, const std::vector<int>& second) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  Plan plan = testing::one_layer_a_stage(graph, testing::flat_topology(4), {2, 2}, "1f1b", 4);
  plan.stages[0].devices = first;
  plan.stages[1].devices = second;
  return BoundPlan(plan);
}

TEST(RankFile, PutsEachRankOnTheHostOfItsDevice) {
  EXPECT_EQ(open_mpi_rank_file(on_devices({0, 1}, {2, 3}), kTwoHosts, 1),
            "rank 0=red slot=0\nrank 1=red slot=1\nrank 2=blue slot=0\nrank 3=blue slot=1\n");
  // Replica 0 of both stages on red; the second device of a host has cores 8 to 15.
  EXPECT_EQ(open_mpi_rank_file(on_devices({0, 2}, {1, 3}), kTwoHosts, 8),
            "rank 0=red slot=0-7\nrank 1=blue slot=0-7\nrank 2=red slot=8-15\nrank 3=blue slot=8-15\n");
}

TEST(RankFile, ListsHostsInTheOrderOfTheRanks) {
  EXPECT_EQ(host_list(on_devices({0, 1}, {2, 3}), kTwoHosts), "red slots=2\nblue slots=2\n");
  EXPECT_EQ(host_list(on_devices({2, 3}, {0, 1}), kTwoHosts), "blue slots=2\nred slots=2\n");
  EXPECT_EQ(host_list(on_devices({0, 1}, {2, 3}), {{"red", 3}, {"blue", 1}}), "red slots=3\nblue slots=1\n");
}

TEST(RankFile, SaysWhyAHostListCannotPlaceTheRanks) {
  EXPECT_THAT(
      [] { (void)host_list(on_devices({0, 2}, {1, 3}), kTwoHosts); },
      ThrowsMessage<std::invalid_argument>(HasSubstr("ranks 0 and 2 are on host red, but not rank 1 between them")));
  EXPECT_THAT([] { (void)host_list(on_devices({1, 0}, {2, 3}), kTwoHosts); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("ranks 0 and 1 are on devices 1 and 0 of host red")));
}

TEST(RankFile, RefusesDevicesBeyondTheHosts) {
  const auto what = HasSubstr("the plan uses device 2, the 1 host has 2 slots");
  EXPECT_THAT([] { (void)host_list(on_devices({0, 1}, {2, 3}), {{"red", 2}}); },
              ThrowsMessage<std::invalid_argument>(what));
  EXPECT_THAT([] { (void)open_mpi_rank_file(on_devices({0, 1}, {2, 3}), {{"red", 2}}, 1); },
              ThrowsMessage<std::invalid_argument>(what));
}

TEST(HostList, IsReadAsRunReadsIt) {
  EXPECT_THAT(parse_host_list("# ours\nred slots=4\n\nuser@10.0.0.7 # one\n", "hosts.txt"),
              ElementsAre(HostSlots{"red", 4}, HostSlots{"user@10.0.0.7", 1}));
}

TEST(HostList, TakesSlotsAfterAColonButNotOfAnAddress) {
  EXPECT_THAT(
      parse_host_list("red:8\nme@blue:2\nfe80::1 slots=3\n2001:db8::7\n", "hosts.txt"),
      ElementsAre(HostSlots{"red", 8}, HostSlots{"me@blue", 2}, HostSlots{"fe80::1", 3}, HostSlots{"2001:db8::7", 1}));
}

TEST(HostList, NamesFileAndLine) {
  const auto refuses = [](const std::string& text, const std::string& message) {
    EXPECT_THAT([&] { (void)parse_host_list(text, "h.txt"); }, ThrowsMessage<FormatError>(HasSubstr(message))) << text;
  };
  refuses("", "h.txt: has no hosts");
  refuses("red\n-x\n", "h.txt: line 2: \"-x\" is not a host name");
  refuses("red gpus=4\n", "h.txt: line 1: unknown word \"gpus=4\", expected NAME [slots=N]");
  refuses("red\n\nred\n", "h.txt: line 3: host \"red\" is already on line 1; set slots=N there");
  refuses("red\nme@red", "h.txt: line 2: host \"me@red\" is already on line 1; set slots=N there");
  refuses("-oProxyCommand=x", "h.txt: line 1: \"-oProxyCommand=x\" is not a host name, expected NAME [slots=N]");
  refuses("red:4 slots=4", "h.txt: line 1: the slots of \"red\" are given twice");
  refuses("red slots=4 slots=4", "h.txt: line 1: the slots of \"red\" are given twice");
  refuses("red:0", "h.txt: line 1: slots is \"0\", must be an integer from 1 to 1048576");
  refuses("red:", "h.txt: line 1: slots is \"\", must be an integer from 1 to 1048576");
  refuses("red:x", "h.txt: line 1: slots is \"x\", must be an integer from 1 to 1048576");
  refuses(":8", "h.txt: line 1: \"\" is not a host name");
  for (const char* slots : {"0", "-1", "x", "2x", "", "99999999999"})
    refuses("red slots=" + std::string(slots), "slots is \"" + std::string(slots) + "\", must be an integer");
}

}  // namespace
}  // namespace stagecraft::interchange
