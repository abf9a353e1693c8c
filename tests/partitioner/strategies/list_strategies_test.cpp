#include "partitioner/strategies/list_strategies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "partitioner/strategies/strategies.h"
#include "tests/support/known_names.h"
#include "tests/support/pipedream_cases.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Parameter counts of AlexNet's 22 layers with 10 classes, from the shapes: 3 * 64 * 11 * 11 + 64 = 23296 and so on.
std::vector<double> alexnet_22() {
  const auto conv = [](int in, int out, int side) { return 1.0 * in * out * side * side + out; };
  const auto linear = [](int in, int out) { return 1.0 * in * out + out; };
  return {conv(3, 64, 11),
          0,
          0,
          conv(64, 192, 5),
          0,
          0,
          conv(192, 384, 3),
          0,
          conv(384, 256, 3),
          0,
          conv(256, 256, 3),
          0,
          0,
          0,
          0,
          0,
          linear(256 * 6 * 6, 4096),
          0,
          0,
          linear(4096, 4096),
          0,
          linear(4096, 10)};
}

Graph list_graph(const std::vector<double>& parameters) {
  Graph graph;
  Layer input;
  input.id = input.name = "data";
  input.kind = kInputKind;
  graph.layers.push_back(input);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    Layer layer;
    layer.id = "l" + std::to_string(i);
    layer.kind = parameters[i] > 0 ? "Conv2d" : "ReLU";
    layer.name = layer.kind + " " + layer.id;
    layer.forward.median = 1_s;
    layer.backward.median = 2_s;
    layer.parameters = static_cast<std::int64_t>(parameters[i]);
    layer.parameter_bytes = Bytes(4 * *layer.parameters);
    graph.layers.push_back(layer);
    graph.edges.push_back({static_cast<int>(i), static_cast<int>(i) + 1, std::nullopt});
  }
  return graph;
}

using Result = std::variant<Candidate, Infeasible>;

/// The result of the list strategy `name` for `graph`.
Result partition(const std::string& name, const Graph& graph, const Topology& topology, Constraints constraints = {}) {
  constraints.options = options_of_name(name);
  const std::string table_name = strategy_by_name(name).name;
  if (table_name == "uniform") return uniform_candidate(graph, topology, constraints);
  if (table_name == "parameters") return parameters_candidate(graph, topology, constraints);
  if (table_name == "profile") return profile_candidate(graph, topology, constraints);
  const StrategyResult result = type_strategy().plan(graph, topology, simulated_costs(), constraints);
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) return *infeasible;
  const Plan& plan = std::get<Ranking>(result).plans.front().plan;
  Candidate out;
  out.partition = partition_of(graph, plan);
  out.steady_state = plan.steady_state;
  return out;
}

/// Bounds of the stages over the layers after the input.
std::vector<int> bounds(const Result& result) {
  const Partition& p = std::get<Candidate>(result).partition;
  std::vector<int> found(p.replicas.size() + 1, 0);
  for (std::size_t i = 1; i < p.stage_of_layer.size(); ++i) {
    found[static_cast<std::size_t>(p.stage_of_layer[i]) + 1] = static_cast<int>(i);
  }
  EXPECT_EQ(p.stage_of_layer[0], -1);
  return found;
}

TEST(UniformBounds, GiveTheRemainderToTheFirst) {
  EXPECT_THAT(uniform_bounds(22, 4), ElementsAre(0, 6, 12, 17, 22));
  EXPECT_THAT(uniform_bounds(4, 4), ElementsAre(0, 1, 2, 3, 4));
  EXPECT_THAT(uniform_bounds(2, 4), ElementsAre(0, 1, 2, 2, 2));
  EXPECT_THAT(uniform_bounds(0, 1), ElementsAre(0, 0));
}

TEST(UniformBounds, RefuseNoParts) {
  EXPECT_THAT([] { (void)uniform_bounds(3, 0); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("found 3 layers in 0 parts")));
}

TEST(BalancedBounds, FindTheSmallestHeaviestRun) {
  EXPECT_THAT(balanced_bounds({1, 4, 2, 2}, 3), ElementsAre(0, 1, 2, 4));  // 1 | 4 | 2 + 2; 1 + 4 would be 5
}

TEST(BalancedBounds, AreTheLargestAmongEquals) {
  EXPECT_THAT(balanced_bounds({2, 0, 0, 2}, 2), ElementsAre(0, 3, 4));
  EXPECT_THAT(balanced_bounds({0, 0, 0}, 2), ElementsAre(0, 2, 3));
  EXPECT_THAT(balanced_bounds(alexnet_22(), 2), ElementsAre(0, 19, 22));
}

TEST(BalancedBounds, RefuseMorePartsThanWeights) {
  EXPECT_THAT([] { (void)balanced_bounds({1, 2}, 3); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("found 3 parts, expected 1 to 2")));
  EXPECT_THAT([] { (void)balanced_bounds({1, -2}, 1); }, ThrowsMessage<std::invalid_argument>(HasSubstr("negative")));
}

/// All bounds of `parts` non-empty runs, in lexicographic order.
void every_bounds(int layers, int parts, std::vector<int> begun, std::vector<std::vector<int>>& all) {
  if (static_cast<int>(begun.size()) == parts) {
    begun.push_back(layers);
    all.push_back(begun);
    return;
  }
  for (int next = begun.back() + 1; next < layers; ++next) {
    std::vector<int> more = begun;
    more.push_back(next);
    every_bounds(layers, parts, more, all);
  }
}

TEST(BalancedBounds, EqualExhaustiveSearch) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::vector<double> weights(2 + random() % 8);
    for (double& weight : weights) weight = 0.1 * static_cast<double>(random() % 6);
    const int parts = 1 + static_cast<int>(random() % weights.size());
    std::vector<std::vector<int>> all;
    every_bounds(static_cast<int>(weights.size()), parts, {0}, all);
    double least = 1e300;
    std::vector<int> wanted;
    for (const std::vector<int>& one : all) {
      double heaviest = 0;
      for (std::size_t p = 0; p + 1 < one.size(); ++p) {
        double sum = 0;
        for (int i = one[p]; i < one[p + 1]; ++i) sum += weights[static_cast<std::size_t>(i)];
        heaviest = std::max(heaviest, sum);
      }
      if (heaviest <= least) wanted = one;
      least = std::min(least, heaviest);
    }
    EXPECT_EQ(balanced_bounds(weights, parts), wanted);
  }
}

TEST(ListStrategies, CutAlexnetAsDeepspeedDoes) {
  const Graph graph = list_graph(alexnet_22());
  Constraints constraints;
  constraints.stages = 2;
  const Topology four = levels_topology({4}, {});
  EXPECT_THAT(bounds(partition("parameters", graph, four, constraints)), ElementsAre(0, 19, 22));
  EXPECT_THAT(bounds(partition("uniform", graph, four)), ElementsAre(0, 6, 12, 17, 22));
}

TEST(ListStrategies, TakeBytesOverFourWhereAParameterCountIsMissing) {
  Graph graph = list_graph({1, 1, 1, 1});
  graph.layers[1].parameters.reset();
  graph.layers[1].parameter_bytes = 12_B;  // 3 parameters of 4 bytes
  EXPECT_THAT(bounds(partition("parameters", graph, levels_topology({2}, {}))), ElementsAre(0, 1, 4));  // 3 | 1 + 1 + 1
}

TEST(ListStrategies, BalanceMeasuredTimes) {
  Graph graph = list_graph({1, 1, 1, 1});
  graph.layers[1].backward.median = 8_s;  // 9, 3, 3, 3
  const Result result = partition("profile", graph, levels_topology({2}, {}));
  EXPECT_THAT(bounds(result), ElementsAre(0, 1, 4));
  EXPECT_EQ(std::get<Candidate>(result).steady_state, 9_s);
}

TEST(ListStrategies, FindTypesInAnyCase) {
  const Graph graph = list_graph({0, 5, 5, 0, 5, 0, 5, 0});
  // Two of the four convolutions per stage; the second stage begins at layer 4 at the latest.
  EXPECT_THAT(bounds(partition("type:conv", graph, levels_topology({2}, {}))), ElementsAre(0, 4, 8));
  EXPECT_THAT(bounds(partition("type:CONV2D L[12]$", graph, levels_topology({2}, {}))), ElementsAre(0, 2, 8));
}

TEST(ListStrategies, NameTheKindsWhereNoTypeMatches) {
  const Graph graph = list_graph({0, 5});
  EXPECT_THAT(
      [&] { (void)partition("type:LSTM", graph, levels_topology({2}, {})); },
      ThrowsMessage<std::invalid_argument>("strategy type:REGEX: \"LSTM\" matches no layer, kinds are Conv2d, ReLU"));
}

TEST(ListStrategies, RefuseAnInvalidRegularExpression) {
  EXPECT_THAT([&] { (void)partition("type:(", list_graph({0, 5}), levels_topology({2}, {})); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("\"(\" is not a regular expression")));
}

TEST(ListStrategies, HaveNoAnswerForMoreStagesThanLayersOrDevices) {
  const Graph graph = list_graph({1, 1});
  Graph finest = graph;
  finest.options["layers"] = "op";
  EXPECT_EQ(std::get<Infeasible>(partition("uniform", finest, levels_topology({4}, {}))).reason,
            "4 stages need as many layers, the graph has 2 besides its inputs");
  EXPECT_EQ(std::get<Infeasible>(partition("uniform", graph, levels_topology({4}, {}))).reason,
            "4 stages need as many layers, the graph has 2 besides its inputs; a model file that is profiled with "
            "--layers op has one for each operator");
  Constraints constraints;
  constraints.stages = 2;
  EXPECT_EQ(std::get<Infeasible>(partition("uniform", graph, levels_topology({1}, {}), constraints)).reason,
            "2 stages need as many devices, the topology has 1");
  constraints.stages = 0;
  EXPECT_THAT([&] { (void)partition("uniform", graph, levels_topology({1}, {}), constraints); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("stages: found 0, must be at least 1")));
}

TEST(Strategies, ListTheKnownNames) {
  EXPECT_THAT(
      [] { (void)strategy_by_name("magic"); },
      ThrowsMessage<std::invalid_argument>("unknown strategy \"magic\", known are " + known_names(strategies())));
  EXPECT_EQ(strategy_by_name("type:Conv").name, "type:REGEX");
}

TEST(BalancedBounds, GiveAReplicatedStageThatManyTimesTheWork) {
  // Two replicas, then one: 4 of 6 equal layers in the first stage, 2 layers per device.
  EXPECT_EQ(balanced_bounds({1, 1, 1, 1, 1, 1}, 2, {2, 1}), (std::vector<int>{0, 4, 6}));
  EXPECT_EQ(balanced_bounds({1, 1, 1, 1, 1, 1}, 2, {1, 2}), (std::vector<int>{0, 2, 6}));
}

}  // namespace
}  // namespace stagecraft::partitioner
