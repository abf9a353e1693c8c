#include "costmodel/prediction/predict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/prediction/stage_costs.h"
#include "costmodel/simulation/simulate.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using stagecraft::testing::chain_graph;
using stagecraft::testing::flat_topology;
using stagecraft::testing::one_layer_a_stage;
using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;
using testing::one_layer_a_stage;

Prediction predicted(const Graph& graph, const Topology& topology, const Plan& plan,
                     const PredictOptions& options = {}) {
  return std::get<Prediction>(predict(graph, topology, BoundPlan(plan), options));
}

/// Stages of 1 and 2 s forward, 2 and 4 s backward, joined by a link of 0.5 s + 1000 B at 1000 B/s = 1.5 s per message;
/// one microbatch of 6 samples. By hand:
///   stage 0: forward 0-1, backward 10-12;   stage 1: forward 2.5-4.5, backward 4.5-8.5;   messages 1-2.5 and 8.5-10.
struct TwoStages {
  Graph graph = chain_graph({1, 2}, {2, 4}, 1000_B);
  Topology topology = flat_topology(2, 1000, 0.5);
  Plan plan;

  TwoStages() {
    graph.microbatch_samples = 6;
    plan = one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 1);
  }
};

TEST(Predict, PutsTheOneWayTimeOnTheCriticalPath) {
  const TwoStages two;
  const Prediction p = predicted(two.graph, two.topology, two.plan);
  EXPECT_DOUBLE_EQ(p.iteration.value, 12);
  EXPECT_DOUBLE_EQ(*p.samples_per_s, 0.5);
  EXPECT_DOUBLE_EQ(p.bubble, 1 - (3 + 6) / 24.0);
  const Prediction free = predicted(two.graph, two.topology, two.plan, {.free_transfers = true});
  EXPECT_DOUBLE_EQ(free.iteration.value, 9);
}

TEST(Predict, DistinguishesExposedTransfersFromTheBubble) {
  const TwoStages two;
  const std::vector<StagePrediction> stages = predicted(two.graph, two.topology, two.plan).stages;
  EXPECT_DOUBLE_EQ(stages[0].compute.value, 3);
  EXPECT_DOUBLE_EQ(stages[0].exposed_transfer.value, 1.5);  // waits from 1; the gradient is in transit from 8.5 to 10
  EXPECT_DOUBLE_EQ(stages[0].bubble.value, 7.5);
  EXPECT_DOUBLE_EQ(stages[1].compute.value, 6);
  EXPECT_DOUBLE_EQ(stages[1].exposed_transfer.value, 1.5);  // 1 to 2.5
  EXPECT_DOUBLE_EQ(stages[1].bubble.value, 4.5);            // the first second, and 8.5 to 12
  EXPECT_EQ(stages[1].forward, 2_s);
  EXPECT_EQ(stages[1].backward, 4_s);
  EXPECT_EQ(stages[1].in_flight, 1);
}

TEST(Predict, StatesNoSamplesWhereTheGraphDoesNot) {
  const Graph graph = chain_graph({1}, {1});
  const Topology topology = flat_topology(1);
  EXPECT_FALSE(predicted(graph, topology, one_layer_a_stage(graph, topology, {1}, "1f1b", 2)).samples_per_s);
}

TEST(Predict, AddsUpdateAndReduceAfterTheLastBackward) {
  Graph graph = chain_graph({1}, {2}, 0_B, 400_B);
  graph.layers[0].update = Timing{0.25_s, {}, 0};
  const Topology topology = flat_topology(2, 100, 1);
  // Each replica runs two of four microbatches, 6 s; the ring of two takes 2 * (1 + 400 / (2 * 100)) = 6 s; then the
  // update.
  const Prediction p = predicted(graph, topology, one_layer_a_stage(graph, topology, {2}, "1f1b", 4));
  EXPECT_DOUBLE_EQ(p.iteration.value, 12.25);
  EXPECT_DOUBLE_EQ(p.stages[0].compute.value, 6);
  EXPECT_DOUBLE_EQ(p.stages[0].reduce.value, 6);
  EXPECT_DOUBLE_EQ(p.stages[0].update.value, 0.25);
  EXPECT_NEAR(p.bubble, 0, 1e-12);
}

TEST(Predict, CountsIdleReplicasAsBubble) {
  const Graph graph = chain_graph({1}, {2}, 0_B, 400_B);
  const Topology topology = flat_topology(20, 100, 1);
  // Eight of sixteen replicas run a microbatch of 3 s; the ring of sixteen takes 30 * (1 + 400 / (16 * 100)) = 37.5 s.
  const Prediction p = predicted(graph, topology, one_layer_a_stage(graph, topology, {16}, "1f1b", 8));
  EXPECT_DOUBLE_EQ(p.iteration.value, 40.5);
  EXPECT_DOUBLE_EQ(p.stages[0].forward.value, 1);
  EXPECT_DOUBLE_EQ(p.stages[0].backward.value, 2);
  EXPECT_DOUBLE_EQ(p.stages[0].compute.value, 1.5);
  EXPECT_DOUBLE_EQ(p.stages[0].reduce.value, 37.5);
  EXPECT_DOUBLE_EQ(p.stages[0].bubble.value, 1.5);
  EXPECT_NEAR(p.bubble, 1.5 / 40.5, 1e-12);
  EXPECT_EQ(p.devices, 20);
  EXPECT_EQ(p.idle_devices, (std::vector<int>{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(p.unused_devices, (std::vector<int>{16, 17, 18, 19}));
  // Busy for 39 of 40.5 s on 16 of 20 devices: 77.0 % of all.
  EXPECT_EQ(bubble_text(p, "~"), "idle ~3.7 % (~23.0 % with the devices that are not in any stage)");
  EXPECT_EQ(idle_text(p), "12 of 20 devices are idle: 8-15 have no microbatch, 16-19 are not in any stage");
  // Three microbatches on two replicas: the second waits 3 s for the first, which does not count as reduction time.
  const Topology pair = flat_topology(2, 100, 1);
  const Prediction uneven = predicted(graph, pair, one_layer_a_stage(graph, pair, {2}, "1f1b", 3));
  EXPECT_DOUBLE_EQ(uneven.stages[0].reduce.value, 6);  // ring: 2 * (1 + 400 / (2 * 100))
  EXPECT_DOUBLE_EQ(uneven.stages[0].bubble.value, 1.5);
  EXPECT_EQ(bubble_text(uneven, ""), "idle 12.5 %");  // 1.5 of 12 s
  EXPECT_EQ(idle_text(uneven), "");
}

TEST(Predict, AddsTheForwardAgainWhereAStageRecomputes) {
  const Graph graph = chain_graph({1}, {2});
  const Topology topology = flat_topology(1);
  Plan plan = one_layer_a_stage(graph, topology, {1}, "1f1b", 3);
  plan.stages[0].recompute = true;
  EXPECT_DOUBLE_EQ(predicted(graph, topology, plan).iteration.value, 12);  // 3 * (1 + 1 + 2)
}

TEST(Predict, AddsTheForwardOnceMoreHoweverManySegmentsAreRecomputed) {
  const Graph graph = chain_graph({1, 2, 3}, {2, 4, 6});
  const Topology topology = flat_topology(1);
  PlanSettings settings;
  settings.microbatches = 3;
  settings.recompute = true;
  for (const int every : {0, 1, 2, 3}) {
    settings.recompute_every = every;
    const Plan plan = make_plan(graph, topology, {{0, 0, 0}, {1}}, settings);
    EXPECT_DOUBLE_EQ(predicted(graph, topology, plan).iteration.value, 72) << every;  // 3 * (6 + 6 + 12)
  }
}

/// An input that layer `reader` reads, with a measured forward time.
void add_input(Graph& graph, int reader, Seconds forward) {
  Layer input;
  input.id = input.name = "data";
  input.kind = kInputKind;
  input.outputs = {Output{8_B, {}, "", false}};
  input.forward = {forward, {}, 7};
  graph.layers.push_back(input);
  graph.edges.push_back({to_int(graph.layers.size()) - 1, reader, 0});
}

TEST(Predict, AddsTheMeasuredLoadingOfInputsToTheStagesThatReadThem) {
  Graph graph = chain_graph({1, 1}, {2, 2});
  add_input(graph, 1, 0.5_s);
  const Topology topology = flat_topology(2);
  const Plan plan = make_plan(graph, topology, {{0, 1, -1}, {1, 1}}, {});
  EXPECT_DOUBLE_EQ(predicted(graph, topology, plan).stages[0].forward.value, 1);
  EXPECT_DOUBLE_EQ(predicted(graph, topology, plan).stages[1].forward.value, 1.5);
  graph.layers[2].forward.count = 0;  // stated by an importer, not measured here
  EXPECT_DOUBLE_EQ(predicted(graph, topology, plan).stages[1].forward.value, 1);
}

// On a GPU, the host loads beside the device. A rank that computes 1 + 2 s (and 0.25 s of upload) for a microbatch
// hides 3.25 s of loading; of 4 s it waits for 0.75 s.
TEST(Predict, WaitsForDataThatTakeLongerToLoadThanAMicrobatchToCompute) {
  Graph graph = chain_graph({1, 1}, {2, 2});
  add_input(graph, 0, 0.25_s);
  const Topology topology = flat_topology(2);
  const Plan plan = make_plan(graph, topology, {{0, 1, -1}, {1, 1}}, {});
  const auto forward = [&](Seconds loading) {
    graph.layers[2].loading = Timing{loading, {}, 7};
    return predicted(graph, topology, plan).stages[0].forward.value;
  };
  EXPECT_DOUBLE_EQ(forward(3.25_s), 1.25);
  EXPECT_EQ(data_wait_text(graph, topology, BoundPlan(plan)), "");
  EXPECT_DOUBLE_EQ(forward(4_s), 2);
  EXPECT_EQ(data_wait_text(graph, topology, BoundPlan(plan)),
            "stage 0 is input-bound: loading a microbatch takes the host 4.00 s, computing it takes the device 3.25 s");
  EXPECT_DOUBLE_EQ(predicted(graph, topology, plan).stages[1].forward.value, 1);
}

TEST(Predict, WaitsForDataBesideAllStagesOfARank) {
  // Two chunks on one device: a microbatch keeps it busy for 3 + 3 s, so 5 s of loading are hidden.
  Graph graph = chain_graph({1, 1}, {2, 2});
  add_input(graph, 0, 0_s);
  PlanSettings settings;
  settings.schedule = "interleaved-1f1b";
  settings.chunks = 2;
  settings.microbatches = 2;
  const Topology topology = flat_topology(1);
  const Plan plan = make_plan(graph, topology, {{0, 1, -1}, {1, 1}}, settings);
  const auto forward = [&](Seconds loading) {
    graph.layers[2].loading = Timing{loading, {}, 7};
    return predicted(graph, topology, plan).stages[0].forward.value;
  };
  EXPECT_DOUBLE_EQ(forward(5_s), 1);
  EXPECT_DOUBLE_EQ(forward(7_s), 2);
}

TEST(Predict, HasTheBubbleOfUniformStages) {
  for (const int stages : {1, 2, 3, 5}) {
    for (const int microbatches : {5, 8, 20}) {
      const Graph graph = chain_graph(std::vector<double>(static_cast<std::size_t>(stages), 1),
                                      std::vector<double>(static_cast<std::size_t>(stages), 2), 1000_B);
      const Topology topology = flat_topology(stages);
      const Plan plan = one_layer_a_stage(graph, topology, std::vector<int>(static_cast<std::size_t>(stages), 1),
                                          "1f1b", microbatches);
      const Prediction p = predicted(graph, topology, plan, {.free_transfers = true});
      EXPECT_NEAR(p.iteration.value, 3.0 * (microbatches + stages - 1), 1e-9);
      EXPECT_NEAR(p.bubble, (stages - 1.0) / (microbatches + stages - 1.0), 1e-12) << stages << " " << microbatches;
    }
  }
}

/// A random chain with random replicas.
struct RandomCase {
  Graph graph;
  Topology topology;
  Plan plan;
};

RandomCase random_case(unsigned seed) {
  std::mt19937_64 random(seed);
  const auto real = [&](double low, double high) { return std::uniform_real_distribution<double>(low, high)(random); };
  const std::size_t stages = 1 + random() % 4;
  RandomCase out;
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<int> replicas;
  int devices = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    forward.push_back(real(0.1, 2));
    backward.push_back(real(0.1, 4));
    replicas.push_back(random() % 2 ? 1 : 1 + static_cast<int>(random() % 3));
    devices += replicas.back();
  }
  out.graph = chain_graph(forward, backward, 1000_B, 500_B);
  for (Layer& layer : out.graph.layers) layer.update = Timing{Seconds(real(0, 1)), {}, 0};
  out.topology = flat_topology(devices, real(500, 50000), real(0, 0.1));
  out.plan = one_layer_a_stage(out.graph, out.topology, replicas, random() % 2 ? "1f1b" : "gpipe",
                               1 + static_cast<int>(random() % 9));
  return out;
}

TEST(Predict, AttributesTheWholeIteration) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const RandomCase c = random_case(seed);
    const Prediction p = predicted(c.graph, c.topology, c.plan);
    std::vector<Seconds> waiting(p.stages.size());
    for (const Span& span : p.timeline.spans) {
      const ActionKind kind = span.action.kind;
      if (kind != ActionKind::ReceiveActivation && kind != ActionKind::ReceiveGradient) continue;
      const auto stage = static_cast<std::size_t>(span.action.stage);
      waiting[stage] += (span.end - span.start) / p.stages[stage].replicas;
    }
    for (std::size_t s = 0; s < p.stages.size(); ++s) {
      const StagePrediction& stage = p.stages[s];
      const Seconds sum = stage.compute + stage.update + stage.reduce + stage.exposed_transfer + stage.bubble;
      EXPECT_NEAR(sum / p.iteration, 1, 1e-12) << "seed " << seed << " stage " << s;
      EXPECT_NEAR(stage.compute.value, ((stage.forward + stage.backward) * c.plan.microbatches / stage.replicas).value,
                  1e-9);
      EXPECT_GE(stage.exposed_transfer, 0_s);
      EXPECT_LE(stage.exposed_transfer, waiting[s] + 1e-9_s) << "seed " << seed << " stage " << s;
    }
  }
}

TEST(Predict, RisesWhenTheBandwidthFalls) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    RandomCase c = random_case(seed);
    const Seconds before = predicted(c.graph, c.topology, c.plan).iteration;
    c.topology.levels[0].link.bandwidth = c.topology.levels[0].link.bandwidth / 3;
    EXPECT_GE(predicted(c.graph, c.topology, c.plan).iteration, before - 1e-9_s) << "seed " << seed;
  }
}

TEST(Predict, IgnoresLevelsOfOne) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    const RandomCase c = random_case(seed);
    const Prediction flat = predicted(c.graph, c.topology, c.plan);
    const Level single{"single", 1, Link{BytesPerSecond(1), 100_s, {}, {}}};
    for (const std::size_t at : {0U, 1U}) {
      Topology deeper = c.topology;
      deeper.levels.insert(deeper.levels.begin() + static_cast<std::ptrdiff_t>(at), single);
      const Prediction p = predicted(c.graph, deeper, c.plan);
      EXPECT_EQ(p.iteration, flat.iteration) << "seed " << seed << ", the level stands at " << at;
      EXPECT_EQ(p.timeline, flat.timeline) << "seed " << seed << ", the level stands at " << at;
    }
  }
}

TEST(Predict, SlowsRanksThatComputeAtOnceOnOneHost) {
  Graph graph = chain_graph({1, 1}, {1, 1});
  const Topology topology = flat_topology(2);
  const Plan plan = one_layer_a_stage(graph, topology, {1, 1}, "gpipe", 2);
  EXPECT_DOUBLE_EQ(predicted(graph, topology, plan, {.free_transfers = true}).iteration.value, 6);
  // Both compute at the same time during one second of forward and one of backward work; at half speed each takes 2 s.
  graph.slowdown = {1, 2};
  EXPECT_DOUBLE_EQ(predicted(graph, topology, plan, {.free_transfers = true}).iteration.value, 8);
  // Two hosts with one device each.
  Topology hosts = topology;
  hosts.levels.insert(hosts.levels.begin(), Level{"host", 1, topology.levels[0].link});
  EXPECT_DOUBLE_EQ(predicted(graph, hosts, plan, {.free_transfers = true}).iteration.value, 6);
}

TEST(Predict, SaysWhetherTheMemorySuffices) {
  const Graph graph = chain_graph({1, 1}, {1, 1}, 0_B, 100_B);
  Topology topology = flat_topology(2);
  const Plan plan = one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 2);
  EXPECT_TRUE(predicted(graph, topology, plan).stages[0].fits);
  topology.device.memory = 204_B;  // parameters and gradients, and 2 %, to the byte
  EXPECT_TRUE(predicted(graph, topology, plan).stages[0].fits);
  EXPECT_EQ(predicted(graph, topology, plan).stages[0].memory_bound, 204_B);
  EXPECT_EQ(predicted(graph, topology, plan).stages[0].memory.total, 200_B);
  topology.device.memory = 203_B;
  EXPECT_FALSE(predicted(graph, topology, plan).stages[0].fits);
}

TEST(Predict, GivesAnAsynchronousStepThePeriodOfItsSlowestStage) {
  // 3 s per microbatch on both stages, four per step, no fill and no drain: 12 s; a flush would add 3 s.
  const Topology topology = flat_topology(3);
  Graph graph = chain_graph({1, 1}, {2, 2});
  for (const char* schedule : {"pipedream", "pipedream-2bw"}) {
    EXPECT_DOUBLE_EQ(
        predicted(graph, topology, one_layer_a_stage(graph, topology, {1, 1}, schedule, 4)).iteration.value, 12);
  }
  EXPECT_DOUBLE_EQ(predicted(graph, topology, one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 4)).iteration.value,
                   15);
  // An update of 0.75 s on the first stage, with the copy of its parameters 5 / 3 of that, 1.25 s, and as long in place
  // on the last one: after every microbatch, 4 * 4.25 s. After every step, with a copy on both: 12 s + 5 / 3 * 1.25 s.
  graph.layers[0].update = Timing{0.75_s, 0_s, 1};
  graph.layers[1].update = Timing{1.25_s, 0_s, 1};
  EXPECT_DOUBLE_EQ(
      predicted(graph, topology, one_layer_a_stage(graph, topology, {1, 1}, "pipedream", 4)).iteration.value, 17);
  EXPECT_DOUBLE_EQ(
      predicted(graph, topology, one_layer_a_stage(graph, topology, {1, 1}, "pipedream-2bw", 4)).iteration.value,
      12 + 1.25 * 5 / 3);
  // The first stage takes 6 s per microbatch: 24 s without replicas; 12 s, as much as the last stage, with two.
  graph = chain_graph({2, 1}, {4, 2});
  for (const char* schedule : {"pipedream", "pipedream-2bw"}) {
    EXPECT_DOUBLE_EQ(
        predicted(graph, topology, one_layer_a_stage(graph, topology, {1, 1}, schedule, 4)).iteration.value, 24);
    EXPECT_NEAR(predicted(graph, topology, one_layer_a_stage(graph, topology, {2, 1}, schedule, 4)).iteration.value, 12,
                1e-9);
  }
}

TEST(Predict, AttributesTheWholeSteadyStep) {
  const Graph graph = chain_graph({1, 1, 3}, {2, 2, 3}, 1000_B, 1000_B);
  const Topology topology = flat_topology(4, 1000, 0.25);
  const Prediction p = predicted(graph, topology, one_layer_a_stage(graph, topology, {2, 1, 1}, "pipedream", 5));
  for (const StagePrediction& s : p.stages) {
    EXPECT_NEAR((s.compute + s.update + s.reduce + s.exposed_transfer + s.bubble).value, p.iteration.value, 1e-9);
  }
  EXPECT_NEAR(p.stages[2].compute.value, 30, 1e-9);  // five microbatches of 6 s
}

TEST(Predict, RunsForwardsAloneForAnEvaluation) {
  // Four microbatches of 1 s on two stages: 5 s.
  const Graph graph = chain_graph({1, 1}, {2, 2});
  const Topology topology = flat_topology(2);
  const Prediction p = predicted(graph, topology, one_layer_a_stage(graph, topology, {1, 1}, "forward", 4));
  EXPECT_DOUBLE_EQ(p.iteration.value, 5);
  EXPECT_EQ(p.stages[0].in_flight, 1);
}

TEST(Predict, RefusesAPlanOfAnotherGraph) {
  const TwoStages two;
  const auto refusal = [&](const Graph& graph, const Plan& plan) -> std::string {
    try {
      (void)predict(graph, two.topology, BoundPlan(plan));
    } catch (const std::invalid_argument& e) { return e.what(); }
    return "";
  };
  Graph other = two.graph;
  other.layers[0].id = "conv";
  EXPECT_THAT(refusal(other, two.plan), ::testing::HasSubstr("unknown layer \"l0\", known are conv, l1"));
}

TEST(Predict, LayersShareOutTheMeasuredIteration) {
  // Layers of 1 + 2 and 3 + 4 s add up to 10 s, the iteration took 11 s: one stage takes the full 11 s per microbatch.
  Graph graph = chain_graph({1, 3}, {2, 4});
  graph.iteration = Timing{Seconds(11), {}, 5};
  const Topology topology = flat_topology(2);
  Plan plan = make_plan(graph, topology, {{0, 0}, {1}}, {.microbatches = 2});
  EXPECT_NEAR(std::get<Prediction>(predict(graph, topology, BoundPlan(plan))).iteration.value, 22, 1e-12);
}

// Long steps. `whole` replays an entire step, `ends` at most 4096 pairs of a microbatch and a stage.

const PredictOptions kWhole{.most_whole = 1 << 20};
const PredictOptions kEnds{.most_whole = 1 << 12};

void expect_equal(const Prediction& ends, const Prediction& whole) {
  // The relative error that predict promises.
  const double tolerance = 1e-9 * whole.iteration.value;
  EXPECT_NEAR(ends.iteration.value, whole.iteration.value, tolerance);
  EXPECT_NEAR(ends.bubble, whole.bubble, 1e-9);
  ASSERT_EQ(ends.stages.size(), whole.stages.size());
  for (std::size_t s = 0; s < whole.stages.size(); ++s) {
    const StagePrediction& a = ends.stages[s];
    const StagePrediction& b = whole.stages[s];
    EXPECT_NEAR(a.compute.value, b.compute.value, tolerance);
    EXPECT_NEAR(a.update.value, b.update.value, tolerance);
    EXPECT_NEAR(a.reduce.value, b.reduce.value, tolerance);
    EXPECT_NEAR(a.exposed_transfer.value, b.exposed_transfer.value, tolerance);
    EXPECT_NEAR(a.bubble.value, b.bubble.value, tolerance);
    EXPECT_EQ(a.in_flight, b.in_flight);
    EXPECT_EQ(a.memory, b.memory);
  }
  EXPECT_EQ(whole.reckoned_microbatches, 0);
}

TEST(PredictLongSteps, EqualAWholeReplayFor1f1bOfAnyStagesReplicasAndLinks) {
  const unsigned seed = 20;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> time(0.5, 2);
  int reckoned = 0;
  for (const std::vector<int>& replicas : std::vector<std::vector<int>>{
           {1}, {1, 1}, {2, 1}, {1, 2}, {3, 2}, {1, 1, 1}, {2, 1, 3}, {1, 1, 1, 1}, {4, 2, 1, 1}}) {
    for (const double bandwidth : {1e9, 4000.0, 900.0}) {  // messages of 1 us, 0.25 s and 1.1 s
      SCOPED_TRACE(::testing::PrintToString(replicas) + " at " + std::to_string(bandwidth));
      std::vector<double> forward;
      std::vector<double> backward;
      int devices = 0;
      for (const int r : replicas) {
        forward.push_back(time(random) * r);
        backward.push_back(2 * time(random) * r);
        devices += r;
      }
      Graph graph = chain_graph(forward, backward, 1000_B, 500_B);
      if (devices % 2 == 0) graph.slowdown = {1, 1.2, 1.5};
      // 4099 is prime: the shorter step must leave the same remainder.
      const Topology topology = flat_topology(devices, bandwidth, 0.01);
      const Plan plan = one_layer_a_stage(graph, topology, replicas, "1f1b", 4099);
      const Prediction ends = predicted(graph, topology, plan, kEnds);
      expect_equal(ends, predicted(graph, topology, plan, kWhole));
      reckoned += ends.reckoned_microbatches > 0 ? 1 : 0;
    }
  }
  EXPECT_GE(reckoned, 20) << "of 27";
}

TEST(PredictLongSteps, EqualAWholeReplayForInterleavedStages) {
  const Graph graph = chain_graph({1, 1.5, 0.5, 1}, {2, 2.5, 1, 2}, 1000_B);
  const Topology topology = flat_topology(2, 5000, 0.01);
  Plan plan = one_layer_a_stage(graph, flat_topology(4), {1, 1, 1, 1}, "1f1b", 4096);
  plan.schedule = "interleaved-1f1b";
  plan.chunks = 2;
  plan.stages[2].devices = plan.stages[0].devices = {0};
  plan.stages[3].devices = plan.stages[1].devices = {1};
  const Prediction ends = predicted(graph, topology, plan, kEnds);
  expect_equal(ends, predicted(graph, topology, plan, kWhole));
  EXPECT_GT(ends.reckoned_microbatches, 2048);
}

// Five positions of five replicas each: a shorter step must have a multiple of 25 microbatches.
TEST(PredictLongSteps, EqualAWholeReplayForReplicasOfSeveralStages) {
  const Graph graph =
      chain_graph({1, 1.5, 0.5, 1, 1, 2, 1, 1.5, 1, 1}, {2, 2.5, 1, 2, 1, 3, 2, 2, 1, 2}, 1000_B, 500_B);
  const Topology topology = flat_topology(25, 5000, 0.01);
  for (const char* schedule : {"interleaved-1f1b", "interleaved-zb", "zb-v", "v-half", "v-min", "dualpipev"}) {
    SCOPED_TRACE(schedule);
    const Partition partition{.stage_of_layer = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, .replicas = std::vector<int>(10, 5)};
    PlanSettings settings;
    settings.microbatches = 4100;
    settings.schedule = schedule;
    settings.chunks = 2;
    const Plan plan = make_plan(graph, topology, partition, settings);
    const Prediction ends = predicted(graph, topology, plan, {.most_whole = 1 << 14});
    Prediction whole = predicted(graph, topology, plan, kWhole);
    // Which sends a rank still holds at its peak depends on how many went before, so memory may differ by a message.
    for (std::size_t s = 0; s < whole.stages.size() && schedule_of(plan).placement == Placement::V; ++s) {
      const std::int64_t message = 1000;
      EXPECT_NEAR(static_cast<double>(ends.stages[s].memory.total.value + ends.stages[9 - s].memory.total.value),
                  static_cast<double>(whole.stages[s].memory.total.value + whole.stages[9 - s].memory.total.value),
                  static_cast<double>(message));
    }
    for (std::size_t s = 0; s < whole.stages.size() && schedule_of(plan).placement == Placement::V; ++s)
      whole.stages[s].memory = ends.stages[s].memory;
    expect_equal(ends, whole);
    EXPECT_GT(ends.reckoned_microbatches, 2000);
  }
}

// (M + p - 1)(F + B), closed_forms.h, with F + B = 3 s on three equal stages.
TEST(PredictLongSteps, MeetTheClosedFormOf1f1bAtTenMillionMicrobatches) {
  const Graph graph = chain_graph({1, 1, 1}, {2, 2, 2});
  const Plan plan = one_layer_a_stage(graph, flat_topology(3), {1, 1, 1}, "1f1b", 10'000'000);
  const Prediction p = predicted(graph, flat_topology(3), plan, {.free_transfers = true});
  EXPECT_NEAR(p.iteration.value, 30'000'006, 1e-9 * 3e7);
  EXPECT_NEAR(p.stages[1].compute.value, 30'000'000, 1e-9 * 3e7);
  EXPECT_NEAR(p.stages[1].bubble.value, 6, 0.03);  // within 1e-9 of the step
  EXPECT_EQ(p.stages[0].in_flight, 3);
  EXPECT_LT(p.timeline.spans.size(), 100'000u);
  EXPECT_EQ(p.timeline.steps.front().end, p.iteration);
}

TEST(PredictLongSteps, HaveATimelineWithAGapOfTheRightLength) {
  // Each microbatch takes 3 s on the only stage, so microbatch m begins at 3 m s on both sides of the gap.
  const Graph graph = chain_graph({1}, {2});
  const Plan plan = one_layer_a_stage(graph, flat_topology(1), {1}, "1f1b", 100'000);
  const Prediction p = predicted(graph, flat_topology(1), plan);
  ASSERT_GT(p.reckoned_microbatches, 0);
  int last = -1;
  for (const Span& span : p.timeline.spans) {
    if (span.action.kind != ActionKind::Forward) continue;
    EXPECT_NEAR(span.start.value, 3.0 * span.action.microbatch, 1e-6);
    last = span.action.microbatch;
  }
  EXPECT_EQ(last, 99'999);
}

TEST(PredictLongSteps, AreReplayedWhereTheyDoNotRepeatThemselvesUpToALimit) {
  const Graph graph = chain_graph({1, 2}, {2, 4}, 1000_B);
  const Topology topology = flat_topology(2, 1e6);
  const auto plan = [&](const std::string& schedule, int microbatches) {
    return one_layer_a_stage(graph, topology, {1, 1}, schedule, microbatches);
  };
  EXPECT_EQ(predicted(graph, topology, plan("gpipe", 3000), kEnds).reckoned_microbatches, 0);
  expect_equal(predicted(graph, topology, plan("gpipe", 3000), kEnds),
               predicted(graph, topology, plan("gpipe", 3000), kWhole));
  PredictOptions few = kEnds;
  few.most_replayed = 5000;
  EXPECT_THAT([&] { (void)predict(graph, topology, BoundPlan(plan("gpipe", 3000)), few); },
              ::testing::ThrowsMessage<std::invalid_argument>(
                  "3000 microbatches: the 2 stages of schedule \"gpipe\" do not repeat, so every microbatch must be "
                  "simulated; the limit is 2500, because more take minutes and gigabytes"));
}

TEST(StagesOfPositions, AreThoseOfTheRanks) {
  Prediction prediction;
  prediction.stages.resize(4);
  prediction.timeline.stage_of_rank = {0, 1, 1};  // two replicas of the second position
  EXPECT_THAT(stages_of_positions(prediction), ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  prediction.timeline.stage_of_rank.clear();
  EXPECT_EQ(stages_of_positions(prediction).size(), 4U);
  EXPECT_TRUE(stages_of_positions({}).empty());
}

TEST(FigureSource, ReadsBackItsNames) {
  for (const FigureSource source : {FigureSource::Measured, FigureSource::Fitted, FigureSource::Analytic,
                                    FigureSource::Extrapolated, FigureSource::Assumed, FigureSource::Calibrated})
    EXPECT_EQ(figure_source(to_string(source)), source);
  EXPECT_THAT([] { (void)figure_source("guessed"); },
              ::testing::ThrowsMessage<std::invalid_argument>(::testing::HasSubstr(
                  "unknown source \"guessed\", known are measured, fitted, analytic, extrapolated, "
                  "assumed, calibrated")));
}

/// Rank 0 works from 0 to 6 s; rank 1 waits for 2 s, then works until 7 s.
Timeline two_ranks() {
  Timeline out;
  out.ranks = 2;
  out.stage_of_rank = {0, 1};
  out.steps = {{0, Seconds(0), Seconds(7)}};
  const auto add = [&](int rank, ActionKind kind, double start, double end) {
    out.spans.push_back({rank, 0, {kind, rank, 0, -1}, Seconds(start), Seconds(end)});
  };
  add(0, ActionKind::Forward, 0, 2);
  add(0, ActionKind::ReceiveGradient, 2, 4);
  add(0, ActionKind::Backward, 4, 6);
  add(1, ActionKind::ReceiveActivation, 0, 2);
  add(1, ActionKind::Forward, 2, 3);
  add(1, ActionKind::Backward, 3, 4);
  add(1, ActionKind::WeightGradient, 4, 7);
  return out;
}

TEST(SteadyStep, LetsRanksBeginTheNextStepWhileOthersEndThisOne) {
  Prediction prediction;
  prediction.iteration = Seconds(7);
  prediction.timeline = two_ranks();
  EXPECT_EQ(steady_step(prediction), Seconds(6));
}

TEST(SteadyStep, IsTheIterationOfAnAsynchronousScheduleOrWithoutATimeline) {
  Prediction prediction;
  prediction.iteration = Seconds(7);
  EXPECT_EQ(steady_step(prediction), Seconds(7));
  prediction.timeline = two_ranks();
  prediction.timeline.steps.push_back({1, Seconds(7), Seconds(14)});
  EXPECT_EQ(steady_step(prediction), Seconds(7));
}

/// Mean time of the last steps of several, simulated without a pause between them.
Seconds repeated(SimulationInput input, int steps) {
  const int microbatches = input.plan.plan().microbatches;
  for (std::vector<Action>& list : input.lists) {
    const std::vector<Action> one = list;
    for (int step = 1; step < steps; ++step) {
      for (Action action : one) {
        if (action.microbatch >= 0) action.microbatch += step * microbatches;
        list.push_back(action);
      }
    }
  }
  input.steps = steps;
  const Timeline timeline = std::get<Timeline>(simulate(input));
  const int from = steps / 2;
  return (timeline.steps.back().end - timeline.steps[to_index(from)].end) / (steps - 1 - from);
}

TEST(SteadyStep, IsThatOfManyStepsWithoutAPauseBetweenThem) {
  const unsigned seed = 34;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> time(0.1, 5);
  int shorter = 0;
  int equal = 0;
  for (int i = 0; i < 300; ++i) {
    const char* const schedules[] = {"gpipe", "1f1b", "zb-h1"};
    const std::size_t stages = 2 + random() % 3;
    std::vector<double> forward(stages);
    std::vector<double> backward(stages);
    for (double& f : forward) f = time(random);
    for (double& b : backward) b = time(random);
    Graph graph = chain_graph(forward, backward, Bytes(4), Bytes(8));
    for (Layer& layer : graph.layers) layer.update = Timing{Seconds(time(random)), {}, 7};
    const Topology topology = flat_topology(to_int(stages), 10, 0.1);
    const BoundPlan plan(one_layer_a_stage(graph, topology, std::vector<int>(stages, 1), schedules[random() % 3],
                                           static_cast<int>(2 + random() % 6)));
    const auto alone = std::get<Prediction>(predict(graph, topology, plan));
    const Seconds steady = steady_step(alone);
    const Seconds measured = repeated(simulation_input(graph, topology, plan), 12);
    EXPECT_LE(measured.value, steady.value * (1 + 1e-9)) << "seed " << seed << " case " << i;
    if (steady < alone.iteration * 0.999) ++shorter;
    if (std::abs(measured / steady - 1) < 1e-9) ++equal;
  }
  EXPECT_GT(shorter, 50);
  EXPECT_GT(equal, 200);
}

}  // namespace
}  // namespace stagecraft
