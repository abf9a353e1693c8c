#include "costmodel/analysis/scaling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/bound_plan.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;
using testing::one_layer_a_stage;
using ::testing::ThrowsMessage;

Scenario two_stages() {
  Scenario out;
  out.graph = chain_graph({1, 1}, {2, 2});
  out.topology = flat_topology(2);
  out.plan = one_layer_a_stage(out.graph, out.topology, {1, 1}, "1f1b", 4);
  return out;
}

TEST(Scaled, PutsEachCopyOnSeparateDevices) {
  const Scenario three = scaled(two_stages(), 3, ScaledWork::PerCopy);
  EXPECT_EQ(device_count(three.topology), 6);
  EXPECT_THAT(three.plan.stages[0].devices, ElementsAre(0, 2, 4));
  EXPECT_THAT(three.plan.stages[1].devices, ElementsAre(1, 3, 5));
  EXPECT_EQ(three.plan.microbatches, 12);
  EXPECT_EQ(scaled(two_stages(), 3, ScaledWork::Fixed).plan.microbatches, 4);
  EXPECT_NO_THROW(validate(BoundPlan(three.plan), three.graph, three.topology));
}

TEST(Scaled, RepeatsTheTypesOfDevices) {
  Scenario one = two_stages();
  one.topology.others = {{1, 1, {.name = "slow", .memory = std::nullopt}}};
  const Topology topology = scaled(one, 2, ScaledWork::PerCopy).topology;
  ASSERT_EQ(topology.others.size(), 2U);
  EXPECT_EQ(topology.others[1].first, 3);
}

TEST(Scaled, RefusesWhatCannotBeCopied) {
  Scenario one = two_stages();
  EXPECT_THAT([&] { (void)scaled(one, 0, ScaledWork::PerCopy); },
              ThrowsMessage<std::invalid_argument>("0 copies: there must be at least 1"));
  one.topology.device.host_processors = 2;
  EXPECT_THAT([&] { (void)scaled(one, 2, ScaledWork::PerCopy); },
              ThrowsMessage<std::invalid_argument>(::testing::HasSubstr("add a level for the link that joins hosts")));
  one = two_stages();
  one.plan.schedule = "zb-h1";
  EXPECT_THAT(
      [&] { (void)scaled(one, 2, ScaledWork::PerCopy); },
      ThrowsMessage<std::invalid_argument>("2 copies: schedule \"zb-h1\" does not support replicas; 1f1b does"));
}

/// Two nodes of two devices; a stage on each node.
Scenario two_nodes() {
  Scenario out = two_stages();
  out.topology.levels = {Level{"device", 2, out.topology.levels[0].link},
                         Level{"node", 2, out.topology.levels[0].link}};
  out.plan = one_layer_a_stage(out.graph, out.topology, {2, 2}, "1f1b", 4);
  return out;
}

// Devices 0, 1 | 2, 3 become 0, 1, (2, 3) | 4, 5, (6, 7); with more nodes 0, 1 | 2, 3 | (4, 5) | (6, 7).
TEST(WithGroups, CopiesThePlanWithinTheLevel) {
  const Scenario larger = with_groups(two_nodes(), 0, 4);
  EXPECT_EQ(device_count(larger.topology), 8);
  EXPECT_THAT(larger.plan.stages[0].devices, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(larger.plan.stages[1].devices, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(larger.plan.microbatches, 8);
  const Scenario more = with_groups(two_nodes(), 1, 4);
  EXPECT_THAT(more.plan.stages[0].devices, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(more.plan.stages[1].devices, ElementsAre(2, 3, 6, 7));
  EXPECT_NO_THROW(validate(BoundPlan(more.plan), more.graph, more.topology));
}

TEST(WithGroups, DropsWhatItCopied) {
  for (const int level : {0, 1}) {
    for (const int factor : {2, 3}) {
      const Scenario one = two_nodes();
      const Scenario back = with_groups(with_groups(one, level, 2 * factor), level, 2);
      EXPECT_EQ(back.topology, one.topology);
      EXPECT_EQ(back.plan.microbatches, 4);
      for (const std::size_t s : {0U, 1U}) EXPECT_EQ(back.plan.stages[s].devices, one.plan.stages[s].devices);
    }
  }
}

// Of the two replicas of each stage one is on the first device of its node.
TEST(WithGroups, KeepsTheReplicasOnTheDevicesThatStay) {
  const Scenario half = with_groups(two_nodes(), 0, 1);
  EXPECT_THAT(half.plan.stages[0].devices, ElementsAre(0));
  EXPECT_THAT(half.plan.stages[1].devices, ElementsAre(1));
  EXPECT_EQ(half.plan.microbatches, 2);
}

TEST(WithGroups, RefusesAPlanThatIsNotSoManyCopies) {
  const auto refusal = [](const Scenario& one, int level, int count) {
    try {
      (void)with_groups(one, level, count);
    } catch (const std::invalid_argument& e) { return std::string(e.what()); }
    return std::string();
  };
  EXPECT_EQ(refusal(two_nodes(), 1, 3),
            "found 3, expected a multiple or a divisor of 2, so that the plan has as many copies; for another number "
            "plan again");
  EXPECT_EQ(refusal(two_nodes(), 1, 1),
            "stage 0 has 2 of its 2 replicas on the devices that stay, not one in 2; plan again for the smaller "
            "topology");
  Scenario odd = two_nodes();
  odd.plan.microbatches = 3;
  EXPECT_EQ(refusal(odd, 0, 1),
            "the copies that stay have one in 2 of the plan's 3 microbatches, which is not an integer; set "
            "microbatches first");
  Scenario mixed = two_nodes();
  mixed.topology.others = {{3, 1, {.name = "slow", .memory = std::nullopt}}};
  EXPECT_EQ(refusal(mixed, 0, 4), "needs devices of one type, the topology has several");
  EXPECT_EQ(with_groups(mixed, 1, 4).topology.others.back().first, 7);
  mixed = two_nodes();
  mixed.plan.schedule = "zb-h1";
  EXPECT_EQ(refusal(mixed, 1, 4), "2 copies: schedule \"zb-h1\" does not support replicas; 1f1b does");
}

// Without parameters nothing is summed: each copy takes as long as one alone.
TEST(PredictScaling, IsPerfectWithoutGradients) {
  const auto result = predict_scaling(two_stages(), {1, 2, 4}, ScaledWork::PerCopy, std::nullopt);
  const auto& points = std::get<std::vector<ScalePoint>>(result);
  ASSERT_EQ(points.size(), 3U);
  for (const ScalePoint& point : points) {
    EXPECT_DOUBLE_EQ(point.iteration.value, 15);  // (4 + 1) * 3
    EXPECT_NEAR(point.efficiency, 1, 1e-12);
    EXPECT_LE(point.efficiency_low, 1);
    EXPECT_GE(point.efficiency_high, 1);
    EXPECT_LT(point.low, point.iteration);
    EXPECT_GT(point.high, point.iteration);
    EXPECT_TRUE(point.fits);
  }
  EXPECT_EQ(points[2].devices, 8);
}

}  // namespace
}  // namespace stagecraft
