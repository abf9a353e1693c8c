#include "costmodel/prediction/estimate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>

#include "costmodel/accuracy/intervals.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/device_match.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using stagecraft::testing::chain_graph;
using stagecraft::testing::flat_topology;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// At the declared 0.85 and 0.8: `flops` operations and `bytes` bytes a second.
Machine machine(double flops, double bytes) {
  return {{"NVIDIA X1", DeviceKind::Gpu, 0}, "float32", FlopsPerSecond(flops / 0.85), false,
          BytesPerSecond(bytes / 0.8),       0_s};
}

/// 200 operations and 100 bytes forward in 6 s, as many backward in 9 s; an update of 5 x 4 bytes in 1 s.
Graph measured_graph() {
  Graph graph = chain_graph({6}, {9}, 8_B, 4_B);
  Layer& layer = graph.layers.front();
  layer.forward_work = layer.backward_work = Work{Flops(200), 100_B, 2};
  layer.update = Timing{1_s, {}, 1};
  graph.optimizer_state_values = 1;
  graph.device = {"NVIDIA X1", DeviceKind::Gpu, 0};
  return graph;
}

// 2 s of arithmetic and 1 s of traffic: one operator overlaps them, several do not. Each start takes 0.25 s.
TEST(RooflineTime, AddsTheOperatorsOfALayer) {
  Machine m = machine(100, 100);
  EXPECT_DOUBLE_EQ(roofline_time({Flops(200), 100_B, 1}, m).value, 2);
  EXPECT_DOUBLE_EQ(roofline_time({Flops(200), 100_B, 2}, m).value, 3);
  m.time_per_operator = 0.25_s;
  EXPECT_DOUBLE_EQ(roofline_time({Flops(200), 100_B, 4}, m).value, 4);
  EXPECT_EQ(roofline_time({}, m), 0_s);
}

// Of tensor cores 0.45 count instead of 0.85: 2 s of arithmetic become 2 * 0.85 / 0.45.
TEST(RooflineTime, ExpectsLessOfTensorCores) {
  Machine m = machine(100, 100);
  m.tensor_cores = true;
  EXPECT_DOUBLE_EQ(roofline_time({Flops(200), 0_B, 1}, m).value, 2 * 0.85 / 0.45);
}

// On the machine of the profile a layer takes 2 + 1 = 3 s, on the other 0.5 + 0.5 = 1 s. Measured 6 and 9: 2 and 3 s.
// Compute is w = 2/3 of the roofline, r_c = 1/4, r_m = 1/2: log 2 * 2/9 * 1/4 / (1/6 + 1/6) = log 2 / 6.
// The update moves 5 * 4 = 20 bytes: 0.2 s and 0.1 s. Measured 1 s: 0.5 s.
TEST(Estimated, KeepsTheEfficiencyOfEachLayer) {
  const RooflineReference reference{measured_graph(), machine(100, 100)};
  const Graph out = estimated(reference.graph, machine(400, 200), reference);
  const Layer& layer = out.layers.front();
  EXPECT_DOUBLE_EQ(layer.forward.median.value, 2);
  EXPECT_DOUBLE_EQ(layer.backward.median.value, 3);
  EXPECT_DOUBLE_EQ(layer.update->median.value, 0.5);
  EXPECT_DOUBLE_EQ(*layer.forward.log_spread, std::hypot(0.15, std::log(2) / 6));
  EXPECT_DOUBLE_EQ(*layer.update->log_spread, 0.15);
  EXPECT_EQ(layer.forward.count, 0);
  EXPECT_EQ(layer.outputs, reference.graph.layers.front().outputs);
}

// The layers take 16 s together, the whole iteration 32: each counts twice.
TEST(Estimated, CountsTheWholeIteration) {
  RooflineReference reference{measured_graph(), machine(100, 100)};
  reference.graph.iteration = Timing{32_s, {}, 1};
  const Graph out = estimated(reference.graph, machine(400, 200), reference);
  EXPECT_DOUBLE_EQ(out.layers.front().forward.median.value, 4);
  EXPECT_EQ(out.iteration, std::nullopt);
}

TEST(Estimated, GivesTheMeasuredTimesBackForTheSameMachine) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> time(1e-4, 1e-1);
  std::uniform_int_distribution<std::int64_t> count(1, 1'000'000);
  Graph graph = chain_graph(std::vector<double>(50, 0), std::vector<double>(50, 0));
  for (Layer& layer : graph.layers) {
    layer.forward = {Seconds(time(random)), {}, 1};
    layer.backward = {Seconds(time(random)), {}, 1};
    layer.forward_work = Work{Flops(static_cast<double>(count(random))), Bytes(count(random)), count(random) % 3};
  }
  const RooflineReference reference{graph, machine(1e6, 1e6)};
  const Graph out = estimated(graph, reference.machine, reference);
  for (std::size_t i = 0; i < graph.layers.size(); ++i) {
    EXPECT_NEAR(out.layers[i].forward.median / graph.layers[i].forward.median, 1, 1e-12);
    EXPECT_NEAR(out.layers[i].backward.median / graph.layers[i].backward.median, 1, 1e-12);
    EXPECT_DOUBLE_EQ(*out.layers[i].forward.log_spread, 0.15);
  }
}

// Without a reference the declared efficiencies alone: 3 s, and 0.5 on the scale of the logarithm.
TEST(Estimated, NeedsNoMeasurement) {
  Graph graph = measured_graph();
  graph.layers.front().forward = graph.layers.front().backward = {};
  const Graph out = estimated(graph, machine(100, 100), {});
  EXPECT_DOUBLE_EQ(out.layers.front().forward.median.value, 3);
  EXPECT_DOUBLE_EQ(*out.layers.front().forward.log_spread, 0.5);
  EXPECT_EQ(out.layers.front().update, std::nullopt);
}

// Factors of the reference's layers of kind Linear: 6/3, 3/3, 12/3, so the median 2. Another kind gets the median of
// all, with one of kind Other: (2 + 3) / 2 of 1, 2, 3, 4.
TEST(Estimated, TakesTheMedianEfficiencyOfAKind) {
  Graph reference = chain_graph({6, 3, 12, 9}, {0, 0, 0, 0});
  for (Layer& layer : reference.layers) layer.forward_work = layer.backward_work = Work{Flops(200), 100_B, 2};
  reference.layers.back().kind = "Other";
  Graph graph = chain_graph({0, 0}, {0, 0});
  for (Layer& layer : graph.layers) {
    layer.id += " of another model";
    layer.forward_work = layer.backward_work = Work{Flops(200), 100_B, 2};
  }
  graph.layers.back().kind = "Third";
  const Graph out = estimated(graph, machine(100, 100), RooflineReference{reference, machine(100, 100)});
  EXPECT_DOUBLE_EQ(out.layers[0].forward.median.value, 6);
  EXPECT_DOUBLE_EQ(out.layers[1].forward.median.value, 7.5);
  EXPECT_DOUBLE_EQ(*out.layers[0].forward.log_spread, std::hypot(0.15, 0.3));
  // No layer of the reference took time backward: nothing was learned.
  EXPECT_DOUBLE_EQ(out.layers[0].backward.median.value, 3);
  EXPECT_DOUBLE_EQ(*out.layers[0].backward.log_spread, 0.5);
}

// Four times the arithmetic, the same memory: between 1/4 and 1 of 6 s, the geometric mean is 3 s; half of log 4.
TEST(Estimated, ScalesLayersWithoutCountedWork) {
  Graph graph = measured_graph();
  graph.layers.front().forward_work.reset();
  const Graph out = estimated(graph, machine(400, 100), RooflineReference{graph, machine(100, 100)});
  EXPECT_DOUBLE_EQ(out.layers.front().forward.median.value, 3);
  EXPECT_DOUBLE_EQ(*out.layers.front().forward.log_spread, std::hypot(0.15, std::log(4) / 2));
}

TEST(Estimated, IsWiderBetweenUnlikeMachines) {
  const Graph graph = measured_graph();
  Machine target = machine(100, 100);
  target.device.kind = DeviceKind::Processor;
  const Graph out = estimated(graph, target, RooflineReference{graph, machine(100, 100)});
  EXPECT_DOUBLE_EQ(*out.layers.front().forward.log_spread, 0.3);
}

TEST(Estimated, RefusesALayerOfWhichNothingIsKnown) {
  Graph graph = measured_graph();
  graph.layers.front().forward_work.reset();
  EXPECT_THAT([&] { (void)estimated(graph, machine(1, 1), {}); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("layer \"l0\" has no counted operations")));
}

TEST(Estimated, SaysSoAndForgetsTheMeasurement) {
  Graph graph = measured_graph();
  graph.slowdown = {1, 2};
  graph.quality = ProfileQuality{};
  graph.quality->trusted = false;
  graph.quality->reasons = {"a record was dropped"};
  graph.provenance = {"stagecraft-profile 1", "NVIDIA X1", {}, "2026-01-02T03:04:05Z", {}};
  graph.layers.front().backward_parts = BackwardParts{{6_s, {}, 1}, {3_s, {}, 1}, true};
  Machine target = machine_of(find_card("H200"), "float32", true);
  const Graph out = estimated(graph, target, RooflineReference{graph, machine(100, 100)});
  EXPECT_EQ(out.device, target.device);
  EXPECT_EQ(out.allow_tf32, true);
  EXPECT_TRUE(out.slowdown.empty());
  EXPECT_EQ(out.quality, std::nullopt);
  EXPECT_EQ(out.estimate,
            (Estimate{"NVIDIA X1", "float32", "tf32", FlopsPerSecond(494.5e12), BytesPerSecond(4800e9), 5_us}));
  EXPECT_EQ(out.provenance.notes.at("estimated"), "estimated from NVIDIA X1 by roofline");
  EXPECT_THAT(out.provenance.notes.at("not trusted"), HasSubstr("a record was dropped"));
  EXPECT_EQ(out.provenance.date, "2026-01-02T03:04:05Z");
  EXPECT_EQ(estimate_text(out),
            "the layers' times are estimates for NVIDIA H200 (tf32), by a roofline from times measured on NVIDIA X1 "
            "(float32)");
  const BackwardParts& parts = *out.layers.front().backward_parts;
  EXPECT_NEAR(parts.inputs.median / parts.weights.median, 2, 1e-12);
  EXPECT_NEAR((parts.inputs.median + parts.weights.median) / out.layers.front().backward.median, 1, 1e-12);
}

// A plan for the target takes the estimate without being told to, and its figures are marked and wide.
TEST(Estimated, IsAcceptedOnItsOwnDevice) {
  const Graph measured = measured_graph();
  Graph out =
      estimated(measured, machine_of(find_card("H200"), "", false), RooflineReference{measured, machine(100, 100)});
  Topology topology = flat_topology(1);
  topology.device.name = "NVIDIA H200";
  EXPECT_EQ(accepted_differences(out, topology, false), estimate_text(out));
  topology.device.name = "NVIDIA L4";
  EXPECT_THAT([&] { (void)accepted_differences(out, topology, false); },
              ThrowsMessage<std::invalid_argument>(
                  HasSubstr("the graph's times are estimates for \"NVIDIA H200\", the topology's devices are")));
  const BoundPlan plan(make_plan(out, topology, {{0}, {1}}, {.microbatches = 1}));
  const Doubt doubt = compute_doubt(out, plan);
  EXPECT_EQ(doubt.source, FigureSource::Extrapolated);
  EXPECT_GE(doubt.log_spread, 0.15);
  const auto result = predict_with_intervals(out, topology, plan, {});
  const auto& ranges = *std::get<Prediction>(result).stages.front().ranges;
  EXPECT_EQ(ranges.compute.source, FigureSource::Extrapolated);
  EXPECT_EQ(ranges.memory.source, FigureSource::Extrapolated);
}

// 200 operations in 6 s and 9 s: at most 33.3 a second.
TEST(ImpossibleRate, NamesTheFastestLayer) {
  Machine slow = machine(100, 100);
  EXPECT_EQ(impossible_rate({measured_graph(), slow}), "");
  slow.peak = FlopsPerSecond(30);
  EXPECT_THAT(impossible_rate({measured_graph(), slow}),
              HasSubstr("layer \"l0\" reached 3.33e-11 TFLOP/s in the forward"));
}

/// Two layers, measured with `samples` samples: 1 s and 0.5 s a sample forward, twice that backward, each and 2 s more.
Graph measured(std::int64_t samples) {
  const auto n = static_cast<double>(samples);
  Graph out = testing::chain_graph({2 + n, 2 + 0.5 * n}, {2 + 2 * n, 2 + n}, Bytes(12 * samples), Bytes(100));
  out.microbatch_samples = samples;
  for (Layer& layer : out.layers) {
    layer.forward.spread = Seconds(0.1 * n);
    layer.forward.count = samples;
    layer.outputs[0].shape = {samples, 3};
    layer.saved_bytes = Bytes(20 * samples + 8);
    layer.update = Timing{Seconds(0.25 * n), {}, 0, {}};
    layer.forward_work = Work{Flops(6 * n), Bytes(40 * samples), samples};
  }
  out.iteration = Timing{Seconds(10 + 5 * n), {}, 0, {}};
  out.provenance.tool = "test";
  return out;
}

TEST(MicrobatchSize, IsLinearBetweenTwoProfiles) {
  const ResizedGraph out = graph_of_samples({measured(16), measured(4)}, 8);
  EXPECT_FALSE(out.extrapolated);
  EXPECT_EQ(out.origin, "interpolated between profiles with microbatches of 4 and 16 samples");
  const Graph& graph = out.graph;
  EXPECT_EQ(graph.provenance.notes.at("microbatch"), out.origin);
  EXPECT_EQ(graph.microbatch_samples, 8);
  const Layer& layer = graph.layers[1];
  EXPECT_DOUBLE_EQ(layer.forward.median.value, 6);
  EXPECT_DOUBLE_EQ(layer.backward.median.value, 10);
  EXPECT_DOUBLE_EQ(layer.forward.spread->value, 0.8);
  EXPECT_EQ(layer.forward.count, 4) << "no more than the smaller count";
  EXPECT_EQ(layer.outputs[0].bytes, Bytes(96));
  EXPECT_EQ(layer.outputs[0].shape, (std::vector<std::int64_t>{8, 3}));
  EXPECT_EQ(layer.saved_bytes, Bytes(168));
  EXPECT_EQ(layer.parameter_bytes, Bytes(100));
  EXPECT_DOUBLE_EQ(layer.forward_work->flops.value, 48);
  EXPECT_EQ(layer.forward_work->moved, Bytes(320));
  EXPECT_EQ(layer.forward_work->operators, 4) << "of the nearest, 4 and not 16";
  EXPECT_DOUBLE_EQ(layer.update->median.value, 1);
  EXPECT_DOUBLE_EQ(graph.iteration->median.value, 50);
  validate(graph);
}

TEST(MicrobatchSize, TakesTheTwoNearestOfSeveral) {
  Graph odd = measured(16);
  for (Layer& layer : odd.layers) layer.forward.median = Seconds(100);
  // From 8 on: (2 + 8) and 100 s; half of the way.
  EXPECT_DOUBLE_EQ(graph_of_samples({measured(4), odd, measured(8)}, 12).graph.layers[0].forward.median.value, 55);
  EXPECT_DOUBLE_EQ(graph_of_samples({measured(4), odd, measured(8)}, 6).graph.layers[0].forward.median.value, 8);
}

TEST(MicrobatchSize, ContinuesTheLineAndSaysSo) {
  for (const std::int64_t samples : {2, 32}) {
    const ResizedGraph out = graph_of_samples({measured(4), measured(16)}, samples);
    EXPECT_TRUE(out.extrapolated);
    EXPECT_EQ(out.origin, "extrapolated from profiles with microbatches of 4 and 16 samples");
    EXPECT_DOUBLE_EQ(out.graph.layers[0].forward.median.value, 2 + static_cast<double>(samples));
    EXPECT_FALSE(out.graph.layers[0].forward.spread);
    EXPECT_EQ(out.graph.layers[0].forward.count, 0);
    EXPECT_EQ(out.graph.layers[0].update->median, Seconds(samples == 2 ? 1 : 4));
  }
  Graph steep = measured(16);
  steep.layers[0].forward.median = Seconds(100);  // 6 s with 4 samples: -9.7 s with 2
  EXPECT_EQ(graph_of_samples({measured(4), steep}, 2).graph.layers[0].forward.median, Seconds(0));
}

TEST(MicrobatchSize, ReturnsAProfileOfThatSizeAsItIs) {
  EXPECT_EQ(graph_of_samples({measured(4), measured(16)}, 16).graph, measured(16));
  EXPECT_EQ(graph_of_samples({measured(4)}, 4).graph, measured(4));
}

TEST(MicrobatchSize, RefusesProfilesThatDoNotBelongTogether) {
  const auto refused = [](std::vector<Graph> profiles, const std::string& why) {
    EXPECT_THAT([&] { (void)graph_of_samples(std::move(profiles), 8); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(why)));
  };
  refused({measured(4)}, "there is only the profile with microbatches of 4; times of 8 samples need a profile with");
  refused({measured(4), measured(4)}, "two profiles with microbatches of 4 samples");
  Graph other = measured(16);
  other.microbatch_samples.reset();
  refused({measured(4), other}, "does not give the samples");
  other = measured(16);
  other.name = "resnet";
  refused({measured(4), other}, "the profile with microbatches of 16 has a different model from the profile with");
  other = measured(16);
  other.device.name = "H200";
  refused({measured(4), other}, "a different device");
  other = measured(16);
  other.layers[1].id = "conv";
  refused({measured(4), other}, "has layer \"conv\" where the profile with microbatches of 4 has \"l1\"");
  other = measured(16);
  other.layers[1].parameter_bytes = Bytes(4);
  refused({measured(4), other}, "parameters in layer \"l1\"");
  other = measured(16);
  other.layers[0].outputs[0].shape[1] = 4;
  refused({measured(4), other}, "dimension 1 of an output of layer \"l0\" would be 3.33");
}

}  // namespace

}  // namespace stagecraft
