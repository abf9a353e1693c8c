#include "partitioner/strategies/equal_drafts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"
#include "tests/support/pipedream_cases.h"
#include "tests/support/places.h"

namespace stagecraft::partitioner {
namespace {

Graph gpt() { return format::read_graph(source_folder() + "/examples/h100/gpt-medium.json"); }
Topology servers() { return format::read_topology(source_folder() + "/examples/dgx-h100.json"); }

Constraints limited(double gib, int microbatches) {
  Constraints out;
  out.memory_limit = Bytes(static_cast<std::int64_t>(gib * (std::int64_t{1} << 30)));
  out.plan.microbatches = microbatches;
  return out;
}

/// Four stages of eight replicas are among the drafts, in order and with each pipeline in one server.
TEST(EqualDrafts, HaveTheShapeThatAnEngineerWouldTry) {
  const std::vector<EqualDraft> drafts = equal_drafts(gpt(), servers(), simulated_costs(), limited(40, 64));
  std::set<std::string> origins;
  for (const EqualDraft& draft : drafts) origins.insert(draft.origin);
  EXPECT_TRUE(origins.contains("equal shares, 4 stages of 8 replicas"));
  EXPECT_TRUE(origins.contains("equal shares, 4 stages of 8 replicas, placed"));
}

/// Whatever the graph, the schedule and the limit, drafts fit, have equal shares, and no more replicas than
/// microbatches.
TEST(EqualDrafts, FitInMemory) {
  const CostModel costs = simulated_costs();
  int drafted = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 3 + static_cast<int>(random() % 8));
    Topology topology = testing::flat_topology(2 + static_cast<int>(random() % 3), 1e7);
    if (random() % 2 == 0) topology.levels.push_back({"rack", 2, {BytesPerSecond(1e6), Seconds(0.001), {}, {}}});
    const char* const schedules[] = {"1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "pipedream", "forward"};
    Constraints constraints;
    constraints.plan.schedule = schedules[random() % std::size(schedules)];
    constraints.plan.microbatches = 2 + static_cast<int>(random() % 5);
    constraints.memory_limit = Bytes(200'000 + static_cast<std::int64_t>(random() % 1'500'000));
    for (const EqualDraft& draft : equal_drafts(graph, topology, costs, constraints)) {
      ++drafted;
      Plan plan;
      try {
        plan = plan_of_candidate(graph, topology, draft.candidate, constraints.plan);
      } catch (const std::invalid_argument&) { continue; }  // of tied parameters, under an asynchronous schedule
      EXPECT_LE(costs.memory(graph, topology, BoundPlan(plan)).peak, *constraints.memory_limit) << draft.origin;
      const std::vector<int> replicas = replicas_of(plan);
      EXPECT_THAT(replicas, ::testing::Each(replicas.front()));
      if (microbatches_of_a_step(constraints.plan)) { EXPECT_LE(replicas.front(), constraints.plan.microbatches); }
    }
  }
  EXPECT_GT(drafted, 500);
}

/// Over slow links the best shape is among those that are tried without being asked for, though most shapes of several
/// stages per device cannot run 8 microbatches.
TEST(EqualDrafts, HaveTheBestShapeOverSlowLinks) {
  const Graph graph = read_pipedream_profile(source_folder() + "/tests/golden/pipedream", "resnet50");
  const CostModel costs = simulated_costs();
  Topology topology = testing::flat_topology(4, 12e9);
  topology.levels.push_back({"host", 4, {BytesPerSecond(1.25e9), Seconds(0), {}, {}}});
  topology.levels.push_back({"rack", 4, {BytesPerSecond(0.6e9), Seconds(0), {}, {}}});
  Constraints any = limited(52, 8);
  any.plan.schedule = "interleaved-1f1b";
  const auto best_step = [&](const Constraints& constraints) {
    Seconds best(1e100);
    for (const EqualDraft& draft : equal_drafts(graph, topology, costs, constraints))
      best = std::min(best,
                      predicted_plan("any", graph, topology, draft.candidate, costs, constraints).prediction.iteration);
    return best;
  };
  Seconds best(1e100);
  for (const int chunks : {1, 2, 4, 8}) {
    for (const int devices : {1, 2, 4, 8}) {
      Constraints one = any;
      one.chunks = chunks;
      one.stages = devices * chunks;
      best = std::min(best, best_step(one));
    }
  }
  EXPECT_LE(best_step(any), best * (1 + 1e-9));
}

TEST(EqualDrafts, FollowTheConstraints) {
  const Graph graph = testing::chain_graph({1, 1, 1, 1}, {1, 1, 1, 1});
  const Topology topology = testing::flat_topology(4);
  Constraints constraints;
  constraints.plan.microbatches = 4;
  constraints.replicas = {2, 2};
  const auto drafts = equal_drafts(graph, topology, simulated_costs(), constraints);
  ASSERT_FALSE(drafts.empty());
  for (const EqualDraft& draft : drafts) EXPECT_EQ(draft.candidate.partition.replicas, (std::vector<int>{2, 2}));
  constraints.replicas = {3, 1};
  EXPECT_TRUE(equal_drafts(graph, topology, simulated_costs(), constraints).empty());
}

TEST(EqualDrafts, AreThoseFoundUntilTheStop) {
  const CostModel costs = simulated_costs();
  const auto all = equal_drafts(gpt(), servers(), costs, limited(40, 64));
  for (int questions : {0, 3, 20}) {
    const std::vector<EqualDraft> some =
        equal_drafts(gpt(), servers(), costs, limited(40, 64), [&] { return questions-- <= 0; });
    ASSERT_LT(some.size(), all.size());
    for (std::size_t i = 0; i < some.size(); ++i) EXPECT_EQ(some[i].origin, all[i].origin);
  }
  EXPECT_TRUE(equal_drafts(gpt(), servers(), costs, limited(40, 64), [] { return true; }).empty());
}

/// An estimate is near the step of the best draft, and there is one if and only if a draft fits.
TEST(EstimatedStep, IsNearTheBestDraft) {
  const CostModel costs = simulated_costs();
  for (const double gib : {70.0, 40.0, 30.0}) {
    const Constraints constraints = limited(gib, 64);
    std::optional<Seconds> best;
    for (const EqualDraft& draft : equal_drafts(gpt(), servers(), costs, constraints)) {
      const Seconds step =
          predicted_plan("any", gpt(), servers(), draft.candidate, costs, constraints).prediction.iteration;
      best = std::min(best.value_or(step), step);
    }
    ASSERT_TRUE(best);
    EXPECT_NEAR(estimated_step(gpt(), servers(), constraints)->value, best->value, 0.1 * best->value) << gib;
  }
  EXPECT_FALSE(estimated_step(gpt(), servers(), limited(10, 64)));
}

/// With a limit just below, nothing fits; at its need, it does.
TEST(SmallestEqualDraft, NeedsTheLeast) {
  const CostModel costs = simulated_costs();
  const auto smallest = smallest_equal_draft(gpt(), servers(), limited(1, 64));
  ASSERT_TRUE(smallest);
  const Plan plan = plan_of_candidate(gpt(), servers(), smallest->candidate, limited(1, 64).plan);
  const Bytes need = costs.memory(gpt(), servers(), BoundPlan(plan)).peak;
  const double gib = static_cast<double>(need.value) / static_cast<double>(std::int64_t{1} << 30);
  EXPECT_FALSE(equal_drafts(gpt(), servers(), costs, limited(gib * 1.001, 64)).empty());
  EXPECT_TRUE(equal_drafts(gpt(), servers(), costs, limited(gib * 0.95, 64)).empty());
}

TEST(ChunkCounts, AreThoseOfTheScheduleOrTheRequest) {
  Constraints constraints;
  EXPECT_EQ(chunk_counts(constraints), std::vector<int>{1});
  constraints.plan.schedule = "interleaved-1f1b";
  EXPECT_EQ(chunk_counts(constraints), (std::vector<int>{1, 2, 4, 8}));
  constraints.chunks = 3;
  EXPECT_EQ(chunk_counts(constraints), std::vector<int>{3});
}

}  // namespace
}  // namespace stagecraft::partitioner
