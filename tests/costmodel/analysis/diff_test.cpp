#include "costmodel/analysis/diff.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using testing::flat_topology;

Plan in_stages(const Graph& graph, const Topology& topology, const std::vector<int>& stages,
               const std::vector<int>& replicas, const PlanSettings& settings) {
  return make_plan(graph, topology, {stages, replicas}, settings);
}

TEST(Diff, FindsWhereTwoPlansDiffer) {
  const Graph graph = chain_graph({1, 1, 1}, {2, 2, 2});
  const Topology topology = flat_topology(4);
  const Plan a = in_stages(graph, topology, {0, 0, 1}, {1, 1}, {.microbatches = 4});
  PlanSettings other{.microbatches = 8, .schedule = "gpipe"};
  other.recompute = true;
  const Plan b = in_stages(graph, topology, {0, 1, 1}, {2, 1}, other);
  EXPECT_THAT(moved_layers(BoundPlan(a), BoundPlan(b)), ::testing::ElementsAre(MovedLayer{"l1", 0, 1}));
  EXPECT_THAT(plan_differences(a, b),
              ::testing::IsSupersetOf(std::vector<PlanDifference>{{"schedule", "1f1b", "gpipe"},
                                                                  {"microbatches", "4", "8"},
                                                                  {"stage 0 replicas", "1", "2"},
                                                                  {"stage 0 devices", "0", "0,1"},
                                                                  {"stage 1 devices", "1", "2"},
                                                                  {"stage 0 recomputation", "off", "on"}}));
  EXPECT_TRUE(moved_layers(BoundPlan(a), BoundPlan(a)).empty());
  EXPECT_TRUE(plan_differences(a, a).empty());
  // a uses 2 devices, b 3.
  EXPECT_THAT(plan_differences(a, b), ::testing::Contains(PlanDifference{"devices", "2", "3"}));
  const auto compared = std::get<PlanComparison>(compare_plans(graph, topology, a, b));
  EXPECT_THAT(plan_comparison_text(compared, "a", "b", 100),
              ::testing::HasSubstr("a uses 2 devices and b uses 3: per device and microbatch, the first takes "));
  Plan wide = a;
  wide.stages[0].devices = {0, 1, 2, 3, 5};
  EXPECT_THAT(plan_differences(a, wide), ::testing::Contains(PlanDifference{"stage 0 devices", "0", "0-3,5"}));
}

// Equal stages: (M + p - 1)(F + B) = 5 * 3 s for 4 microbatches; with three of four layers in stage 0 it is slower.
TEST(Diff, SaysWhichIsFaster) {
  const Graph graph = chain_graph({1, 1, 1, 1}, {2, 2, 2, 2});
  const Topology topology = flat_topology(2);
  const Plan even = in_stages(graph, topology, {0, 0, 1, 1}, {1, 1}, {.microbatches = 4});
  const Plan uneven = in_stages(graph, topology, {0, 0, 0, 1}, {1, 1}, {.microbatches = 4});
  const auto result = std::get<PlanComparison>(compare_plans(graph, topology, even, uneven));
  EXPECT_EQ(result.first.iteration, Seconds(30));
  EXPECT_LT(result.ratio.ratio, 1);
  EXPECT_GT(result.ratio.first_faster, 0.9);
  const std::string text = plan_comparison_text(result, "even.json", "uneven.json", 100);
  EXPECT_THAT(text, ::testing::HasSubstr("layer l2: stage 1 and stage 0"));
  EXPECT_THAT(text, ::testing::HasSubstr("even.json is faster with a probability of "));
  const auto same = std::get<PlanComparison>(compare_plans(graph, topology, even, even));
  EXPECT_THAT(plan_comparison_text(same, "a", "b", 100), ::testing::HasSubstr("the plans do not differ"));
}

}  // namespace
}  // namespace stagecraft
