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
