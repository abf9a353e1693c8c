#include "costmodel/prediction/device_types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/predict.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::one_layer_a_stage;
using ::testing::ThrowsMessage;

/// `count` devices, all from `first` on of type "slow".
Topology mixed(int count, int first) {
  Topology out = flat_topology(count);
  out.others = {{first, count - first, {.name = "slow", .memory = std::nullopt}}};
  return out;
}

double step(const Graph& graph, const Topology& topology, const Plan& plan) {
  return std::get<Prediction>(predict(graph, topology, BoundPlan(plan))).iteration.value;
}

TEST(WithProfile, TimesEachStageOnItsType) {
  const Graph graph = chain_graph({1, 1}, {2, 2});
  const Topology topology = mixed(2, 1);
  const Plan plan = one_layer_a_stage(graph, topology, {1, 1}, "gpipe", 1);
  EXPECT_DOUBLE_EQ(step(graph, topology, plan), 6);  // both fast: 1 + 1 + 2 + 2
  // Stage 1 on the slow type: 1 + 3 + 5 + 2.
  EXPECT_DOUBLE_EQ(step(with_profile(graph, "slow", chain_graph({3, 3}, {5, 5})), topology, plan), 11);
  Plan turned = plan;  // stage 0 on the slow type
  std::swap(turned.stages[0].devices, turned.stages[1].devices);
  EXPECT_DOUBLE_EQ(step(with_profile(graph, "slow", chain_graph({3, 30}, {5, 50})), topology, turned), 11);
}

TEST(WithProfile, TakesTheSlowestTypeOfAStagesReplicas) {
  const Graph graph = with_profile(chain_graph({1}, {2}), "slow", chain_graph({3}, {5}));
  const Topology topology = mixed(2, 1);
  EXPECT_DOUBLE_EQ(step(graph, topology, one_layer_a_stage(graph, topology, {2}, "1f1b", 4)), 16);  // 2 * 8
}

TEST(WithProfile, CountsTheMemoryOfEachTypeAgainstItsOwn) {
  const Graph small = chain_graph({1, 1}, {2, 2}, 0_B, 100_B);
  Graph large = small;
  for (Layer& layer : large.layers) layer.workspace_bytes = 1000_B;
  Topology topology = mixed(2, 1);
  topology.device.memory = 300_B;
  topology.others[0].device.memory = 2000_B;
  const Plan plan = one_layer_a_stage(small, topology, {1, 1}, "gpipe", 1);
  auto stages = std::get<Prediction>(predict(with_profile(small, "slow", large), topology, BoundPlan(plan))).stages;
  EXPECT_EQ(stages[0].memory.total, 200_B);   // parameters and gradients
  EXPECT_EQ(stages[1].memory.total, 1100_B);  // parameters and the workspace of its type, in which gradients fit
  EXPECT_TRUE(stages[0].fits);
  EXPECT_TRUE(stages[1].fits);
  topology.others[0].device.memory = 1100_B;
  stages = std::get<Prediction>(predict(with_profile(small, "slow", large), topology, BoundPlan(plan))).stages;
  EXPECT_TRUE(stages[0].fits);
  EXPECT_FALSE(stages[1].fits);
}

TEST(WithProfile, RefusesAnotherModel) {
  const Graph one = chain_graph({1, 1}, {2, 2});
  const auto refusal = [&](const Graph& other) {
    try {
      (void)with_profile(one, "slow", other);
    } catch (const std::invalid_argument& e) { return std::string(e.what()); }
    return std::string();
  };
  EXPECT_THAT(refusal(chain_graph({1}, {2})),
              HasSubstr("the graph for \"slow\" has 1 layers, the graph 2: it describes another model"));
  Graph other = one;
  other.layers[1].id = "x";
  EXPECT_THAT(refusal(other), HasSubstr("has layer \"x\" where the graph has \"l1\""));
  other = one;
  other.layers[1].parameter_bytes = 4_B;
  EXPECT_THAT(refusal(other), HasSubstr("has different outputs or parameters in layer \"l1\""));
  other = one;
  other.microbatch_samples = 8;
  EXPECT_THAT(refusal(other), HasSubstr("has microbatches of 8 samples, the graph of an unknown number of"));
  const Graph both = with_profile(one, "slow", one);
  EXPECT_THAT([&] { (void)with_profile(both, "slow", one); },
              ThrowsMessage<std::invalid_argument>("there are two graphs for \"slow\""));
}

TEST(TypesOf, NamesEachTypeOnce) {
  const Topology topology = mixed(4, 2);
  EXPECT_THAT(types_of(topology, {0, 1}), ElementsAre(topology.device.name));
  EXPECT_THAT(types_of(topology, {3, 0, 2}), ElementsAre(topology.device.name, "slow"));
}

TEST(DeviceDifferences, NamesTypesWithoutAProfile) {
  const Graph graph = chain_graph({1, 1}, {2, 2});
  EXPECT_THAT(device_differences(graph, mixed(2, 1)), ElementsAre(HasSubstr("add --graph-for slow=GRAPH")));
  EXPECT_THAT(device_differences(with_profile(graph, "slow", graph), mixed(2, 1)), IsEmpty());
  Graph other = graph;
  other.device.name = "NVIDIA H100";
  EXPECT_THAT(device_differences(with_profile(graph, "slow", other), mixed(2, 1)),
              ElementsAre("the graph for \"slow\" was measured on \"NVIDIA H100\""));
}

TEST(Validate, RefusesRangesOfDevicesThatCannotBe) {
  const auto refusal = [](std::vector<DeviceRange> ranges) {
    Topology topology = flat_topology(4);
    topology.others = std::move(ranges);
    try {
      validate(topology);
    } catch (const std::invalid_argument& e) { return std::string(e.what()); }
    return std::string();
  };
  const Device slow{.name = "slow", .memory = std::nullopt};
  EXPECT_EQ(refusal({{0, 2, slow}, {2, 2, slow}}), "");
  EXPECT_EQ(refusal({{3, 2, slow}}), "devices of type \"slow\": device 4 does not exist, there are 4");
  EXPECT_EQ(refusal({{1, 2, slow}, {2, 1, slow}}), "devices of type \"slow\": the first is below 3");
  EXPECT_EQ(refusal({{1, 0, slow}}), "devices of type \"slow\": the count is below 1");
  Device same = flat_topology(1).device;
  EXPECT_THAT(refusal({{1, 1, same}}), HasSubstr("that is the type of the topology's other devices"));
}

}  // namespace
}  // namespace stagecraft
