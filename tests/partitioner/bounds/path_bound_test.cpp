#include "partitioner/bounds/path_bound.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "partitioner/bounds/trip_bound.h"
#include "partitioner/candidate.h"
#include "partitioner/cost_model.h"
#include "partitioner/strategies/optimal.h"
#include "tests/partitioner/bounds/bounds.h"
#include "tests/partitioner/bounds/shortest.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

constexpr int kAllCuts = 1000;

/// The largest time that the bound refutes, within 1e-6.
double bound_of(PathBound& bound, int devices) {
  return largest_refuted(1e-6, [&](Seconds time) { return bound.refutes(time, devices, kNoStop); });
}

/// As TripBound's: one stage takes 4 (3 + 3) = 24 s. Of two stages with messages of 1 s each way, the first holds 2 of
/// 4 microbatches at once: two round trips of 3 + 2 + 3 s, and 3 s for the one between them, are 19 s.
TEST(PathBound, CountsMessagesAndRoundTrips) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2}, Bytes(1'000'000'000), Bytes(10'000'000'000));
  const PipelineCosts costs(graph, testing::flat_topology(2), settings_of("1f1b", 4));
  const auto bound = PathBound::of(costs, {}, kAllCuts);
  EXPECT_EQ(bound->refutes(Seconds(18.99), 2, kNoStop), true);
  EXPECT_EQ(bound->refutes(Seconds(19), 2, kNoStop), false);
  EXPECT_EQ(bound->refutes(Seconds(23.99), 1, kNoStop), true);
  EXPECT_EQ(bound->refutes(Seconds(24), 1, kNoStop), false);
  EXPECT_EQ(bound->refutes(Seconds(18.99), 2, [] { return true; }), true);  // too short to be asked
}

/// Without replicas, 4 equal stages of 1 + 2 s and 8 microbatches take (8 + 4 - 1) 3 = 33 s, and no other division of
/// 4 layers is better: one replicated stage computes for 8 / 4 * 12 = 24 s and sums 4e9 bytes in 2 (3 / 4) 4 s x 10.
TEST(PathBound, IsTheStepOfAUniformPipeline) {
  const Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}, Bytes(0), Bytes(10'000'000'000));
  const PipelineCosts costs(graph, testing::flat_topology(4), settings_of("1f1b", 8));
  const auto bound = PathBound::of(costs, {}, kAllCuts);
  EXPECT_NEAR(bound_of(*bound, 4), 33, 1e-3);
}

/// The same layers with 1e9 bytes of parameters, that is 4 in all: summed by 4 replicas of one stage in 6 s, after
/// 24 s. By 2 replicas of 2 stages of 6 s: 2 s each; the first one holds 2 of its 4 microbatches, so that two round
/// trips of 12 s, 6 s between them and its 2 s are 32 s.
TEST(PathBound, ChargesReplicasWithTheirReduce) {
  const Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}, Bytes(0), Bytes(1'000'000'000));
  const PipelineCosts costs(graph, testing::flat_topology(4), settings_of("1f1b", 8));
  const auto bound = PathBound::of(costs, {}, kAllCuts);
  EXPECT_NEAR(bound_of(*bound, 4), 30, 1e-3);
}

/// The same layers with 2e9 bytes each, in buckets: 4 replicas of one stage sum 8e9 bytes in 2 (3 / 4) 8 = 12 s, of
/// which at most the last backward of 8 s hides some: 24 + 4 s. By 2 replicas of 2 stages, or without, it is 30 s or
/// more.
TEST(PathBound, HidesBucketsBehindTheLastBackward) {
  const Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}, Bytes(0), Bytes(2'000'000'000));
  PlanSettings settings = settings_of("1f1b", 8);
  settings.gradient_bucket_bytes = Bytes(1'000'000'000);
  const PipelineCosts costs(graph, testing::flat_topology(4), settings);
  EXPECT_NEAR(bound_of(*PathBound::of(costs, {}, kAllCuts), 4), 28, 1e-3);
}

/// A stage of 2 + 4 s on two devices, and one of 0.5 + 1 s that only one device can have. Both begin a forward at once;
/// the second backward ends when the later stage has run two microbatches: 2 + 2 (0.5 + 1) + 4 s = 9 s. Of 3
/// microbatches each replica holds 2, so that 2 backwards and a forward are left: 19 s, beyond the 3 (2 + 4) s of its
/// computation. One stage of both takes 6 (6 + 1.5) s.
TEST(PathBound, LetsReplicasWaitForALaterStage) {
  Graph graph = testing::chain_graph({2, 0.5}, {4, 1});
  graph.layers[1].parameter_bytes = Bytes(1'000'000'000'000);
  const PipelineCosts costs(graph, testing::flat_topology(3), settings_of("1f1b", 6));
  EXPECT_NEAR(bound_of(*PathBound::of(costs, {}, kAllCuts), 3), 19, 1e-3);
}

/// The stages the other way round: see OrderBound, KnowsTheOrderOfActions. By the counts of what waits for what alone,
/// 20.5 s: the first replica of the later stage computes from 0.5 s for 3 (2 + 4) s; after its last microbatch, the
/// first stage has the backwards of that and of the other replica's.
TEST(PathBound, LetsReplicasWaitForAnEarlierStage) {
  Graph graph = testing::chain_graph({0.5, 2}, {1, 4});
  graph.layers[0].parameter_bytes = Bytes(1'000'000'000'000);
  const PipelineCosts costs(graph, testing::flat_topology(3), settings_of("1f1b", 6));
  EXPECT_NEAR(bound_of(*PathBound::of(costs, {}, kAllCuts), 3), 21, 1e-3);
}

/// 100 layers of 3 s, of which 10 cuts are told apart at first: the finer ones find the same bound.
TEST(PathBound, RefinesCuts) {
  const Graph graph = testing::chain_graph(std::vector<double>(100, 1), std::vector<double>(100, 2), Bytes(0),
                                           Bytes(1'000'000'000'000));
  const PipelineCosts costs(graph, testing::flat_topology(2), settings_of("1f1b", 100));
  EXPECT_NEAR(bound_of(*PathBound::of(costs, {}, kAllCuts), 2), 101 * 150, 1);
  EXPECT_NEAR(bound_of(*PathBound::of(costs, {}, 10), 2), 101 * 150, 1);
}

/// Over as many devices that orders are not tried, what a stage has at least is 3 s * (1 - 1 / 5) of its 5 layers, if
/// half of the cuts are told apart.
TEST(PathBound, JoinsNeighbouringCuts) {
  const Graph graph = testing::chain_graph(std::vector<double>(100, 1), std::vector<double>(100, 2), Bytes(0),
                                           Bytes(1'000'000'000'000));
  const PipelineCosts costs(graph, testing::flat_topology(20), settings_of("1f1b", 100));
  const double all = bound_of(*PathBound::of(costs, {}, kAllCuts), 20);
  const double few = bound_of(*PathBound::of(costs, {}, 50), 20);
  EXPECT_NEAR(all, 119 * 15, 1);
  EXPECT_LT(few, all);
  EXPECT_GT(few, 0.75 * all);
}

/// A chain of 400 layers of random times, of which one is 1.5 % of a stage without replicas: the best split that it
/// came upon has a step within 1 % of its bound, so that each shows the other to be right. One stage with 6 replicas,
/// which `auto` would try, is further from both.
TEST(PathBound, SuggestsShortSplits) {
  for (unsigned seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<double> forward;
    std::vector<double> backward;
    for (int i = 0; i < 400; ++i) {
      forward.push_back(0.001 * static_cast<double>(1 + random() % 20));
      backward.push_back(0.001 * static_cast<double>(1 + random() % 40));
    }
    const Graph graph = testing::chain_graph(forward, backward, Bytes(100'000), Bytes(10'000'000));
    const PipelineCosts costs(graph, testing::flat_topology(6, 1e9), settings_of("1f1b", 16));
    const auto bound = PathBound::of(costs, {}, 60);
    const double least = bound_of(*bound, 6);
    double shortest = 1e100;
    for (const Split& split : bound->splits(100)) shortest = std::min(shortest, costs.lower_bound(split)->value);
    EXPECT_GE(shortest, least * (1 - 1e-9));
    EXPECT_LT(shortest, 1.01 * least);
    Split one;
    one.stage_of_node.assign(400, 0);
    one.replicas = {6};
    EXPECT_GT(costs.lower_bound(one)->value, 1.03 * least);
  }
}

TEST(PathBound, IsNotForStepsThatOverlap) {
  const Graph graph = testing::chain_graph({1}, {2});
  const PipelineCosts costs(graph, testing::flat_topology(2), settings_of("pipedream", 4));
  EXPECT_EQ(PathBound::of(costs, {}, kAllCuts), nullptr);
}

Topology random_topology(std::mt19937& random) {
  Topology out =
      testing::flat_topology(2 + static_cast<int>(random() % 3), 1e5 * (1 + static_cast<double>(random() % 500)),
                             0.0005 * static_cast<double>(random() % 3));
  if (random() % 3 == 0) out.levels.push_back({"rack", 2, {BytesPerSecond(1e6), Seconds(0.001), {}, {}}});
  if (random() % 6 == 0) {
    for (const int ranks : {2, 3}) {  // not monotone
      out.levels.front().link.all_reduce[ranks] =
          Curve{{{Bytes(1000), Seconds(0.002)}, {Bytes(40'000), Seconds(0.001)}, {Bytes(900'000), Seconds(0.01)}}};
    }
  }
  return out;
}

Constraints random_constraints(std::mt19937& random) {
  const char* const schedules[] = {"1f1b", "1f1b", "1f1b", "gpipe", "zb-h1", "forward"};
  Constraints out;
  out.plan = settings_of(schedules[random() % std::size(schedules)], 1 + static_cast<int>(random() % 9));
  if (out.plan.schedule != "forward" && random() % 4 == 0) out.plan.recompute = true;
  if (random() % 6 == 0) out.plan.gradient_bucket_bytes = Bytes(50'000);
  if (random() % 3 == 0) out.memory_limit = Bytes(100'000 + static_cast<std::int64_t>(random() % 900'000));
  if (random() % 4 == 0) out.plan.sharding = static_cast<StateSharding>(1 + random() % 3);
  return out;
}

/// The shortest predicted step of `some` of all splits with any replicas that fit in memory.
template <class Some>
std::optional<Seconds> shortest_of(const Graph& graph, const Topology& topology, const Constraints& constraints,
                                   int devices, Some some) {
  std::optional<Seconds> out;
  each_predicted(graph, topology, constraints, devices, some, [&](const Partition&, const RankedPlan& ranked) {
    out = std::min(out.value_or(ranked.prediction.iteration), ranked.prediction.iteration);
  });
  return out;
}

/// No split with any replicas that fits in memory has a predicted step that the bound refutes, however many cuts are
/// told apart.
TEST(PathBound, NeverExceedsTheBestOfAllPlans) {
  int compared = 0;
  double tightness = 0;
  for (unsigned seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 2 + static_cast<int>(random() % 4));
    const Topology topology = random_topology(random);
    const Constraints constraints = random_constraints(random);
    SCOPED_TRACE(constraints.plan.schedule);
    const PipelineCosts costs(graph, topology, constraints.plan);
    const int devices = std::min(1 + static_cast<int>(random() % 5), device_count(topology));
    const auto shortest = shortest_of(graph, topology, constraints, devices, [] { return true; });
    if (!shortest || *shortest <= Seconds(0)) continue;
    ++compared;
    for (const int cuts : {1, 2, kAllCuts}) {
      const auto bound = PathBound::of(costs, constraints.memory_limit, cuts);
      ASSERT_EQ(bound->refutes(*shortest * (1 + 1e-9), devices, kNoStop), false) << shortest->value << " " << cuts;
      if (cuts == kAllCuts) tightness += bound_of(*bound, devices) / shortest->value;
    }
  }
  EXPECT_GT(compared, 1000);
  EXPECT_GT(tightness / compared, 0.85);
}

/// The same with few layers, so that stages have many replicas, and many microbatches.
TEST(PathBound, NeverExceedsTheBestPlanWithManyReplicas) {
  int compared = 0;
  for (unsigned seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 2 + static_cast<int>(random() % 2));
    Topology topology = testing::flat_topology(4, 1e6 * (1 + static_cast<double>(random() % 500)),
                                               0.0005 * static_cast<double>(random() % 3));
    topology.levels.push_back(
        {"rack", 2, {BytesPerSecond(1e6 * (1 + static_cast<double>(random() % 50))), Seconds(0.0002), {}, {}}});
    if (random() % 2 == 0) topology = testing::flat_topology(5 + static_cast<int>(random() % 5), 1e8);
    Constraints constraints;
    constraints.plan = settings_of("1f1b", 4 + static_cast<int>(random() % 24));
    const int devices = std::min(5 + static_cast<int>(random() % 5), device_count(topology));
    const auto shortest = shortest_of(graph, topology, constraints, devices, [] { return true; });
    if (!shortest || *shortest <= Seconds(0)) continue;
    ++compared;
    const PipelineCosts costs(graph, topology, constraints.plan);
    const auto path = PathBound::of(costs, {}, kAllCuts);
    ASSERT_EQ(path->refutes(*shortest * (1 + 1e-9), devices, kNoStop), false) << shortest->value;
    const auto trips = TripBound::of(costs, {}, 1000);
    if (!trips) continue;
    ASSERT_EQ(trips->refutes(*shortest * (1 + 1e-9), devices, kNoStop), false) << shortest->value;
  }
  EXPECT_GT(compared, 300);
}

/// The same with gradients in buckets of any sizes, which the backward of the stage hides in part, whose layers are
/// known only at least where cuts are joined; and with measured sums, of which those of more bytes may take less.
TEST(PathBound, NeverExceedsTheBestPlanWithBucketsOrMeasuredSums) {
  int compared = 0;
  double tightness = 0;
  for (unsigned seed = 1; seed <= 1500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 3 + static_cast<int>(random() % 3));
    Topology topology = testing::flat_topology(4, 1e5 * (1 + static_cast<double>(random() % 40)));
    Constraints constraints;
    constraints.plan = settings_of("1f1b", 2 + static_cast<int>(random() % 5));
    if (random() % 2 == 0) {
      constraints.plan.gradient_bucket_bytes = Bytes(1 + static_cast<std::int64_t>(random() % 60'000));
      if (random() % 2 == 0) {
        topology = testing::flat_topology(2, 1e5 * (1 + static_cast<double>(random() % 40)));
        topology.levels.push_back(
            {"rack", 2, {BytesPerSecond(1e5 * (1 + static_cast<double>(random() % 40))), Seconds(0.0002), {}, {}}});
      }
    } else {
      for (const int ranks : {2, 3, 4}) {
        Curve& curve = topology.levels.front().link.all_reduce[ranks];
        for (const int bytes : {0, 20'000, 90'000, 200'000})
          curve.points.push_back({Bytes(bytes), Seconds(0.001 * static_cast<double>(random() % 100))});
      }
    }
    const int devices = 2 + static_cast<int>(random() % 3);
    const auto shortest = shortest_of(graph, topology, constraints, devices, [] { return true; });
    if (!shortest || *shortest <= Seconds(0)) continue;
    ++compared;
    const PipelineCosts costs(graph, topology, constraints.plan);
    for (const int cuts : {1, 2, kAllCuts}) {
      const auto bound = PathBound::of(costs, {}, cuts);
      ASSERT_EQ(bound->refutes(*shortest * (1 + 1e-9), devices, kNoStop), false) << shortest->value << " " << cuts;
      if (cuts == kAllCuts) tightness += bound_of(*bound, devices) / shortest->value;
    }
  }
  EXPECT_GT(compared, 1400);
  EXPECT_GT(tightness / compared, 0.7);
}

/// More replicas than are told apart one by one, some of the splits of chains of two layers.
TEST(PathBound, NeverExceedsPlansOfManyDevices) {
  for (unsigned seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto time = [&] { return 0.001 * static_cast<double>(1 + random() % 40); };
    const Graph graph = testing::chain_graph({time(), time()}, {time(), time()}, Bytes(1000), Bytes(40'000));
    const int devices = seed % 2 == 0 ? 40 : 90;
    const Topology topology = testing::flat_topology(devices, 1e9);
    Constraints constraints;
    constraints.plan = settings_of("1f1b", 90 + static_cast<int>(random() % 90));
    const auto shortest = shortest_of(graph, topology, constraints, devices, [&] { return random() % 8 == 0; });
    const PipelineCosts costs(graph, topology, constraints.plan);
    ASSERT_EQ(PathBound::of(costs, {}, kAllCuts)->refutes(*shortest * (1 + 1e-9), devices, kNoStop), false);
  }
}

/// Neither bound refutes a plan that was found for a larger graph, with more stages, replicas and microbatches.
TEST(PathBound, NeverExceedsPlansOfLargerGraphs) {
  const CostModel model = simulated_costs();
  for (unsigned seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const bool chain = random() % 2 == 0;
    std::vector<double> forward;
    std::vector<double> backward;
    for (unsigned i = 0; i < 8 + random() % 24; ++i) {
      forward.push_back(0.001 * static_cast<double>(1 + random() % 20));
      backward.push_back(0.001 * static_cast<double>(1 + random() % 40));
    }
    const Graph graph = chain ? testing::chain_graph(forward, backward, Bytes(1000), Bytes(40'000))
                              : testing::branching_graph(random, 8 + static_cast<int>(random() % 12));
    Topology topology =
        testing::flat_topology(4 + static_cast<int>(random() % 5), 1e6 * (1 + static_cast<double>(random() % 50)));
    if (random() % 2 == 0) topology.levels.push_back({"rack", 2, {BytesPerSecond(1e7), Seconds(0.0001), {}, {}}});
    Constraints constraints;
    constraints.plan = settings_of("1f1b", 4 + static_cast<int>(random() % 40));
    constraints.options["time-limit"] = 0.1;
    const auto result = optimal_strategy().plan(graph, topology, model, constraints);
    const PipelineCosts costs(graph, topology, constraints.plan);
    const auto path = PathBound::of(costs, {}, kAllCuts);
    const auto trips = TripBound::of(costs, {}, 2000);
    for (const RankedPlan& ranked : std::get<Ranking>(result).plans) {
      if (ranked.origin.ends_with("placed")) continue;
      const Seconds step = ranked.prediction.iteration * (1 + 1e-9);
      ASSERT_EQ(path->refutes(step, costs.devices(), kNoStop), false) << step.value;
      if (trips) { ASSERT_EQ(trips->refutes(step, costs.devices(), kNoStop), false) << step.value; }
      break;  // the shortest
    }
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
