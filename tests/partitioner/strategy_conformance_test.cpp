#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "costmodel/prediction/memory.h"
#include "costmodel/prediction/verify.h"
#include "partitioner/candidate.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/strategies/strategies.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

// What every entry of the table of strategies guarantees. A new strategy needs no new code here.

namespace stagecraft::partitioner {
namespace {

std::string given_name(const Strategy& strategy) { return strategy.example.empty() ? strategy.name : strategy.example; }

/// Four or five layers after an input; each reads the one before it and sometimes an earlier one too.
Graph random_graph(std::mt19937& random) {
  const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
  Graph graph;
  graph.name = "random";
  const int layers = 4 + up_to(1);
  for (int i = 0; i <= layers; ++i) {
    Layer layer;
    layer.id = layer.name = i == 0 ? "data" : "l" + std::to_string(i);
    layer.kind = i == 0 ? kInputKind : i % 2 == 1 || up_to(1) == 0 ? "Linear" : "ReLU";
    layer.outputs = {{Bytes(1000 * (1 + up_to(50))), {}, "", i > 0}};
    if (i > 0) {
      layer.forward.median = Seconds(0.001 * (1 + up_to(20)));
      layer.backward.median = Seconds(0.001 * (1 + up_to(40)));
      layer.parameter_bytes = Bytes(4000 * up_to(20));
      graph.edges.push_back({i - 1, i, 0});
      if (i > 2 && up_to(2) == 0) graph.edges.push_back({1 + up_to(i - 3), i, 0});
    }
    graph.layers.push_back(layer);
  }
  validate(graph);
  return graph;
}

/// Constraints that some strategies can satisfy and others cannot.
Constraints random_constraints(std::mt19937& random, const Strategy& strategy) {
  Constraints out;
  out.plan.schedule = random() % 2 == 0 ? "1f1b" : "gpipe";
  out.plan.microbatches = 1 + static_cast<int>(random() % 4);
  if (!strategy.decides_stages && random() % 2 == 0) out.stages = 1 + static_cast<int>(random() % 3);
  if (out.stages && random() % 2 == 0) {
    for (int s = 0; s < *out.stages; ++s) out.replicas.push_back(1 + static_cast<int>(random() % 2));
  }
  if (random() % 4 == 0) out.memory_limit = Bytes(100'000 + static_cast<std::int64_t>(random() % 400'000));
  out.options = options_of_name(given_name(strategy));
  for (const Option& option : strategy.options) {
    const unsigned value = static_cast<unsigned>(random() % 1000);
    if (random() % 3 > 0) continue;
    OptionValue& chosen = out.options[option.names.front()];
    if (option.kind == OptionKind::Flag) chosen = true;
    if (option.kind == OptionKind::Positive) chosen = 0.5 + value * 0.003;
    if (option.kind == OptionKind::Bytes) chosen = Bytes(100 + 1000 * static_cast<std::int64_t>(value));
  }
  return out;
}

/// The smallest objective of all plans that the strategy considers.
std::optional<double> least_objective(const Strategy& strategy, const Graph& graph, const Topology& topology,
                                      const CostModel& costs, const Constraints& constraints) {
  std::optional<double> least;
  testing::each_partition(graph, device_count(topology), [&](const Partition& partition) {
    const Plan plan = make_plan(graph, topology, partition, constraints.plan);
    const auto found = strategy.objective(graph, topology, costs, constraints, plan);
    if (found) least = std::min(least.value_or(*found), *found);
  });
  return least;
}

/// The error that verify finds in `plan`; empty if there is none.
std::string flaw(const Graph& graph, const Topology& topology, const Plan& plan) {
  const BoundPlan bound(plan);
  const int steps = bound.step_window().steps;
  VerifyOptions options;
  options.steps = steps;
  const auto result = verify(bound, bound.action_lists(steps), graph, topology, options);
  const auto* infeasible = std::get_if<Infeasible>(&result);
  return infeasible == nullptr ? "" : infeasible->reason;
}

class Conformance : public ::testing::TestWithParam<std::string> {
 protected:
  const Strategy& strategy() const { return strategy_by_name(GetParam()); }
};

TEST_P(Conformance, GivesValidPlansThatKeepToTheConstraints) {
  int plans = 0;
  for (unsigned seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = random_graph(random);
    const Topology topology = testing::flat_topology(3, 1e6 * static_cast<double>(1 + random() % 50));
    const Constraints constraints = random_constraints(random, strategy());
    const StrategyResult result = strategy().plan(graph, topology, simulated_costs(), constraints);
    if (const auto* infeasible = std::get_if<Infeasible>(&result)) {
      EXPECT_NE(infeasible->reason, "");
      continue;
    }
    const auto& ranked = std::get<Ranking>(result).plans;
    ASSERT_FALSE(ranked.empty());
    for (const RankedPlan& ranked_plan : ranked) {
      SCOPED_TRACE(ranked_plan.origin);
      ++plans;
      const Plan& plan = ranked_plan.plan;
      EXPECT_NO_THROW(validate(plan, graph, topology));
      EXPECT_EQ(flaw(graph, topology, plan), "");
      EXPECT_EQ(plan.strategy, ranked_plan.origin);
      EXPECT_EQ(plan.iteration, ranked_plan.prediction.iteration);
      EXPECT_EQ(plan.schedule, constraints.plan.schedule);
      EXPECT_EQ(plan.microbatches, constraints.plan.microbatches);
      EXPECT_EQ(ranked_plan.fits, memory_excess(ranked_plan, topology, constraints).empty());
      if (constraints.stages) { EXPECT_EQ(static_cast<int>(plan.stages.size()), *constraints.stages); }
      for (std::size_t s = 0; s < constraints.replicas.size(); ++s)
        EXPECT_EQ(static_cast<int>(plan.stages[s].devices.size()), constraints.replicas[s]);
    }
    if (!strategy().has_memory_rule) { EXPECT_TRUE(ranked.front().fits); }
  }
  EXPECT_GT(plans, 30);
}

TEST_P(Conformance, GivesEqualAnswersToEqualQuestions) {
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = random_graph(random);
    const Topology topology = testing::flat_topology(3, 1e7);
    const Constraints constraints = random_constraints(random, strategy());
    const auto answer = [&] {
      const StrategyResult result = strategy().plan(graph, topology, simulated_costs(), constraints);
      std::vector<Plan> plans;
      if (const auto* ranking = std::get_if<Ranking>(&result)) {
        for (const RankedPlan& ranked_plan : ranking->plans) plans.push_back(ranked_plan.plan);
      }
      const auto* infeasible = std::get_if<Infeasible>(&result);
      return std::pair(plans, infeasible == nullptr ? "" : infeasible->reason);
    };
    EXPECT_EQ(answer(), answer());
  }
}

/// Compares the strategy with predictions of all plans that it considers.
void compare_with_exhaustive_search(const Strategy& strategy, const CostModel& costs) {
  int compared = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = random_graph(random);
    const Topology topology = testing::flat_topology(3, 1e6 * static_cast<double>(1 + random() % 50));
    Constraints constraints = random_constraints(random, strategy);
    const StrategyResult result = strategy.plan(graph, topology, costs, constraints);
    const std::optional<double> least = least_objective(strategy, graph, topology, costs, constraints);
    if (std::holds_alternative<Infeasible>(result)) {
      // A plan that the cost model finds too large is not a result, although the strategy may consider it.
      const bool all_fit = !constraints.memory_limit || strategy.has_memory_rule;
      if (strategy.exact && all_fit) { EXPECT_EQ(least, std::nullopt) << std::get<Infeasible>(result).reason; }
      continue;
    }
    ++compared;
    const auto& ranking = std::get<Ranking>(result);
    const Plan& best = ranking.plans.front().plan;
    const std::optional<double> reached = strategy.objective(graph, topology, costs, constraints, best);
    ASSERT_TRUE(reached.has_value());
    ASSERT_TRUE(least.has_value());
    EXPECT_GE(*reached, *least * (1 - 1e-9));
    if (strategy.exact) { EXPECT_LE(*reached, *least * (1 + 1e-9)); }
    if (ranking.lower_bound) { EXPECT_LE(ranking.lower_bound->value, *least * (1 + 1e-9)); }
  }
  EXPECT_GT(compared, 20);
}

/// The simulated steps, and some time for each device of the plan: no step is below the bounds that CostModel names.
CostModel costly_devices() {
  CostModel out = simulated_costs();
  out.predict = [predict = out.predict](const Graph& graph, const Topology& topology, const BoundPlan& plan) {
    auto result = predict(graph, topology, plan);
    if (auto* prediction = std::get_if<Prediction>(&result))
      prediction->iteration += Seconds(0.02) * static_cast<double>(plan.ranks().size());
    return result;
  };
  return out;
}

TEST_P(Conformance, IsNoBetterThanExhaustiveSearchAndEqualIfExact) {
  compare_with_exhaustive_search(strategy(), simulated_costs());
}

TEST_P(Conformance, IsNoBetterThanExhaustiveSearchByAnotherCostModel) {
  compare_with_exhaustive_search(strategy(), costly_devices());
}

/// What CostModel asks of a model with which strategies search.
TEST(CostModels, PredictNoStepBelowTheBoundsOfSearches) {
  for (const CostModel& costs : {simulated_costs(), costly_devices()}) {
    int compared = 0;
    for (unsigned seed = 1; seed <= 30; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      std::mt19937 random(seed);
      const Graph graph = random_graph(random);
      const Topology topology = testing::flat_topology(3, 1e6 * static_cast<double>(1 + random() % 50));
      PlanSettings settings;
      settings.schedule = random() % 2 == 0 ? "1f1b" : "gpipe";
      settings.microbatches = 1 + static_cast<int>(random() % 4);
      const PipelineCosts bounds(graph, topology, settings);
      testing::each_partition(graph, 3, [&](const Partition& partition) {
        const BoundPlan plan(make_plan(graph, topology, partition, settings));
        const auto predicted = costs.predict(graph, topology, plan);
        const double step = std::get<Prediction>(predicted).iteration.value * (1 + 1e-9);
        const Split split = bounds.split_of(partition, 1);
        EXPECT_LE(bounds.lower_bound(split).value().value, step);
        EXPECT_LE(costs.least_step(graph, plan).value, step);
        EXPECT_LE(bounds.least_memory(split), costs.memory(graph, topology, plan).peak);
        ++compared;
      });
    }
    EXPECT_GT(compared, 300);
  }
}

TEST_P(Conformance, SaysWhyThereIsNoPlan) {
  Graph graph;
  graph.layers.emplace_back();
  graph.layers[0].id = graph.layers[0].name = "data";
  graph.layers[0].kind = kInputKind;
  Constraints constraints;
  constraints.options = options_of_name(given_name(strategy()));
  try {
    const StrategyResult result = strategy().plan(graph, testing::flat_topology(2), simulated_costs(), constraints);
    EXPECT_NE(std::get<Infeasible>(result).reason, "");
  } catch (const std::invalid_argument& e) {  // an option that makes no sense for such a graph
    EXPECT_STRNE(e.what(), "");
  }
}

/// With costs that no real plan has, a strategy's predictions show that it asks this cost model and no other.
TEST_P(Conformance, AsksTheCostModelThatItIsGiven) {
  std::mt19937 random(7);
  const Graph graph = random_graph(random);
  int asked = 0;
  CostModel costs = simulated_costs();
  costs.predict = [&](const Graph& g, const Topology& t, const BoundPlan& plan) {
    ++asked;
    auto out = simulated_costs().predict(g, t, plan);
    std::get<Prediction>(out).iteration = Seconds(1000.0 + plan.stages());
    return out;
  };
  Constraints constraints;
  constraints.options = options_of_name(given_name(strategy()));
  const StrategyResult result = strategy().plan(graph, testing::flat_topology(2, 1e7), costs, constraints);
  for (const RankedPlan& ranked_plan : std::get<Ranking>(result).plans) {
    EXPECT_EQ(ranked_plan.plan.iteration, Seconds(1000 + static_cast<double>(ranked_plan.plan.stages.size())));
  }
  EXPECT_EQ(asked, static_cast<int>(std::get<Ranking>(result).plans.size()));
}

std::vector<std::string> all_names() {
  std::vector<std::string> out;
  for (const Strategy& strategy : strategies()) out.push_back(given_name(strategy));
  return out;
}

std::string test_name(const ::testing::TestParamInfo<std::string>& info) {
  std::string out = info.param;
  std::erase_if(out, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0; });
  return out;
}

INSTANTIATE_TEST_SUITE_P(Strategies, Conformance, ::testing::ValuesIn(all_names()), test_name);

TEST(StrategyTable, HasEveryNameOnce) {
  std::set<std::string> names;
  std::set<std::string> options;
  for (const Strategy& strategy : strategies()) {
    EXPECT_TRUE(names.insert(strategy.name).second) << strategy.name;
    EXPECT_EQ(&strategy_by_name(given_name(strategy)), &strategy);
    EXPECT_NE(strategy.help, "");
    EXPECT_EQ(strategy.options.empty(), strategy.options_title.empty()) << strategy.name;
    for (const Option& option : strategy.options) {
      ASSERT_FALSE(option.names.empty());
      for (const std::string& name : option.names) EXPECT_TRUE(options.insert(name).second) << name;
    }
  }
  EXPECT_TRUE(names.contains(kDefaultStrategy));
}

}  // namespace
}  // namespace stagecraft::partitioner
