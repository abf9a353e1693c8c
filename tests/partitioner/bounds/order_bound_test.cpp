#include "partitioner/bounds/order_bound.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "partitioner/cost_model.h"
#include "partitioner/costs/heaviest_path.h"
#include "tests/partitioner/bounds/bounds.h"
#include "tests/partitioner/bounds/shortest.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

constexpr int kAllCuts = 1000;

StageOrder on_path(std::vector<int> replicas) {
  StageOrder out;
  out.on_path.assign(replicas.size(), true);
  out.replicas = std::move(replicas);
  return out;
}

/// The largest time that the bound refutes, within 1e-5.
double bound_of(OrderBound& bound, const StageOrder& stages) {
  return largest_refuted(1e-5, [&](Seconds time) { return bound.refutes(time, stages, kNoStop); });
}

/// 60 layers of 1 + 2 s in two stages under 1F1B: with x layers in the first, whose warm-up is one microbatch, 20
/// microbatches take max(180 + 19 (3 x) ..., ...). Equal stages of 90 s take (20 + 1) 90 s, and no other cut is
/// better: the longer stage alone computes 20 times, and the other one before and after it.
TEST(OrderBound, IsTheStepOfEqualStages) {
  const Graph graph = testing::chain_graph(std::vector<double>(60, 1), std::vector<double>(60, 2));
  const PipelineCosts costs(graph, testing::flat_topology(2), settings_of("1f1b", 20));
  const PathCuts cuts(costs, kAllCuts);
  OrderBound bound(costs, cuts);
  EXPECT_NEAR(bound_of(bound, on_path({1, 1})), 21 * 90, 0.5);
  const std::vector<Split> splits = bound.splits(9);
  ASSERT_EQ(splits.size(), 1U);
  EXPECT_EQ(splits.front().replicas, (std::vector<int>{1, 1}));
  EXPECT_EQ(std::ranges::count(splits.front().stage_of_node, 0), 30);
}

/// A stage of 0.5 + 1 s, and two replicas of 2 + 4 s, which have the microbatches in turn. The first stage holds 3 of
/// 6: F0 F1 F2 until 1.5 s; B0, whose gradient comes after 0.5 + 6 s, until 7.5; F3 until 8; B1 until 9. The second
/// replica, done with microbatch 1 after 7 s, has 3 only now, until 14, and 5 until 20 s; its backward ends at 21 s.
TEST(OrderBound, KnowsTheOrderOfActions) {
  const Graph graph = testing::chain_graph({0.5, 2}, {1, 4});
  const PipelineCosts costs(graph, testing::flat_topology(3), settings_of("1f1b", 6));
  const PathCuts cuts(costs, kAllCuts);
  OrderBound bound(costs, cuts);
  EXPECT_NEAR(bound_of(bound, on_path({1, 2})), 21, 1e-3);
}

/// One stage on 4 devices computes 2 (4 + 8) s and sums 4e9 bytes in 2 (3 / 4) 4 s; in buckets, its backward of 8 s
/// hides them.
TEST(OrderBound, AddsTheReduce) {
  const Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}, Bytes(0), Bytes(1'000'000'000));
  PlanSettings settings = settings_of("1f1b", 8);
  for (const double expected : {30.0, 24.0}) {
    const PipelineCosts costs(graph, testing::flat_topology(4), settings);
    const PathCuts cuts(costs, kAllCuts);
    OrderBound bound(costs, cuts);
    EXPECT_NEAR(bound_of(bound, on_path({4})), expected, 1e-3);
    settings.gradient_bucket_bytes = Bytes(1'000'000'000);
  }
}

/// Stages without a node of the path: the second layer is one, and the bound still is that of the others.
TEST(OrderBound, LeavesOutStagesBesideThePath) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  const PipelineCosts costs(graph, testing::flat_topology(3), settings_of("1f1b", 4));
  const PathCuts cuts(costs, kAllCuts);
  OrderBound bound(costs, cuts);
  EXPECT_NEAR(bound_of(bound, on_path({1, 1})), 15, 1e-3);                   // (4 + 1) 3 s
  EXPECT_NEAR(bound_of(bound, {{1, 1, 1}, {true, false, true}}), 15, 1e-3);  // more are in flight
  EXPECT_EQ(bound.refutes(Seconds(1e9), {{1}, {false}}, kNoStop), false);    // nothing is known
  EXPECT_EQ(bound.refutes(Seconds(1), on_path({1, 1, 1}), kNoStop), false);  // longer than the path
  EXPECT_EQ(bound.splits(9).size(), 1U);
}

TEST(OrderBound, IsStopped) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  const PipelineCosts costs(graph, testing::flat_topology(3), settings_of("1f1b", 4));
  const PathCuts cuts(costs, kAllCuts);
  OrderBound bound(costs, cuts);
  EXPECT_EQ(bound.refutes(Seconds(14), on_path({1, 1}), [] { return true; }), std::nullopt);
}

/// No split has a predicted step that the bound of its order refutes; for most orders, it refutes three quarters of the
/// shortest one's.
TEST(OrderBound, NeverExceedsTheBestOfAnyOrder) {
  int compared = 0;
  int near = 0;
  for (unsigned seed = 1; seed <= 120; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 3 + static_cast<int>(random() % 3));
    const Topology topology = testing::flat_topology(4, 1e5 * (1 + static_cast<double>(random() % 100)),
                                                     0.0005 * static_cast<double>(random() % 3));
    const char* const schedules[] = {"1f1b", "1f1b", "gpipe", "forward"};
    Constraints constraints;
    constraints.plan = settings_of(schedules[random() % std::size(schedules)], 2 + static_cast<int>(random() % 8));
    if (constraints.plan.schedule != "forward" && random() % 3 == 0)
      constraints.plan.gradient_bucket_bytes = Bytes(1 + static_cast<std::int64_t>(random() % 60'000));
    const PipelineCosts costs(graph, topology, constraints.plan);
    if (costs.dag().nodes == 0) continue;
    const std::vector<int> path = computation_path(costs);
    std::map<StageOrder, Seconds> shortest;
    const auto all = [] { return true; };
    each_predicted(graph, topology, constraints, 4, all, [&](const Partition& partition, const RankedPlan& ranked) {
      StageOrder order;
      order.replicas = partition.replicas;
      order.on_path.assign(partition.replicas.size(), false);
      for (const int node : path)
        order.on_path[to_index(partition.stage_of_layer[to_index(costs.layer_of_node(node))])] = true;
      const Seconds step = ranked.prediction.iteration;
      const auto [known, is_new] = shortest.emplace(std::move(order), step);
      if (!is_new) known->second = std::min(known->second, step);
    });
    const PathCuts cuts(costs, 1 + static_cast<int>(random() % 3));
    OrderBound bound(costs, cuts);
    for (const auto& [order, step] : shortest) {
      if (step <= Seconds(0)) continue;
      ASSERT_EQ(bound.refutes(step * (1 + 1e-9), order, kNoStop), false) << step.value;
      ++compared;
      near += bound.refutes(step * 0.75, order, kNoStop) == true ? 1 : 0;
    }
  }
  EXPECT_GT(compared, 1500);
  EXPECT_GT(near, compared / 2);
}

}  // namespace
}  // namespace stagecraft::partitioner
