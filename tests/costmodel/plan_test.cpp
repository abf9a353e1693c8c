#include "costmodel/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <stdexcept>

#include "costmodel/bound_plan.h"
#include "costmodel/schedule.h"
#include "tests/support/chains.h"
#include "tests/support/known_names.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;

const Edge kSkip{0, 2, 0};

/// l0 -> l1 -> l2, 10 bytes each.
Graph chain() { return chain_graph({1, 1, 1}, {1, 1, 1}, 10_B); }

/// A chain preceded by a layer "x" that represents loaded data, which l0 and l2 read.
Graph chain_with_input() {
  Graph graph = chain();
  Layer input;
  input.id = input.name = "x";
  input.kind = kInputKind;
  input.outputs = {Output{7_B, {}, "", false}};
  graph.layers.push_back(input);
  graph.edges.push_back({3, 0, 0});
  graph.edges.push_back({3, 2, 0});
  return graph;
}

Plan planned(const Graph& graph, const std::vector<int>& stage_of_layer, const std::vector<int>& replicas,
             int devices = 4) {
  return make_plan(graph, flat_topology(devices), {stage_of_layer, replicas}, {});
}

/// The stages and tensors of each boundary: "0-1 l0".
std::vector<std::string> crossings(const Plan& plan) {
  std::vector<std::string> out;
  for (const Boundary& boundary : plan.boundaries) {
    out.push_back(std::to_string(boundary.source) + "-" + std::to_string(boundary.destination));
    for (const BoundaryTensor& tensor : boundary.tensors) out.back() += " " + tensor.layer;
  }
  return out;
}

template <class F>
std::string message(F&& call) {
  try {
    call();
  } catch (const std::invalid_argument& e) { return e.what(); }
  return "";
}

TEST(MakePlan, PutsReplicasOnConsecutiveDevices) {
  const Plan plan = planned(chain(), {0, 1, 1}, {1, 3});
  EXPECT_EQ(plan.stages, (std::vector<Stage>{{{"l0"}, {0}, false}, {{"l1", "l2"}, {1, 2, 3}, false}}));
  EXPECT_THAT(plan.warmups, ElementsAre(3, 0));  // ceil((0 + 1) * 3 / 1) at stage 0
}

TEST(MakePlan, GivesASkippingTensorASeparateBoundary) {
  Graph graph = chain_graph({1, 1, 1, 1}, {1, 1, 1, 1}, 10_B);
  graph.edges.push_back({0, 3, 0});
  graph.edges.erase(graph.edges.begin());  // now only layer 3 reads layer 0
  const Plan plan = planned(graph, {0, 0, 1, 2}, {1, 1, 1});
  EXPECT_THAT(crossings(plan), ElementsAre("0-1 l1", "0-2 l0", "1-2 l2"));
  EXPECT_EQ(far_reader(BoundPlan(plan))->layer, "l0");
  EXPECT_EQ(far_reader(BoundPlan(plan))->reader, 2);
}

TEST(MakePlan, PassesATensorOnFromEachStageThatReadsItToTheNext) {
  Graph graph = chain();
  graph.edges.push_back(kSkip);
  const Plan plan = planned(graph, {0, 1, 2}, {1, 1, 1});
  EXPECT_THAT(crossings(plan), ElementsAre("0-1 l0", "1-2 l0 l1"));
  EXPECT_EQ(far_reader(BoundPlan(plan))->layer, "l0");
  EXPECT_EQ(far_reader(BoundPlan(plan))->stage, 0);
  EXPECT_EQ(far_reader(BoundPlan(plan))->reader, 2);
  EXPECT_FALSE(far_reader(BoundPlan(planned(chain(), {0, 1, 2}, {1, 1, 1}))));
}

TEST(LayersOfStages, AreTheGraphsInThePlansOrder) {
  const Graph graph = chain();
  const Plan plan = planned(graph, {0, 1, 1}, {1, 1});
  const auto layers = layers_of_stages(graph, plan);
  ASSERT_EQ(layers.size(), 2U);
  EXPECT_THAT(layers[0], ElementsAre(&graph.layers[0]));
  EXPECT_THAT(layers[1], ElementsAre(&graph.layers[1], &graph.layers[2]));
  Plan other = plan;
  other.stages[0].layers = {"l7"};
  EXPECT_THROW((void)layers_of_stages(graph, other), std::invalid_argument);
}

TEST(MakePlan, SendsATensorOnceToAStageThatReadsItTwice) {
  Graph graph = chain();
  graph.edges.push_back(kSkip);
  const Plan plan = planned(graph, {0, 1, 1}, {1, 1});
  EXPECT_THAT(crossings(plan), ElementsAre("0-1 l0"));
  EXPECT_EQ(plan.boundaries[0].tensors[0], (BoundaryTensor{"l0", 0, 10_B, {}, "", true}));
}

TEST(MakePlan, SendsAllOutputsTogetherWhereTheEdgeDoesNotSayWhich) {
  Graph graph = chain();
  graph.layers[0].outputs.push_back(Output{5_B, {}, "", true});
  graph.edges[0].output.reset();
  const Plan plan = planned(graph, {0, 1, 1}, {1, 1});
  EXPECT_EQ(plan.boundaries[0].tensors, (std::vector<BoundaryTensor>{{"l0", {}, 15_B, {}, "", true}}));
}

TEST(MakePlan, TakesTheDtypeOfTheGraphAndTheSettingsOfAllStages) {
  Graph graph = chain();
  graph.dtype = "bfloat16";
  graph.allow_tf32 = true;
  graph.types = {.parameters = StateType::Bfloat16, .moments = StateType::Bfloat16};
  graph.optimizer = "adamw";
  PlanSettings settings;
  settings.recompute = true;
  settings.recompute_every = 2;
  settings.gradient_bucket_bytes = 100_B;
  const Plan plan = make_plan(graph, flat_topology(2), {{0, 1, 1}, {1, 1}}, settings);
  EXPECT_EQ(plan.dtype, "bfloat16");
  EXPECT_EQ(plan.types, graph.types);
  EXPECT_EQ(plan.allow_tf32, true);
  EXPECT_EQ(plan.optimizer, "adamw");
  EXPECT_EQ(plan.gradient_bucket_bytes, 100_B);
  EXPECT_EQ(plan.stages, (std::vector<Stage>{{{"l0"}, {0}, true, 2}, {{"l1", "l2"}, {1}, true, 2}}));
}

TEST(MakePlan, SendsNoInputs) {
  EXPECT_THAT(crossings(planned(chain_with_input(), {0, 1, 2, -1}, {1, 1, 1})), ElementsAre("0-1 l0", "1-2 l1"));
}

TEST(MakePlan, NamesWhatDoesNotFit) {
  const auto refusal = [](const Graph& graph, const std::vector<int>& stages, const std::vector<int>& replicas) {
    return message([&] { (void)planned(graph, stages, replicas); });
  };
  EXPECT_EQ(
      refusal(chain(), {0, 2, 1}, {1, 1, 1}),
      "layer \"l2\" in stage 1 reads layer \"l1\" in the later stage 2, data must flow to the same or a later stage");
  EXPECT_EQ(refusal(chain(), {0, 1, 1}, {2, 3}), "the stages need 5 devices, topology \"flat\" has 4");
  EXPECT_EQ(refusal(chain(), {0, 1}, {1, 1}), "the partition has 2 layers, the graph has 3 layers");
  EXPECT_EQ(refusal(chain(), {0, 0, 0}, {}), "the partition has no stages");
  EXPECT_EQ(refusal(chain(), {0, 0, 0}, {1, 1}), "stage 1 has no layers");
  EXPECT_EQ(refusal(chain(), {0, 1, 7}, {1, 1}), "layer \"l2\" is assigned to stage 7, there are 0..1");
  EXPECT_EQ(refusal(chain(), {0, 1, -1}, {1, 1}), "layer \"l2\" is assigned to stage -1, there are 0..1");
  EXPECT_EQ(refusal(chain(), {0, 0, 0}, {0}), "stage 0 has 0 replicas, must be at least 1");
  EXPECT_EQ(refusal(chain_with_input(), {0, 1, 1, 0}, {1, 1}),
            "input layer \"x\" is assigned to stage 0, inputs have none");
}

/// All layers hold "b", the first and the last hold "w", and only one layer holds "x".
Graph tied_chain() {
  Graph graph = chain();
  graph.layers[0].tied = {{"w", 4_B}, {"b", 1_B}};
  graph.layers[1].tied = {{"b", 1_B}, {"x", 2_B}};
  graph.layers[2].tied = {{"w", 4_B}, {"b", 1_B}};
  return graph;
}

TEST(MakePlan, ListsTiedParametersByNameWithTheirLayersInThePlansOrder) {
  const std::vector<TiedLayers> wanted{{"b", {"l0", "l1", "l2"}}, {"w", {"l0", "l2"}}};
  EXPECT_EQ(planned(tied_chain(), {0, 1, 2}, {1, 1, 1}).tied, wanted);
  EXPECT_EQ(planned(tied_chain(), {0, 0, 0}, {1}).tied, wanted);
  EXPECT_EQ(planned(chain(), {0, 1, 2}, {1, 1, 1}).tied, std::vector<TiedLayers>{});
  // l2 reads nothing and goes to the first stage, before l0.
  Graph graph = tied_chain();
  graph.edges.pop_back();
  EXPECT_EQ(planned(graph, {1, 1, 0}, {1, 1}).tied,
            (std::vector<TiedLayers>{{"b", {"l2", "l0", "l1"}}, {"w", {"l2", "l0"}}}));
}

struct Fault {
  std::string message;
  std::function<void(Plan&)> make;
};

TEST(ValidatePlan, NamesWhatIsWrongWithThePlanAlone) {
  Graph graph = chain();
  graph.edges.push_back(kSkip);
  const Plan good = planned(graph, {0, 1, 2}, {1, 1, 1});
  ASSERT_NO_THROW(validate(good));
  const std::vector<Fault> faults{
      {"the plan has no stages", [](Plan& p) { p.stages.clear(); }},
      {"unknown schedule \"magic\", known are " + known_names(schedules()), [](Plan& p) { p.schedule = "magic"; }},
      {"stage 1 has no layers", [](Plan& p) { p.stages[1].layers.clear(); }},
      {"layer \"l0\" is in stage 0 and in stage 1", [](Plan& p) { p.stages[1].layers = {"l0"}; }},
      {"stage 1: device -1 does not exist", [](Plan& p) { p.stages[1].devices = {-1}; }},
      {"stage 1: device 3 appears twice", [](Plan& p) { p.stages[1].devices = {3, 3}; }},
      {"device 0 is in stage 0 and in stage 1", [](Plan& p) { p.stages[1].devices = {0}; }},
      {"gradient buckets hold 0 bytes, must be at least 1", [](Plan& p) { p.gradient_bucket_bytes = Bytes(0); }},
      {"schedule \"pipedream\" updates while other steps are in progress, so replicas cannot divide the state "
       "of training; synchronous schedules such as 1f1b can",
       [](Plan& p) {
         p.schedule = "pipedream";
         p.sharding = StateSharding::Optimizer;
       }},
      {"stage 1 recomputes every -1 layers, must be at least 0", [](Plan& p) { p.stages[1].recompute_every = -1; }},
      {"stage 1 recomputes nothing, so recompute_every 2 has no effect",
       [](Plan& p) { p.stages[1].recompute_every = 2; }},
      {"the plan has 2 warm-up counts for 3 stages", [](Plan& p) { p.warmups.pop_back(); }},
      {"stage 1: the warm-up count -1 is negative", [](Plan& p) { p.warmups[1] = -1; }},
      {"boundary 1 to 3: stages are 0..2", [](Plan& p) { p.boundaries[1].destination = 3; }},
      {"boundary 2 to 1: data must flow to a later stage", [](Plan& p) { p.boundaries[0] = {2, 1, {}}; }},
      {"boundary 0 to 1 appears twice", [](Plan& p) { p.boundaries[1] = p.boundaries[0]; }},
      {"boundary 0 to 1 has no tensors", [](Plan& p) { p.boundaries[0].tensors.clear(); }},
      {"boundary 0 to 1: layer \"l2\" is not in stage 0, nor does that stage receive its output",
       [](Plan& p) { p.boundaries[0].tensors[0].layer = "l2"; }},
      {"boundary 1 to 2: layer \"l0\" is not in stage 1, nor does that stage receive its output",
       [](Plan& p) { p.boundaries.erase(p.boundaries.begin()); }},
      {"boundary 0 to 1: a tensor of layer \"l0\" appears twice",
       [](Plan& p) { p.boundaries[0].tensors.push_back(p.boundaries[0].tensors[0]); }},
      {"tied parameter \"w\" has 1 layers, must be at least 2", [](Plan& p) { p.tied = {{"w", {"l0"}}}; }},
      {"tied parameter \"w\" is listed twice", [](Plan& p) { p.tied = {{"w", {"l0", "l1"}}, {"w", {"l0", "l2"}}}; }},
      {"tied parameter \"w\": layer \"l3\" is not in any stage", [](Plan& p) { p.tied = {{"w", {"l0", "l3"}}}; }},
      {"tied parameter \"w\": layer \"l0\" is not in the plan's order, or appears twice",
       [](Plan& p) { p.tied = {{"w", {"l0", "l0"}}}; }},
      {"tied parameter \"w\": layer \"l1\" is not in the plan's order, or appears twice",
       [](Plan& p) { p.tied = {{"w", {"l2", "l1"}}}; }},
  };
  for (const Fault& fault : faults) {
    Plan plan = good;
    fault.make(plan);
    EXPECT_EQ(message([&] { validate(plan); }), fault.message);
  }
  Plan bare = good;
  bare.stages[1].devices.clear();
  EXPECT_EQ(message([&] { validate(bare); }), "stage 1 has no devices");
}

TEST(ValidatePlan, HoldsChunksToTheDevicesOfTheirPosition) {
  Plan plan = planned(chain_graph({1, 1, 1, 1}, {1, 1, 1, 1}), {0, 1, 2, 3}, {1, 1, 1, 1});
  plan.schedule = "interleaved-1f1b";
  plan.chunks = 2;
  plan.stages[2].devices = {0};
  EXPECT_EQ(message([&] { validate(plan); }),
            "stage 3 must be on the devices of stage 1, because both are chunks of the same position");
  plan.stages[3].devices = {1};
  EXPECT_EQ(message([&] { validate(plan); }), "");
  plan.stages[3].devices = {0};
  EXPECT_EQ(message([&] { validate(plan); }), "device 0 is in stage 0 and in stage 3");
}

TEST(ValidatePlan, NamesWhatDoesNotFitGraphAndTopology) {
  Graph graph = chain_with_input();
  graph.dtype = "float32";
  graph.allow_tf32 = false;
  const Topology topology = flat_topology(2);
  const Plan good = planned(graph, {0, 1, 1, -1}, {1, 1}, 2);
  ASSERT_NO_THROW(validate(good, graph, topology));
  Plan older = good;
  older.dtype = "";
  older.allow_tf32.reset();
  ASSERT_NO_THROW(validate(older, graph, topology));
  const std::vector<Fault> faults{
      {"stage 1: device 2 does not exist, topology \"flat\" has 0..1", [](Plan& p) { p.stages[1].devices = {2}; }},
      {"layer \"l2\" is not in any stage", [](Plan& p) { p.stages[1].layers = {"l1"}; }},
      {"input layer \"x\" is in a stage, inputs have none", [](Plan& p) { p.stages[1].layers.push_back("x"); }},
      {"the boundaries do not match the graph's edges; plan this graph again",
       [](Plan& p) { p.boundaries[0].tensors[0].bytes = 11_B; }},
      {"the plan is for microbatches of 3 samples, the graph does not give its own",
       [](Plan& p) { p.microbatch_samples = 3; }},
      {"the plan computes in float16, the graph was measured in float32", [](Plan& p) { p.dtype = "float16"; }},
      {"the plan's moments are bfloat16, the graph's are float32",
       [](Plan& p) { p.types.moments = StateType::Bfloat16; }},
      {"the plan allows TF32, the graph was measured without it", [](Plan& p) { p.allow_tf32 = true; }},
  };
  for (const Fault& fault : faults) {
    Plan plan = good;
    fault.make(plan);
    EXPECT_EQ(message([&] { validate(plan, graph, topology); }), fault.message);
  }
  Plan strange = good;
  strange.stages[1].layers.push_back("l9");
  EXPECT_THAT(message([&] { validate(strange, graph, topology); }),
              ::testing::HasSubstr("unknown layer \"l9\", known are l0"));
  strange.model = "gpt";
  EXPECT_EQ(message([&] { validate(strange, graph, topology); }),
            "the plan is for model \"gpt\", the graph is of \"" + graph.name + "\", which has no layer \"l9\"");
  Plan backwards = good;
  std::swap(backwards.stages[0].layers, backwards.stages[1].layers);
  backwards.boundaries.clear();
  EXPECT_THAT(message([&] { validate(backwards, graph, topology); }),
              ::testing::HasSubstr("layer \"l1\" in stage 0 reads layer \"l0\" in the later stage 1"));
}

TEST(ValidatePlan, RefusesReplicasOfABufferThatNobodyCanReplay) {
  Graph graph = chain();
  Plan replicated = planned(graph, {0, 1, 1}, {1, 2});
  Plan asynchronous = replicated;
  asynchronous.schedule = "pipedream";
  graph.layers[2].replicable = false;
  const std::string refusal =
      "layer \"l2\" writes a buffer in its forward in a way that replicas cannot replay; plan its stage without "
      "replicas";
  EXPECT_EQ(message([&] { (void)planned(graph, {0, 1, 1}, {1, 2}); }), refusal);
  EXPECT_EQ(message([&] { validate(replicated, graph, flat_topology(4)); }), refusal);
  EXPECT_NO_THROW((void)planned(graph, {0, 1, 1}, {2, 1}));
  EXPECT_NO_THROW(validate(asynchronous, graph, flat_topology(4))) << "each replica keeps its own";
}

TEST(ValidatePlan, RefusesUpdatesFromSeveralMicrobatchesOfALossOverTheWholeBatch) {
  Graph graph = chain();
  const auto refusal = [&](const std::string& schedule, int microbatches, int replicas) {
    PlanSettings settings;
    settings.schedule = schedule;
    settings.microbatches = microbatches;
    return message([&] { (void)make_plan(graph, flat_topology(4), {{0, 1, 1}, {replicas, 1}}, settings); });
  };
  EXPECT_EQ(refusal("1f1b", 4, 1), "");
  graph.whole_batch_loss = true;
  const auto says =
      ::testing::HasSubstr("plan one microbatch for each, or export the model with --loss-of-microbatches");
  EXPECT_THAT(refusal("1f1b", 4, 1), says);
  EXPECT_THAT(refusal("pipedream-2bw", 4, 1), says);
  EXPECT_THAT(refusal("pipedream", 4, 2), says);
  EXPECT_EQ(refusal("1f1b", 1, 1), "");
  EXPECT_EQ(refusal("pipedream", 4, 1), "") << "each microbatch makes an update";
  EXPECT_EQ(refusal("forward", 4, 2), "");
}

TEST(ValidatePlan, NamesATiedParameterThatPlanOrGraphLacks) {
  const Graph graph = tied_chain();
  const Topology topology = flat_topology(2);
  const Plan good = planned(graph, {0, 1, 1}, {1, 1}, 2);
  ASSERT_NO_THROW(validate(good, graph, topology));
  const std::string again = "; plan this graph again";
  const std::vector<Fault> faults{
      {"the plan does not list the graph's tied parameter \"b\" of layers \"l0\", \"l1\", \"l2\"" + again,
       [](Plan& p) { p.tied.clear(); }},  // as in a plan of version 3
      {"the plan does not list the graph's tied parameter \"w\" of layers \"l0\", \"l2\"" + again,
       [](Plan& p) { p.tied[1].layers = {"l0", "l1"}; }},
      {"the plan lists a tied parameter \"v\" of layers \"l0\", \"l1\", the graph does not" + again,
       [](Plan& p) { p.tied.push_back({"v", {"l0", "l1"}}); }},
      {"the plan does not list tied parameters in the order of their names" + again,
       [](Plan& p) { std::swap(p.tied[0], p.tied[1]); }},
  };
  for (const Fault& fault : faults) {
    Plan plan = good;
    fault.make(plan);
    EXPECT_EQ(message([&] { validate(plan, graph, topology); }), fault.message);
  }
}

Graph graph_of(const std::vector<std::string>& ids) {
  Graph graph;
  for (const std::string& id : ids) {
    Layer layer;
    layer.id = layer.name = id;
    layer.kind = id == "input" ? kInputKind : "Linear";
    if (!graph.layers.empty())
      graph.edges.push_back({static_cast<int>(graph.layers.size()) - 1, static_cast<int>(graph.layers.size()), {}});
    graph.layers.push_back(layer);
  }
  return graph;
}

std::string refusal(const std::vector<std::string>& layers, const std::vector<std::string>& names) {
  try {
    (void)bounds_at(layers, names);
  } catch (const std::invalid_argument& e) { return e.what(); }
  return "";
}

TEST(BoundsAt, BeginsAStageAtEachNamedLayer) {
  EXPECT_THAT(bounds_at({"a", "b", "c", "d"}, {"b", "d"}), ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(bounds_at({"a", "b"}, {}), ElementsAre(0, 2));
}

TEST(BoundsAt, TakesTheFirstLayerOfAModule) {
  EXPECT_THAT(bounds_at({"stem", "h.1.attn", "h.1.mlp", "h.10.attn"}, {"h.10"}), ElementsAre(0, 3, 4));
  EXPECT_THAT(bounds_at({"stem", "h.1.attn", "h.1.mlp", "h.10.attn"}, {"h.1"}), ElementsAre(0, 1, 4));
}

TEST(BoundsAt, ListsTheLayersForAnUnknownName) {
  EXPECT_EQ(refusal({"a", "b"}, {"x"}), "unknown layer \"x\", known are a, b");
  EXPECT_EQ(refusal({"a", "b"}, {""}), "unknown layer \"\", known are a, b");
  std::vector<std::string> many;
  for (int i = 0; i < 70; ++i) many.push_back(std::to_string(i));
  EXPECT_THAT(refusal(many, {"x"}), ::testing::HasSubstr("58, 59, and 10 more"));
}

TEST(BoundsAt, RefusesTheFirstLayerAndNamesOutOfOrder) {
  EXPECT_EQ(refusal({"a", "b"}, {"a"}), "\"a\" begins the first stage; give the first layers of the later stages");
  EXPECT_EQ(refusal({"a", "b", "c"}, {"c", "b"}),
            "\"b\" does not come after \"c\" in the list of layers; give them in order");
  EXPECT_EQ(refusal({"a", "b", "c"}, {"b", "b"}),
            "\"b\" does not come after \"b\" in the list of layers; give them in order");
}

TEST(PartitionOfBounds, LeavesInputsOut) {
  const Graph graph = graph_of({"input", "a", "b", "c"});
  EXPECT_THAT(layer_list(graph), ElementsAre(1, 2, 3));
  EXPECT_THAT(layer_ids(graph), ElementsAre("a", "b", "c"));
  const Partition partition = partition_of_bounds(graph, {0, 2, 3});
  EXPECT_THAT(partition.stage_of_layer, ElementsAre(-1, 0, 0, 1));
  EXPECT_THAT(partition.replicas, ElementsAre(1, 1));
}

TEST(PartitionOfBounds, RefusesBoundsThatDoNotIncrease) {
  const Graph graph = graph_of({"a", "b", "c"});
  for (const std::vector<int>& bounds :
       std::vector<std::vector<int>>{{}, {0}, {1, 3}, {0, 2}, {0, 4}, {0, 1, 1, 3}, {0, 9, 3}, {0, -1, 3}}) {
    EXPECT_THROW((void)partition_of_bounds(graph, bounds), std::invalid_argument);
  }
}

}  // namespace
}  // namespace stagecraft
