#include "costmodel/prediction/memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "costmodel/index.h"
#include "costmodel/prediction/memory_replay.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;
using ::testing::IsEmpty;
using Parts = std::map<MemoryPart, Bytes>;

RankMemory stage_memory(const Graph& graph, const BoundPlan& plan, int stage, int microbatches) {
  return StageMemories(graph, plan)(stage, microbatches);
}

/// Peak bytes of each rank.
std::vector<RankMemory> rank_memories(const Graph& graph, const BoundPlan& plan,
                                      const std::vector<std::vector<Action>>& lists) {
  std::vector<RankMemory> out;
  for (MemoryReplay& replay : replay_memory(graph, plan, lists)) out.push_back(std::move(replay.peak));
  return out;
}

Action action(ActionKind kind, int microbatch, int stage = 0) { return {kind, stage, microbatch, -1}; }

TEST(InFlight, CountsForwardsLessBackwards) {
  constexpr auto F = ActionKind::Forward;
  constexpr auto B = ActionKind::Backward;
  EXPECT_EQ(in_flight({}, 0), 0);
  EXPECT_EQ(in_flight({action(F, 0), action(F, 1), action(B, 0), action(F, 2), action(B, 1), action(B, 2)}, 0), 2);
  EXPECT_EQ(in_flight({action(F, 0), action(F, 0, 1), action(B, 0, 1), action(B, 0)}, 1), 1);
}

TEST(InFlight, HoldsUntilTheWeightGradientWhereThereIsOne) {
  constexpr auto F = ActionKind::Forward;
  constexpr auto B = ActionKind::Backward;
  constexpr auto W = ActionKind::WeightGradient;
  const std::vector<Action> list{action(F, 0), action(B, 0), action(F, 1), action(B, 1), action(W, 0), action(W, 1)};
  EXPECT_EQ(in_flight(list, 0), 2);
  EXPECT_EQ(in_flight(list, 0, false), 1);  // all of the backward runs in B
}

TEST(InFlight, CountsFromTheFirstGradientOn) {
  constexpr auto F = ActionKind::Forward;
  constexpr auto B = ActionKind::Backward;
  constexpr auto W = ActionKind::WeightGradient;
  const std::vector<Action> list{action(F, 0), action(F, 1), action(B, 0), action(W, 0), action(F, 2),
                                 action(B, 1), action(W, 1), action(B, 2), action(W, 2)};
  EXPECT_EQ(in_flight(list, 0, true, /*later=*/true), 2);
  EXPECT_EQ(in_flight({action(F, 0), action(F, 1), action(B, 0), action(B, 1)}, 0, true, /*later=*/true), 0);
}

TEST(InFlight, DistinguishesMicrobatchesWithAndWithoutAWeightGradient) {
  constexpr auto F = ActionKind::Forward;
  constexpr auto B = ActionKind::Backward;
  constexpr auto W = ActionKind::WeightGradient;
  // Microbatch 0 is released by its backward, 1 by its weight gradient; in an evaluation each forward releases its own.
  EXPECT_EQ(in_flight({action(F, 0), action(B, 0), action(F, 1), action(B, 1), action(F, 2), action(W, 1)}, 0), 2);
  EXPECT_EQ(in_flight({action(F, 0), action(F, 1), action(F, 2)}, 0), 1);
}

/// Data of 100 B that both layers read; "first" sends 8 B to "second".
Graph two_layers() {
  Graph graph = chain_graph({1, 1}, {1, 1});
  graph.optimizer_state_values = 2;
  graph.layers[0].parameter_bytes = 40_B;
  graph.layers[0].outputs[0].bytes = 8_B;
  graph.layers[0].saved_bytes = 12_B;
  graph.layers[0].workspace_bytes = 6_B;
  graph.layers[1].parameter_bytes = 80_B;
  graph.layers[1].outputs[0].bytes = 4_B;
  Layer input;
  input.id = input.name = "data";
  input.kind = kInputKind;
  input.outputs = {Output{100_B, {}, "", false}};
  graph.layers.push_back(input);
  graph.edges.push_back({2, 0, 0});
  graph.edges.push_back({2, 1, 0});
  return graph;
}

Plan two_stages(const Graph& graph) { return make_plan(graph, flat_topology(3), {{0, 1, -1}, {1, 2}}, {}); }

TEST(StageMemory, AddsItsPartsByHand) {
  const Graph graph = two_layers();
  const Plan plan = two_stages(graph);
  const RankMemory first = stage_memory(graph, BoundPlan(plan), 0, 3);
  EXPECT_EQ(first.parts, (Parts{{MemoryPart::Parameters, 40_B},
                                {MemoryPart::Gradients, 40_B},
                                {MemoryPart::Optimizer, 80_B},
                                {MemoryPart::Activations, 36_B},  // 3 * 12 saved, nothing received
                                {MemoryPart::Inputs, 300_B},
                                {MemoryPart::Receiving, 16_B},  // gradients of its output: in use, and one ahead
                                {MemoryPart::Sending, 0_B},
                                {MemoryPart::Workspace, 6_B},
                                {MemoryPart::Reduction, 0_B}}));
  EXPECT_EQ(first.total, 518_B);
  const RankMemory second = stage_memory(graph, BoundPlan(plan), 1, 2);
  EXPECT_EQ(second.parts,
            (Parts{{MemoryPart::Parameters, 80_B},
                   {MemoryPart::Gradients, 80_B},
                   {MemoryPart::Optimizer, 160_B},
                   {MemoryPart::Activations, 24_B},  // 2 * (output 4, as saved bytes are unknown, + 8 received)
                   {MemoryPart::Inputs, 200_B},
                   {MemoryPart::Receiving, 8_B},
                   {MemoryPart::Sending, 8_B},  // gradient of what it received
                   {MemoryPart::Workspace, 4_B},
                   {MemoryPart::Reduction, 0_B}}));
  EXPECT_EQ(second.total, 564_B);
}

TEST(StageMemory, CountsTheOptimizersStateOfWhatARankUpdates) {
  // 2048 values in each of two layers, an optimizer of two. Three ranks divide 4096 values at multiples of 1024 from
  // the beginning of a layer: 1024, 2048 and 1024, by hand.
  Graph graph = chain_graph({1, 1}, {1, 1}, 0_B, 8192_B);
  graph.optimizer_state_values = 2;
  const BoundPlan whole(make_plan(graph, flat_topology(3), {{0, 0}, {3}}, {}));
  EXPECT_EQ(stage_memory(graph, whole, 0, 1).part(MemoryPart::Optimizer), 32768_B);
  const BoundPlan plan(make_plan(graph, flat_topology(3), {{0, 0}, {3}}, {.sharding = StateSharding::Optimizer}));
  EXPECT_EQ(stage_memory(graph, plan, 0, 1).part(MemoryPart::Optimizer), 16384_B);
  std::vector<Bytes> ranks;
  for (const MemoryReplay& replay : replay_memory(graph, plan, plan.action_lists()))
    ranks.push_back(replay.peak.part(MemoryPart::Optimizer));
  EXPECT_THAT(ranks, ElementsAre(8192_B, 16384_B, 8192_B));
}

TEST(StageMemory, HasTheBytesOfARecipeForEachParameter) {
  // One layer of 4096 values under Adam, on one rank and on four that divide the optimizer's state, 1024 values each.
  constexpr auto kBfloat16 = StateType::Bfloat16;
  struct Recipe {
    StateTypes types;
    double whole, divided;  // bytes a value
  };
  for (const Recipe& recipe : {Recipe{{}, 16, 8 + 8.0 / 4}, Recipe{{.parameters = kBfloat16}, 18, 6 + 12.0 / 4},
                               Recipe{{.parameters = kBfloat16, .gradients = kBfloat16}, 16, 4 + 12.0 / 4},
                               Recipe{{.parameters = kBfloat16, .moments = kBfloat16}, 14, 6 + 8.0 / 4}}) {
    Graph graph = chain_graph({1}, {1}, 0_B, 4096 * value_bytes(recipe.types.parameters));
    graph.dtype = "bfloat16";
    graph.types = recipe.types;
    graph.optimizer_state_values = 2;
    const auto bytes_a_value = [&](int replicas, StateSharding sharding) {
      const BoundPlan plan(make_plan(graph, flat_topology(replicas), {{0}, {replicas}}, {.sharding = sharding}));
      Bytes bytes;
      for (const MemoryPart part : {MemoryPart::Parameters, MemoryPart::Gradients, MemoryPart::Optimizer})
        bytes += stage_memory(graph, plan, 0, 1).part(part);
      const MemoryReplay replay = replay_memory(graph, plan, plan.action_lists()).front();
      for (const MemoryPart part : {MemoryPart::Parameters, MemoryPart::Gradients, MemoryPart::Optimizer})
        bytes -= replay.peak.part(part);
      EXPECT_EQ(bytes, 0_B) << "the replay's";
      return replay.peak.total / 4096_B;
    };
    EXPECT_EQ(bytes_a_value(1, StateSharding::None), recipe.whole);
    EXPECT_EQ(bytes_a_value(4, StateSharding::Optimizer), recipe.divided);
  }
}

TEST(StageMemory, CopiesGradientsToSumThemOnlyUnderAnAsynchronousSchedule) {
  const Graph graph = two_layers();
  const auto reduction = [&](const Plan& plan) {
    return stage_memory(graph, BoundPlan(plan), 1, 0).parts.at(MemoryPart::Reduction);
  };
  Plan plan = two_stages(graph);
  EXPECT_EQ(reduction(plan), 0_B);  // the gradients are summed in place
  plan.gradient_bucket_bytes = 40_B;
  EXPECT_EQ(reduction(plan), 0_B);
  plan.gradient_bucket_bytes = std::nullopt;
  plan.schedule = "pipedream";
  EXPECT_EQ(reduction(plan), 80_B);
}

TEST(RankMemories, CountTheMicrobatchesOfEachReplica) {
  Graph graph = two_layers();
  PlanSettings settings;
  settings.schedule = "gpipe";
  settings.microbatches = 3;
  const BoundPlan plan(make_plan(graph, flat_topology(3), {{0, 1, -1}, {1, 2}}, settings));
  const auto memory = rank_memories(graph, plan, plan.action_lists(1, 2));
  ASSERT_EQ(memory.size(), 3U);
  EXPECT_EQ(memory[0].parts.at(MemoryPart::Inputs), 300_B);
  EXPECT_EQ(memory[1].parts.at(MemoryPart::Inputs), 200_B);  // microbatches 0 and 2
  EXPECT_EQ(memory[2].parts.at(MemoryPart::Inputs), 100_B);
  EXPECT_EQ(memory[2].rank, 2);
}

TEST(RankMemories, ReleaseAtTheBackwardWhereNothingIsLeftForTheWeightGradient) {
  // zb-h1 on four stages: the first holds four microbatches until their weight gradients. Its backward sends nothing
  // back, so all of it runs at once, and the stage holds no more than 1f1b's.
  Graph graph = chain_graph({1, 1, 1, 1}, {1, 1, 1, 1}, 8_B, 40_B);
  PlanSettings settings;
  settings.microbatches = 8;
  const auto activations = [&](const std::string& schedule, int rank) {
    settings.schedule = schedule;
    const BoundPlan plan(make_plan(graph, flat_topology(4), {{0, 1, 2, 3}, {1, 1, 1, 1}}, settings));
    return rank_memories(graph, plan, plan.action_lists(1, 2))[to_index(rank)].parts.at(MemoryPart::Activations);
  };
  for (const int rank : {0, 1, 2, 3}) EXPECT_GE(activations("zb-h1", rank), activations("1f1b", rank));
  EXPECT_EQ(activations("zb-h1", 0), activations("1f1b", 0));
  EXPECT_GT(activations("zb-h1", 3), activations("1f1b", 3));
  graph.layers[3].backward_parts = BackwardParts{{Seconds(1), std::nullopt, 0}, {}, false};
  EXPECT_EQ(activations("zb-h1", 3), activations("1f1b", 3));
}

TEST(StageMemory, AddsAReceivedTensorThatNoLayerSaves) {
  // Whole, "second" releases the 8 B that it read, and its saved 5 B are what it allocated less those 8.
  Graph graph = two_layers();
  graph.layers[1].saved_bytes = 5_B;
  Plan plan = two_stages(graph);
  const auto activations = [&](std::optional<bool> saved) {
    graph.layers[0].outputs[0].saved = saved;
    return stage_memory(graph, BoundPlan(plan), 1, 3).parts.at(MemoryPart::Activations);
  };
  EXPECT_EQ(activations(false), 63_B);  // 3 * (5 + 8 that it does not release, + 8 received)
  EXPECT_EQ(activations(true), 39_B);
  EXPECT_EQ(activations({}), 39_B) << "unknown";
  plan.stages[1].recompute = true;
  EXPECT_EQ(activations(false), 37_B);  // 3 * 8 received, and 5 + 8 once
}

TEST(StageMemory, KeepsOnlyWhatItReceivesWhenItRecomputes) {
  const Graph graph = two_layers();
  Plan plan = two_stages(graph);
  plan.stages[1].recompute = true;
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 1, 5).parts.at(MemoryPart::Activations),
            44_B);  // 5 * 8 received + 4 once
}

TEST(StageMemory, KeepsTheBuffersThatForwardsWriteWhenItRecomputes) {
  Graph graph = two_layers();
  graph.layers[1].frozen_bytes = 9_B;
  graph.layers[1].written_bytes = 6_B;
  Plan plan = two_stages(graph);
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 1, 5).parts.at(MemoryPart::Activations),
            stage_memory(two_layers(), BoundPlan(plan), 1, 5).parts.at(MemoryPart::Activations));
  plan.stages[1].recompute = true;
  // 5 * (8 received + 6 written) + 4 once
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 1, 5).parts.at(MemoryPart::Activations), 74_B);
}

TEST(StageMemory, KeepsWhatCrossesBetweenSegmentsThatItRecomputes) {
  // l0 -> l1 -> l2 -> l3 -> l4, and l1 -> l4; stage 0 is l0, stage 1 the rest: segments {l1, l2} and {l3, l4}.
  Graph graph = chain_graph({1, 1, 1, 1, 1}, {1, 1, 1, 1, 1});
  graph.edges.push_back({1, 4, 0});
  for (int i = 0; i < 5; ++i) {
    Layer& layer = graph.layers[static_cast<std::size_t>(i)];
    layer.outputs[0].bytes = Bytes(i + 1);
    layer.saved_bytes = Bytes(std::int64_t{10} * (i + 1));
  }
  Plan plan = make_plan(graph, flat_topology(2), {{0, 1, 1, 1, 1}, {1, 1}}, {});
  plan.stages[1].recompute = true;
  plan.stages[1].recompute_every = 2;
  // Per microbatch 1 is received, and l1's 2 and l2's 3 cross; plus l3's 40 and l4's 50 once, more than 20 + 30.
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 1, 3).parts.at(MemoryPart::Activations), 108_B);
  // Segments {l1, l2, l3} and {l4}: 1 + l1's 2 + l3's 4 per microbatch, and 20 + 30 + 40 once.
  plan.stages[1].recompute_every = 3;
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 1, 3).parts.at(MemoryPart::Activations), 111_B);
  // All four are one segment, like the default: nothing crosses, 20 + 30 + 40 + 50 once.
  for (const int every : {0, 4, 9}) {
    plan.stages[1].recompute_every = every;
    EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 1, 3).parts.at(MemoryPart::Activations), 143_B) << every;
  }
  // Split backward: 1 + 2 + 3 and all 140 for each microbatch.
  plan.stages[1].recompute_every = 2;
  plan.schedule = "zb-h1";
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 1, 3).parts.at(MemoryPart::Activations), 438_B);
}

TEST(StageMemory, ExpectsNoGradientWhereNoneIsReturned) {
  Graph graph = two_layers();
  graph.layers[0].outputs[0].requires_grad = false;
  const Plan plan = two_stages(graph);
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 0, 1).parts.at(MemoryPart::Receiving), 0_B);
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 1, 1).parts.at(MemoryPart::Receiving), 8_B);
}

TEST(StageMemory, HoldsFrozenParametersWithoutGradientsAndOptimizerState) {
  Graph graph = two_layers();
  const RankMemory before = stage_memory(graph, BoundPlan(two_stages(graph)), 0, 3);
  EXPECT_FALSE(before.parts.contains(MemoryPart::Frozen));
  graph.layers[0].frozen_bytes = 1000_B;
  const RankMemory after = stage_memory(graph, BoundPlan(two_stages(graph)), 0, 3);
  EXPECT_EQ(after.parts.at(MemoryPart::Frozen), 1000_B);
  EXPECT_EQ(after.parts.at(MemoryPart::Optimizer), before.parts.at(MemoryPart::Optimizer));
  EXPECT_EQ(after.total, before.total + 1000_B);
}

TEST(StageMemory, KeepsOlderVersionsForAnAsynchronousSchedule) {
  const Graph graph = two_layers();
  Plan plan = two_stages(graph);  // warm-ups: ceil(2 / 1) = 2 for the second stage's two replicas, and 0
  plan.schedule = "pipedream";
  plan.microbatches = 8;
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 0, 3).parts.at(MemoryPart::OlderVersions),
            80_B);  // 2 besides the newest
  EXPECT_FALSE(stage_memory(graph, BoundPlan(plan), 1, 1).parts.contains(MemoryPart::OlderVersions));
  plan.schedule = "pipedream-2bw";
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 0, 3).parts.at(MemoryPart::OlderVersions), 40_B);
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 1, 1).parts.at(MemoryPart::OlderVersions), 80_B);
}

TEST(StageMemory, HoldsNoGradientsForAnEvaluation) {
  const Graph graph = two_layers();
  Plan plan = two_stages(graph);
  plan.schedule = "forward";
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 1, 1).parts,
            (Parts{{MemoryPart::Parameters, 80_B},
                   {MemoryPart::Activations, 12_B},  // 8 received + 4 of its own output
                   {MemoryPart::Inputs, 100_B},
                   {MemoryPart::Receiving, 8_B},
                   {MemoryPart::Workspace, 4_B}}));
  EXPECT_EQ(stage_memory(graph, BoundPlan(plan), 0, 1).parts.at(MemoryPart::Receiving), 0_B);
}

TEST(StageMemory, IsTheSumOfItsParts) {
  std::mt19937_64 random(1);
  const auto some = [&] { return Bytes(static_cast<std::int64_t>(random() % 1000)); };
  for (int round = 0; round < 100; ++round) {
    Graph graph = chain_graph({1, 1, 1, 1}, {1, 1, 1, 1});
    graph.optimizer_state_values = static_cast<std::int64_t>(random() % 3);
    for (Layer& layer : graph.layers) {
      layer.parameter_bytes = some();
      layer.outputs[0].bytes = some();
      if (random() % 2) layer.saved_bytes = some();
      if (random() % 2) layer.workspace_bytes = some();
    }
    Plan plan = make_plan(graph, flat_topology(3), {{0, 0, 1, 1}, {1, 2}}, {});
    plan.stages[0].recompute = random() % 2;
    for (const int stage : {0, 1}) {
      const RankMemory memory = stage_memory(graph, BoundPlan(plan), stage, static_cast<int>(random() % 8));
      Bytes sum;
      for (const auto& [part, bytes] : memory.parts) sum += bytes;
      EXPECT_EQ(memory.total, sum) << "round " << round;
    }
  }
}

TEST(HeldParameterBytes, CountATiedParameterInTheFirstLayerThatHoldsIt) {
  Graph graph = chain_graph({1, 1, 1}, {1, 1, 1}, 0_B, 100_B);
  graph.layers[0].tied = graph.layers[2].tied = {{"embedding", 60_B}};
  graph.layers[1].tied = {{"elsewhere", 30_B}};
  std::vector<const Layer*> layers;
  for (const Layer& layer : graph.layers) layers.push_back(&layer);
  EXPECT_THAT(first_held_bytes(layers), ElementsAre(100_B, 100_B, 40_B));
  EXPECT_EQ(held_parameter_bytes(layers), 240_B);
  EXPECT_EQ(held_parameter_bytes({layers[1], layers[2]}), 200_B);
}

TEST(StageMemories, HoldATiedParameterOfOneStageOnce) {
  // Layers of 100 B, of which the first and the last share 60 B; the optimizer keeps two values for each.
  Graph graph = chain_graph({1, 1, 1}, {1, 1, 1}, 0_B, 100_B);
  graph.optimizer_state_values = 2;
  graph.layers[0].tied = graph.layers[2].tied = {{"embedding", 60_B}};
  const auto parts = [&](const std::vector<int>& stage_of_layer, int stages, int stage) {
    const Plan plan =
        make_plan(graph, flat_topology(stages), {stage_of_layer, std::vector<int>(to_index(stages), 1)}, {});
    return stage_memory(graph, BoundPlan(plan), stage, 1).parts;
  };
  Parts whole = parts({0, 0, 0}, 1, 0);
  EXPECT_EQ(whole[MemoryPart::Parameters], 240_B);
  EXPECT_EQ(whole[MemoryPart::Gradients], 240_B);
  EXPECT_EQ(whole[MemoryPart::Optimizer], 480_B);
  EXPECT_EQ(parts({0, 0, 1}, 2, 0)[MemoryPart::Parameters], 200_B);
  EXPECT_EQ(parts({0, 0, 1}, 2, 1)[MemoryPart::Parameters], 100_B) << "in two stages, each holds it";
}

}  // namespace
}  // namespace stagecraft
