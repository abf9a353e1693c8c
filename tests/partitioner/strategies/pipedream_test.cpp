#include "partitioner/strategies/pipedream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "partitioner/search/downsets.h"
#include "partitioner/strategies/strategies.h"
#include "tests/support/pipedream_cases.h"
#include "tests/support/places.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::string kGolden = source_folder() + "/tests/golden/pipedream";

std::map<std::string, Graph> profiles() {
  std::map<std::string, Graph> graphs;
  for (const char* name : {"alexnet", "vgg16", "resnet18", "resnet50", "gnmt"}) {
    graphs[name] = read_pipedream_profile(kGolden, name);
  }
  return graphs;
}

using Result = std::variant<Candidate, Infeasible>;

Candidate best(const Result& result) {
  if (const auto* infeasible = std::get_if<Infeasible>(&result)) throw std::runtime_error(infeasible->reason);
  return std::get<Candidate>(result);
}

std::string reason(const Result& result) {
  const auto* infeasible = std::get_if<Infeasible>(&result);
  return infeasible == nullptr ? "" : infeasible->reason;
}

/// Why `candidate` is not a valid plan of `graph` on `devices`; empty if it is valid.
std::string fault(const Graph& graph, const Candidate& candidate, int devices) {
  const Partition& partition = candidate.partition;
  const int stages = static_cast<int>(partition.replicas.size());
  if (partition.stage_of_layer.size() != graph.layers.size()) return "not one stage a layer";
  std::vector<int> layers_of(partition.replicas.size(), 0);
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    const int stage = partition.stage_of_layer[i];
    if (is_input(graph.layers[i]) != (stage == -1) || stage < -1 || stage >= stages) return graph.layers[i].id;
    if (stage >= 0) ++layers_of[static_cast<std::size_t>(stage)];
  }
  for (const int layers : layers_of) {
    if (layers == 0) return "an empty stage";
  }
  if (candidate.devices.size() != partition.replicas.size()) return "not a list of devices a stage";
  std::set<int> used;
  for (std::size_t stage = 0; stage < candidate.devices.size(); ++stage) {
    if (static_cast<int>(candidate.devices[stage].size()) != partition.replicas[stage]) return "not a device a replica";
    for (const int device : candidate.devices[stage]) {
      if (device < 0 || device >= devices || !used.insert(device).second) return "a device twice or out of range";
    }
  }
  for (const Edge& edge : graph.edges) {
    const int from = partition.stage_of_layer[static_cast<std::size_t>(edge.source)];
    const int to = partition.stage_of_layer[static_cast<std::size_t>(edge.destination)];
    if (from > to) return "an edge to an earlier stage";
  }
  return "";
}

TEST(PipedreamStrategy, AgreesWithThe107PublishedAnswers) {
  const auto graphs = profiles();
  const auto cases = read_pipedream_cases(kGolden);
  ASSERT_EQ(cases.size(), 107U);
  for (const PipedreamCase& one : cases) {
    SCOPED_TRACE(one.profile + " " + one.arguments);
    const Graph& graph = graphs.at(one.profile);
    const Candidate candidate = best(pipedream_candidate(graph, one.topology, one.options));
    EXPECT_NEAR(candidate.steady_state->value / one.time, 1, 1e-9);
    EXPECT_EQ(fault(graph, candidate, device_count(one.topology)), "");
    EXPECT_EQ(std::get<Downsets>(pipedream_downsets(graph, 1000)).count() - 1, one.states);
  }
}

Layer layer(const std::string& id, double seconds, std::int64_t output_bytes, std::int64_t parameter_bytes) {
  Layer made;
  made.id = made.name = id;
  made.kind = "Linear";
  made.forward.median = Seconds(seconds / 4);
  made.backward.median = Seconds(seconds * 3 / 4);
  made.outputs = {{Bytes(output_bytes), {}, "", true}};
  made.parameter_bytes = Bytes(parameter_bytes);
  return made;
}

Graph chain(const std::vector<Layer>& layers) {
  Graph graph;
  graph.layers = layers;
  for (int i = 1; i < static_cast<int>(layers.size()); ++i) graph.edges.push_back({i - 1, i, std::nullopt});
  return graph;
}

PipedreamOptions priced() {
  PipedreamOptions options;
  options.activation_compression_ratio = 1;
  return options;
}

// Layers of 4, 1 and 3 s on two devices, 10 bytes per second, 5 bytes after the first layer, 20 after the second.
//   both devices for all:       8 s / 2 + 4 (2-1) 40 bytes / (10 * 2) / 2 = 8 s
//   4 | 1 + 3:                  max(4, 4, 2 * 5 / 10 = 1) = 4 s
//   4 + 1 | 3:                  max(5, 3, 2 * 20 / 10 = 4) = 5 s
TEST(PipedreamStrategy, CutsAChainOfThreeWhereByHandItIsBest) {
  const Graph graph = chain({layer("a", 4, 5, 0), layer("b", 1, 20, 40), layer("c", 3, 0, 0)});
  const Candidate candidate = best(pipedream_candidate(graph, levels_topology({2}, {10}), priced()));
  EXPECT_DOUBLE_EQ(candidate.steady_state->value, 4);
  EXPECT_THAT(candidate.partition.stage_of_layer, ElementsAre(0, 1, 1));
  EXPECT_THAT(candidate.partition.replicas, ElementsAre(1, 1));
}

// Without parameters, and with 1000 bytes between layers, replication beats every cut: 8 s / 2.
TEST(PipedreamStrategy, ReplicatesStagesThatAreExpensiveToCut) {
  const Graph graph = chain({layer("a", 4, 1000, 0), layer("b", 1, 1000, 0), layer("c", 3, 0, 0)});
  const Candidate candidate = best(pipedream_candidate(graph, levels_topology({2}, {10}), priced()));
  EXPECT_DOUBLE_EQ(candidate.steady_state->value, 4);
  EXPECT_THAT(candidate.partition.replicas, ElementsAre(2));
}

// Two groups of two devices, a slow link within a group and a fast one between groups: the outer level replicates the
// group, the inner level splits the model into two stages of one layer each.
TEST(PipedreamStrategy, MultipliesReplicasOverLevels) {
  const Graph graph = chain({layer("a", 4, 0, 1000), layer("b", 4, 0, 1000)});
  const Candidate candidate = best(pipedream_candidate(graph, levels_topology({2, 2}, {10, 1e9}), priced()));
  // Inner: 4 | 4 takes 4 s. Outer: two such groups, (4 + 4 * 2000 / (1e9 * 2 * 2)) / 2.
  EXPECT_DOUBLE_EQ(candidate.steady_state->value, (4 + 2e-6) / 2);
  EXPECT_THAT(candidate.partition.stage_of_layer, ElementsAre(0, 1));
  EXPECT_THAT(candidate.partition.replicas, ElementsAre(2, 2));
  // Devices 0 and 1 are one group, 2 and 3 the other; each group has a copy of the whole pipeline.
  EXPECT_THAT(candidate.devices, ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

// In each of two groups of three, a heavy layer runs on two devices and a light one on the third. Replica j of either
// stage is in group j mod 2, so microbatch m, on replica m mod 4 and then m mod 2, never leaves its group.
TEST(PipedreamStrategy, KeepsMicrobatchesInTheirCopyOfTheGroup) {
  const Graph graph = chain({layer("a", 8, 1, 0), layer("b", 4, 0, 1'000'000)});
  const Candidate candidate = best(pipedream_candidate(graph, levels_topology({3, 2}, {1e6, 1e9}), priced()));
  EXPECT_THAT(candidate.devices, ElementsAre(ElementsAre(0, 3, 1, 4), ElementsAre(2, 5)));
}

TEST(PipedreamStrategy, LeavesDevicesIdleOnlyWhenAllowed) {
  // On two devices the 1e9 bytes of parameters add 4 * 1e9 / (1e9 * 2) / 2 = 1 s to half of the 1 s of work.
  const Graph graph = chain({layer("a", 0, 1'000'000'000'000, 0), layer("b", 1, 0, 1'000'000'000)});
  PipedreamOptions options = priced();
  const Topology two = levels_topology({2}, {1e9});
  EXPECT_DOUBLE_EQ(best(pipedream_candidate(graph, two, options)).steady_state->value, 1.5);
  options.use_fewer_machines = true;
  const Candidate candidate = best(pipedream_candidate(graph, two, options));
  EXPECT_DOUBLE_EQ(candidate.steady_state->value, 1);
  EXPECT_THAT(candidate.partition.replicas, ElementsAre(1));
}

// The input is in no stage; the second source, its reader and the sink called __getitem__ never enter a set.
TEST(PipedreamStrategy, PlacesLayersThatPipeDreamLeavesOut) {
  Graph graph = chain({layer("a", 4, 0, 0), layer("b", 4, 0, 0)});
  graph.layers.push_back(layer("data", 0, 0, 0));
  graph.layers.back().kind = kInputKind;
  for (const char* id : {"item", "other", "reader"}) graph.layers.push_back(layer(id, 1, 0, 0));
  graph.layers[3].name = "__getitem__(0)";
  graph.edges.push_back({2, 0, std::nullopt});
  graph.edges.push_back({1, 3, std::nullopt});
  graph.edges.push_back({4, 5, std::nullopt});
  PipedreamOptions options;
  options.straight_pipeline = true;
  const Candidate candidate = best(pipedream_candidate(graph, levels_topology({2}, {}), options));
  EXPECT_DOUBLE_EQ(candidate.steady_state->value, 4);
  EXPECT_THAT(candidate.partition.stage_of_layer, ElementsAre(0, 1, -1, 1, 0, 0));
}

TEST(PipedreamStrategy, NamesAMemoryLimitThatWouldDo) {
  // One device needs ceil((1 - 1) / 1) = 0 times everything, which meets any limit. With two devices, the first stage
  // needs a = 10 + 90 bytes or all 150; replicating everything costs no time, so the limit only matters in a pipeline
  // without replicas.
  const Graph graph = chain({layer("a", 1, 10, 90), layer("b", 1, 10, 40)});
  Constraints constraints;
  constraints.options = {{"straight-pipeline", true}};
  constraints.memory_limit = Bytes(100);
  const Topology two = levels_topology({2}, {});
  const StrategyResult fits = plan_with("pipedream", graph, two, simulated_costs(), constraints);
  EXPECT_EQ(std::get<Ranking>(fits).plans.at(0).plan.steady_state, Seconds(1));
  constraints.memory_limit = Bytes(99);
  const StrategyResult none = plan_with("pipedream", graph, two, simulated_costs(), constraints);
  EXPECT_EQ(std::get<Infeasible>(none).reason, "no partition fits every stage in 99 bytes, a limit of 100 would do");
}

TEST(PipedreamStrategy, RefusesMoreStraightStagesThanCuts) {
  PipedreamOptions options;
  options.straight_pipeline = true;
  const Graph graph = chain({layer("a", 1, 0, 0), layer("b", 1, 0, 0)});
  EXPECT_THAT(reason(pipedream_candidate(graph, levels_topology({4}, {}), options)),
              HasSubstr("on 4 devices needs 4 stages; the graph cannot be cut into so many"));
}

// One source with n branches and a join: 2^n + 1 sets with the source, and the join.
Graph fan(int branches) {
  Graph graph;
  graph.layers.push_back(layer("source", 1, 1, 0));
  for (int i = 1; i <= branches; ++i) {
    graph.layers.push_back(layer("branch" + std::to_string(i), 1 + i, i, 0));
    graph.edges.push_back({0, i, std::nullopt});
    graph.edges.push_back({i, branches + 1, std::nullopt});
  }
  graph.layers.push_back(layer("join", 1, 1, 0));
  return graph;
}

TEST(PipedreamStrategy, SaysThatALatticeIsTooLarge) {
  EXPECT_THAT(reason(pipedream_candidate(fan(40), levels_topology({4}, {}))),
              HasSubstr("42 layers can be cut at more than 200000 places"));
}

TEST(PipedreamStrategy, RefusesAGraphOfInputs) {
  Graph graph = chain({layer("data", 0, 0, 0)});
  graph.layers[0].kind = kInputKind;
  EXPECT_EQ(reason(pipedream_candidate(graph, levels_topology({4}, {}))), "the graph has no layers besides its inputs");
}

TEST(PipedreamStrategy, RefusesOptionsThatItCannotTake) {
  const Graph graph = chain({layer("a", 1, 0, 0)});
  const Topology one = levels_topology({1}, {});
  const auto plan = [&](const Constraints& constraints) {
    return [&, constraints] { (void)plan_with("pipedream", graph, one, simulated_costs(), constraints); };
  };
  Constraints constraints;
  constraints.stages = 3;
  EXPECT_THAT(plan(constraints), ThrowsMessage<std::invalid_argument>(HasSubstr("stages: found 3; remove it")));
  constraints = {};
  constraints.options = {{"activation-compression-ratio", 0.0}};
  EXPECT_THAT(plan(constraints), ThrowsMessage<std::invalid_argument>(HasSubstr("compression ratio: found 0.0")));
  constraints = {};
  constraints.memory_limit = Bytes(0);
  EXPECT_THAT(plan(constraints),
              ThrowsMessage<std::invalid_argument>(HasSubstr("memory limit: found 0, must be above 0 bytes")));
}

TEST(PipedreamStrategy, GivesEqualAnswersToEqualQuestions) {
  const auto graphs = profiles();
  for (const char* name : {"resnet18", "gnmt"}) {
    for (const auto& counts : {std::vector<int>{4}, std::vector<int>{4, 4}}) {
      const Topology topology = levels_topology(counts, {});
      EXPECT_EQ(best(pipedream_candidate(graphs.at(name), topology, priced())),
                best(pipedream_candidate(graphs.at(name), topology, priced())));
    }
  }
}

// A single device, and layers that cost nothing.
TEST(PipedreamStrategy, PlansForOneDeviceAndForFreeLayers) {
  const Graph free = chain({layer("a", 0, 0, 0), layer("b", 0, 0, 0)});
  EXPECT_EQ(best(pipedream_candidate(free, levels_topology({1}, {}))).steady_state, Seconds(0));
  EXPECT_EQ(best(pipedream_candidate(free, levels_topology({2, 2}, {}))).steady_state, Seconds(0));
  const Graph graph = chain({layer("a", 1, 0, 0), layer("b", 2, 0, 0)});
  EXPECT_EQ(best(pipedream_candidate(graph, levels_topology({1, 1}, {}))).steady_state, Seconds(3));
}

TEST(PipedreamStrategy, PlansAChainOfThousandsOfLayers) {
  std::vector<Layer> layers;
  for (int i = 0; i < 3000; ++i) layers.push_back(layer("l" + std::to_string(i), 1, 1, 1));
  const Candidate candidate = best(pipedream_candidate(chain(layers), levels_topology({8}, {}), priced()));
  EXPECT_GE(candidate.steady_state->value, 375);
  EXPECT_NEAR(candidate.steady_state->value, 375, 1e-4);  // 3000 / 8, and transfers of a few nanoseconds
}

}  // namespace
}  // namespace stagecraft::partitioner
