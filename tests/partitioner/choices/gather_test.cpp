#include "partitioner/choices/gather.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

#include "partitioner/choices/choice.h"
#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Constraints of_four(const std::string& schedule) {
  Constraints out;
  out.plan.microbatches = 4;
  out.plan.schedule = schedule;
  return out;
}

std::vector<double> steps(const Gathered& gathered) {
  std::vector<double> out;
  for (const RankedPlan& ranked : gathered.plans) out.push_back(ranked.prediction.iteration.value);
  return out;
}

// Two layers of 3 s, four microbatches: both layers on two devices 2 * 6, a layer on each (4 + 1) * 3, one device 4
// * 6.
TEST(Gather, FindsEveryPlanOfTwoLayersOnceByStep) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  const Gathered found = gather(graph, testing::flat_topology(2), simulated_costs(), of_four("gpipe"), {});
  EXPECT_THAT(steps(found), ElementsAre(12, 15, 24));
  EXPECT_EQ(found.lower_bound, 12_s);
  EXPECT_EQ(found.not_simulated, 0);
  for (const RankedPlan& ranked : found.plans) EXPECT_TRUE(ranked.prediction.timeline.spans.empty());
}

TEST(Gather, AsksOneStrategyWhereOneIsNamed) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  GatherOptions options;
  options.strategy = "uniform";
  const Topology topology = testing::flat_topology(2);
  EXPECT_THAT(steps(gather(graph, topology, simulated_costs(), of_four("gpipe"), options)), ElementsAre(15));
  options.fewer_devices = true;  // uniform takes all devices there are
  EXPECT_THAT(steps(gather(graph, topology, simulated_costs(), of_four("gpipe"), options)), ElementsAre(15, 24));
  options.strategy = "pipedream";
  Constraints stages = of_four("gpipe");
  stages.stages = 2;
  EXPECT_THAT([&] { (void)gather(graph, topology, simulated_costs(), stages, options); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("finds the number itself")));
}

TEST(Gather, PredictsPlansOnFewerDevicesOnTheWholeTopology) {
  Graph graph = testing::chain_graph({1, 1, 1}, {2, 2, 2}, 100_B);
  Topology topology = testing::flat_topology(2, 1000);
  topology.levels.push_back({"cluster", 2, {BytesPerSecond(100), 0_s, {}, {}}});
  GatherOptions options;
  options.fewer_devices = true;
  const Gathered found = gather(graph, topology, simulated_costs(), of_four("1f1b"), options);
  std::vector<bool> seen(5);
  for (const RankedPlan& ranked : found.plans) {
    validate(ranked.plan, graph, topology);
    EXPECT_EQ(ranked.prediction.devices, 4);
    seen[static_cast<std::size_t>(merits(ranked).devices)] = true;
  }
  EXPECT_THAT(seen, ElementsAre(false, true, true, true, true));
  EXPECT_TRUE(std::ranges::is_sorted(steps(found), [](double a, double b) { return a < b * (1 - 1e-9); }));
}

TEST(Gather, TriesRecomputationOnceAndNotWhereItIsAskedFor) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  GatherOptions options;
  options.recomputation = true;
  const auto recomputed = [](const Gathered& gathered) {
    return std::ranges::count_if(gathered.plans, [](const RankedPlan& r) { return r.plan.stages[0].recompute; });
  };
  const Topology topology = testing::flat_topology(1);
  // On one device: kept 4 * 6 s, recomputed 4 * 8 s as a whole and layer by layer.
  const Gathered all = gather(graph, topology, simulated_costs(), of_four("gpipe"), options);
  EXPECT_THAT(steps(all), ElementsAre(24, 32, 32));
  EXPECT_EQ(recomputed(all), 2);
  Constraints asked = of_four("gpipe");
  asked.plan.recompute = true;
  EXPECT_THAT(steps(gather(graph, topology, simulated_costs(), asked, options)), ElementsAre(32));
  EXPECT_EQ(recomputed(gather(graph, topology, simulated_costs(), of_four("forward"), options)), 0);
}

TEST(Gather, SaysWhyThereAreNoPlans) {
  Graph graph = testing::chain_graph({1, 1}, {2, 2});
  for (Layer& layer : graph.layers) layer.saved_bytes = 100_B;
  Constraints tight = of_four("gpipe");
  tight.memory_limit = 10_B;
  const Gathered found = gather(graph, testing::flat_topology(2), simulated_costs(), tight, {});
  EXPECT_TRUE(found.plans.empty());
  EXPECT_THAT(found.reason.reason, HasSubstr("no plan fits in memory"));
  EXPECT_EQ(found.reason.kind, ErrorKind::DoesNotFit);
}

}  // namespace
}  // namespace stagecraft::partitioner
