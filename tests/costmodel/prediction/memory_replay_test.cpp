#include "costmodel/prediction/memory_replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "costmodel/index.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/schedule.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using testing::flat_topology;
using testing::one_layer_a_stage;

Bytes part(const RankMemory& memory, MemoryPart one) { return memory.part(one); }

std::vector<MemoryReplay> replayed(const Graph& graph, const Plan& plan, const MemoryPlace& place = {}) {
  const BoundPlan bound(plan);
  return replay_memory(graph, bound, bound.action_lists(bound.step_window().steps), place);
}

/// One layer a stage: `parameters`, sends and saves 8 B, workspace 3 B.
Graph layers(int count, Bytes parameters) {
  const std::vector<double> ones(to_index(count), 1);
  Graph graph = chain_graph(ones, ones, 8_B, parameters);
  for (Layer& layer : graph.layers) {
    layer.saved_bytes = 8_B;
    layer.workspace_bytes = 3_B;
  }
  return graph;
}

TEST(ReplayMemory, HasNoGradientsWhileGpipeHoldsAllActivations) {
  const Graph graph = layers(1, 100_B);
  const Plan plan = one_layer_a_stage(graph, flat_topology(1), {1}, "gpipe", 3);
  const MemoryReplay replay = replayed(graph, plan)[0];
  // F0 F1 F2: 100 + 8, 16, 24 + 3. B0: three microbatches; its gradients are the 3 of workspace or, at the end of the
  // backward, 100 less the 8 that it releases: 100 + 24 + 92. B1: 100 + 100 + 16 + 3, B2: 8 less. Update: 200.
  EXPECT_THAT(replay.during, ::testing::ElementsAre(111_B, 119_B, 127_B, 216_B, 219_B, 211_B, 200_B));
  EXPECT_EQ(replay.peak.total, 219_B);
  EXPECT_EQ(part(replay.peak, MemoryPart::Gradients), 100_B);
  EXPECT_EQ(part(replay.peak, MemoryPart::Activations), 16_B);
  EXPECT_EQ(part(replay.peak, MemoryPart::Workspace), 3_B);
}

TEST(ReplayMemory, CountsTheMemoryOfLibrariesOncePerRank) {
  Graph graph = layers(4, 100_B);
  PlanSettings settings;
  settings.schedule = "interleaved-1f1b";
  settings.chunks = 2;
  settings.microbatches = 2;
  const Plan plan = make_plan(graph, flat_topology(2), {{0, 1, 2, 3}, {1, 1, 1, 1}}, settings);
  const std::vector<MemoryReplay> before = replayed(graph, plan);
  graph.library_bytes = 1000_B;
  const std::vector<MemoryReplay> after = replayed(graph, plan);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(after[rank].peak.total, before[rank].peak.total + 1000_B);
    EXPECT_EQ(part(after[rank].peak, MemoryPart::Libraries), 1000_B);
    EXPECT_EQ(part(after[rank].stages[0], MemoryPart::Libraries), 1000_B);
    EXPECT_EQ(part(after[rank].stages[1], MemoryPart::Libraries), 0_B);
  }
  EXPECT_FALSE(before[0].peak.parts.contains(MemoryPart::Libraries));
}

TEST(ReplayMemory, CountsTheWorkspaceOnTopOfWhatEarlierLayersSaved) {
  // Layer 0 saves 10 and needs 50, layer 1 saves 30 and needs 25: in layer 0 the stage holds 10 + 50, in layer 1 10 +
  // 30
  // + 25.
  Graph graph = layers(2, 0_B);
  graph.layers[0].saved_bytes = 10_B;
  graph.layers[0].workspace_bytes = 50_B;
  graph.layers[1].saved_bytes = 30_B;
  graph.layers[1].workspace_bytes = 25_B;
  const Plan plan = make_plan(graph, flat_topology(1), {{0, 0}, {1}}, {});
  EXPECT_EQ(replayed(graph, plan)[0].peak.total, 65_B);
  graph.layers[0].workspace_bytes = 70_B;
  EXPECT_EQ(replayed(graph, plan)[0].peak.total, 80_B);
}

TEST(ReplayMemory, KeepsGradientsBetweenTheTwoPartsOfABackward) {
  // In a block, 11 of 24 saved bytes; without saved bytes or in a single operator, the outputs; nothing without
  // weights.
  Layer layer;
  layer.outputs = {Output{8_B, {}, "", true}};
  EXPECT_EQ(kept_gradient_bytes(layer), 0_B);
  layer.parameter_bytes = 4_B;
  EXPECT_EQ(kept_gradient_bytes(layer), 8_B);
  layer.saved_bytes = 240_B;
  EXPECT_EQ(kept_gradient_bytes(layer), 110_B);

  const Graph graph = layers(3, 4_B);
  const Plan plan = one_layer_a_stage(graph, flat_topology(3), {1, 1, 1}, "zb-h1", 6);
  // zb-h1's last stage runs its weight gradients late: two microbatches wait while a third is in its backward.
  const std::vector<MemoryReplay> ranks = replayed(graph, plan);
  EXPECT_EQ(part(ranks[2].peak, MemoryPart::KeptGradients), 24_B);
  EXPECT_EQ(part(ranks[0].peak, MemoryPart::KeptGradients), 0_B);  // sends no gradient back, so it does not split
}

TEST(ReplayMemory, HoldsFrozenParametersAtEveryMoment) {
  Graph graph = layers(1, 100_B);
  const Plan plan = one_layer_a_stage(graph, flat_topology(1), {1}, "gpipe", 3);
  const MemoryReplay before = replayed(graph, plan)[0];
  graph.layers[0].frozen_bytes = 1000_B;
  const MemoryReplay after = replayed(graph, plan)[0];
  ASSERT_EQ(after.during.size(), before.during.size());
  for (std::size_t i = 0; i < before.during.size(); ++i) EXPECT_EQ(after.during[i], before.during[i] + 1000_B);
  EXPECT_EQ(part(after.peak, MemoryPart::Frozen), 1000_B);
  EXPECT_EQ(after.peak.total, before.peak.total + 1000_B);
}

TEST(ReplayMemory, CountsTheVersionsThatAreInUse) {
  // pipedream on two stages; without activations. Stage 1 has no other microbatch in flight and updates its parameters
  // in place, with its gradients: 2 * 100. Stage 0 has one, so it updates a copy; and the version of the last backward
  // is older than that microbatch's.
  Graph graph = layers(2, 100_B);
  for (Layer& layer : graph.layers) layer.saved_bytes = layer.workspace_bytes = layer.outputs[0].bytes = 0_B;
  const Plan plan = one_layer_a_stage(graph, flat_topology(2), {1, 1}, "pipedream", 8);
  const std::vector<MemoryReplay> ranks = replayed(graph, plan);
  EXPECT_EQ(ranks[1].peak.total, 200_B);
  EXPECT_EQ(ranks[0].peak.total, 400_B);
  EXPECT_EQ(part(ranks[0].peak, MemoryPart::OlderVersions), 200_B);
}

TEST(ReduceBuffers, AreAWindowOfSegmentsFromEachOtherRank) {
  EXPECT_EQ(reduce_buffer_bytes(1000_B, 2, "gloo"), 0_B);
  EXPECT_EQ(reduce_buffer_bytes(1000_B, 1, "ucx"), 0_B);
  EXPECT_EQ(reduce_buffer_bytes(0_B, 2, "ucx"), 0_B);
  EXPECT_EQ(reduce_buffer_bytes(1000_B, 3, "ucx"), Bytes(2 << 20));           // 2 * 4 * 256 KiB
  EXPECT_EQ(reduce_buffer_bytes(Bytes(64 << 20), 2, "ucx"), Bytes(8 << 20));  // 4 * 64 MiB / 2 / 16
}

TEST(ReplayMemory, AddsTheBuffersOfReductions) {
  const Graph graph = layers(1, 100_B);
  const Plan plan = one_layer_a_stage(graph, flat_topology(2), {2}, "1f1b", 4);
  EXPECT_EQ(part(replayed(graph, plan, {"ucx", DeviceKind::Processor})[1].peak, MemoryPart::Communication),
            Bytes(1 << 20));
  EXPECT_FALSE(replayed(graph, plan)[1].peak.parts.contains(MemoryPart::Communication));
}

TEST(ReplayMemory, SumsSharedParametersInOneBufferAfterTheOther) {
  // Stages 0 and 1 share "a", stages 1 and 2 share "b": each is summed by two ranks. Of 64 MiB a window is 4 * 64 / 2 /
  // 16 = 8 MiB, of 16 MiB it is 2 MiB. Stage 1 sums "b" in the buffer of "a" if that is larger, else takes another one.
  for (const bool large_first : {true, false}) {
    const Bytes a(large_first ? 64 << 20 : 16 << 20);
    const Bytes b(large_first ? 16 << 20 : 64 << 20);
    Graph graph = layers(3, Bytes(100 << 20));
    graph.layers[0].tied = {{"a", a}};
    graph.layers[1].tied = {{"a", a}, {"b", b}};
    graph.layers[2].tied = {{"b", b}};
    const Plan plan = one_layer_a_stage(graph, flat_topology(3), {1, 1, 1}, "1f1b", 4);
    const auto ranks = replayed(graph, plan, {"ucx", DeviceKind::Processor});
    EXPECT_EQ(part(ranks[0].peak, MemoryPart::Communication), Bytes((large_first ? 8 : 2) << 20));
    EXPECT_EQ(part(ranks[1].peak, MemoryPart::Communication), Bytes((large_first ? 8 : 2 + 8) << 20));
    EXPECT_EQ(part(ranks[2].peak, MemoryPart::Communication), Bytes((large_first ? 2 : 8) << 20));
  }
}

TEST(MemoryBound, AddsTheErrorOfEachPart) {
  RankMemory memory;
  memory.parts = {{MemoryPart::Activations, 600_B},
                  {MemoryPart::KeptGradients, 100_B},
                  {MemoryPart::Parameters, 200_B},
                  {MemoryPart::Workspace, 100_B}};
  memory.total = 1000_B;
  EXPECT_EQ(memory_bound(memory, 0_B, true, DeviceKind::Processor), 1070_B);   // 2 %, half of 100
  EXPECT_EQ(memory_bound(memory, 30_B, true, DeviceKind::Unknown), 1130_B);    // and twice the messages
  EXPECT_EQ(memory_bound(memory, 0_B, false, DeviceKind::Processor), 1343_B);  // and 39 % of 700
  EXPECT_EQ(memory_bound(memory, 0_B, true, DeviceKind::Gpu), 1220_B);         // and 15 %
}

TEST(ReplayMemory, GivesEachStageItsShareOfThePeak) {
  std::mt19937_64 random(7);
  const auto some = [&] { return Bytes(static_cast<std::int64_t>(random() % 1000)); };
  for (const ScheduleEntry& schedule : schedules()) {
    if (!schedule.trains || schedule.name == "listed") continue;
    Graph graph = chain_graph({1, 1, 1, 1}, {1, 1, 1, 1});
    for (Layer& layer : graph.layers) {
      layer.parameter_bytes = some();
      layer.outputs[0].bytes = some();
      layer.saved_bytes = some();
      layer.workspace_bytes = some();
    }
    PlanSettings settings;
    settings.schedule = schedule.name;
    settings.microbatches = 8;
    settings.chunks = schedule.chunked ? 2 : 1;
    const Partition partition =
        settings.chunks == 2 ? Partition{{0, 1, 2, 3}, {1, 1, 1, 1}} : Partition{{0, 0, 1, 1}, {1, 1}};
    const Plan plan = make_plan(graph, flat_topology(2), partition, settings);
    for (const MemoryReplay& rank : replayed(graph, plan)) {
      Bytes parts;
      Bytes stages;
      Bytes bounds;
      for (const auto& [name, bytes] : rank.peak.parts) parts += bytes;
      for (const RankMemory& stage : rank.stages) stages += stage.total;
      for (const Bytes bound : rank.bounds) bounds += bound;
      EXPECT_EQ(parts, rank.peak.total) << schedule.name;
      EXPECT_EQ(stages, rank.peak.total) << schedule.name;
      EXPECT_EQ(bounds, rank.bound) << schedule.name;
      EXPECT_EQ(*std::ranges::max_element(rank.during), rank.peak.total) << schedule.name;
      EXPECT_GT(rank.bound, rank.peak.total) << schedule.name;
    }
  }
}

}  // namespace
}  // namespace stagecraft
