#include "partitioner/search/split_polish.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "partitioner/candidate.h"
#include "partitioner/cost_model.h"
#include "tests/partitioner/bounds/bounds.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

/// Bytes of parameters that make replicas longer than any pipeline.
constexpr Bytes kMany{10'000'000'000};

/// The plans that were predicted as `start` was improved, without suggestions of TripBound.
class Polished {
 public:
  Polished(const Graph& graph, const Topology& topology, const Constraints& constraints, const Split& start)
      : graph_(graph),
        topology_(topology),
        constraints_(constraints),
        costs_(graph_, topology_, constraints_.plan),
        time_(Seconds(20)),
        plans_("test", graph_, topology_, model_, constraints_, costs_) {
    const SearchContext context{costs_, constraints_, memory_limit(topology_, constraints_), time_, plans_};
    SplitPolish(context, nullptr, {0, 0.5, 1}).run(Seconds(0), {}, {{Seconds(0), start}});
  }
  Polished(const Polished&) = delete;
  Polished& operator=(const Polished&) = delete;

  [[nodiscard]] std::optional<Seconds> best() const { return plans_.best(); }
  [[nodiscard]] const Split& split() const { return plans_.best_splits().front().second; }

 private:
  Graph graph_;
  Topology topology_;
  Constraints constraints_;
  CostModel model_ = simulated_costs();
  PipelineCosts costs_;
  SearchTime time_;
  PredictedPlans plans_;
};

Constraints eight_microbatches() {
  Constraints out;
  out.plan = settings_of("1f1b", 8);
  return out;
}

/// Two layers of 1 + 2 s: 48 s on one device, (8 + 1) 3 = 27 s in two stages.
TEST(SplitPolish, CutsAStageInTwo) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2}, Bytes(0), kMany);
  const Polished found(graph, testing::flat_topology(2), eight_microbatches(), {{0, 0}, {1}, 1});
  ASSERT_TRUE(found.best());
  EXPECT_NEAR(found.best()->value, 27, 1e-9);
  EXPECT_EQ(found.split().stage_of_node, (std::vector<int>{0, 1}));
}

/// In one stage, replicas are all that helps: 4 * 6 = 24 s on two devices.
TEST(SplitPolish, KeepsTheStagesThatAreAskedFor) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  Constraints constraints = eight_microbatches();
  constraints.stages = 1;
  const Polished found(graph, testing::flat_topology(2), constraints, {{0, 0}, {1}, 1});
  ASSERT_TRUE(found.best());
  EXPECT_NEAR(found.best()->value, 24, 1e-9);
  EXPECT_EQ(found.split().replicas, std::vector<int>{2});
}

/// Of 200 layers of 1 + 2 s, 10 and 190 in two stages: (8 + 1) 300 s if both have as many.
TEST(SplitPolish, MovesCutsOfLargeGraphs) {
  const Graph graph = testing::chain_graph(std::vector<double>(200, 1), std::vector<double>(200, 2), Bytes(0), kMany);
  Constraints constraints = eight_microbatches();
  Split start{std::vector<int>(200, 1), {1, 1}, 1};
  std::fill_n(start.stage_of_node.begin(), 10, 0);
  const Polished found(graph, testing::flat_topology(2), constraints, start);
  ASSERT_TRUE(found.best());
  EXPECT_NEAR(found.best()->value, 2700, 1e-6);
  EXPECT_EQ(std::ranges::count(found.split().stage_of_node, 0), 100);
}

/// From one stage on one device, never better than the best of all splits, and for most small graphs as good.
TEST(SplitPolish, FindsTheBestOfMostSmallGraphs) {
  int same = 0;
  int compared = 0;
  for (unsigned seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 3 + static_cast<int>(random() % 3));
    const Topology topology = testing::flat_topology(3, 1e6 * (1 + static_cast<double>(random() % 50)));
    Constraints constraints;
    constraints.plan = settings_of("1f1b", 3 + static_cast<int>(random() % 4));
    std::optional<Seconds> shortest;
    const CostModel model = simulated_costs();
    testing::each_partition(graph, 3, [&](const Partition& partition) {
      Candidate candidate;
      candidate.partition = partition;
      try {
        const Seconds step = predicted_plan("any", graph, topology, candidate, model, constraints).prediction.iteration;
        shortest = std::min(shortest.value_or(step), step);
      } catch (const std::invalid_argument&) {
      } catch (const std::runtime_error&) {}
    });
    const PipelineCosts costs(graph, topology, constraints.plan);
    if (!shortest || costs.dag().nodes == 0) continue;
    const Polished found(graph, topology, constraints, {std::vector<int>(to_index(costs.dag().nodes), 0), {1}, 1});
    ASSERT_TRUE(found.best());
    ++compared;
    EXPECT_GE(found.best()->value, shortest->value * (1 - 1e-9));
    same += found.best()->value <= shortest->value * (1 + 1e-9) ? 1 : 0;
  }
  EXPECT_GT(compared, 15);
  EXPECT_GT(same, compared / 2);
}

}  // namespace
}  // namespace stagecraft::partitioner
