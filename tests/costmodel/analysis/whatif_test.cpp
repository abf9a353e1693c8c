#include "costmodel/analysis/whatif.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/format/results/analysis_json.h"
#include "costmodel/prediction/device_match.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;
using ::testing::HasSubstr;
using testing::one_layer_a_stage;
using ::testing::ThrowsMessage;

/// Two stages of F 1 s and B 2 s; a message of 500 B takes 0.1 s and 0.5 s.
Scenario scenario() {
  Scenario out;
  out.graph = chain_graph({1, 1}, {2, 2}, Bytes(500));
  out.topology = flat_topology(2, 1000, 0.1);
  out.plan = one_layer_a_stage(out.graph, out.topology, {1, 1}, "1f1b", 2);
  return out;
}

auto refuses(const std::string& message) { return ::testing::ThrowsMessage<std::invalid_argument>(HasSubstr(message)); }

TEST(WhatIf, ChangesLinks) {
  const Link twice = with_change(scenario(), "link.node.bandwidth=2x").topology.levels[0].link;
  EXPECT_EQ(twice.bandwidth, BytesPerSecond(2000));
  EXPECT_EQ(twice.latency, Seconds(0.1));
  EXPECT_EQ(with_change(scenario(), "link.node.bandwidth=4kB/s").topology.levels[0].link.bandwidth,
            BytesPerSecond(4000));
  EXPECT_EQ(with_change(scenario(), "link.node.latency=50ms").topology.levels[0].link.latency, Seconds(0.05));
}

// A message of 0.6 s, 0.1 s of it latency: twice the bandwidth leaves 0.1 + 0.25 s. An all-reduce over 3 ranks has 4
// latencies: of 1 s, 0.4 + 0.3 s are left.
TEST(WhatIf, ScalesTheMeasuredTimesBeyondTheLatency) {
  Scenario measured = scenario();
  Link& link = measured.topology.levels[0].link;
  link.send_receive.points = {{Bytes(1), Seconds(0.05)}, {Bytes(500), Seconds(0.6)}};
  link.all_reduce[3].points = {{Bytes(500), Seconds(1)}};
  const Link faster = with_change(measured, "link.node.bandwidth=2x").topology.levels[0].link;
  EXPECT_EQ(faster.send_receive.points[0].time, Seconds(0.05));
  EXPECT_NEAR(faster.send_receive.points[1].time.value, 0.35, 1e-12);
  EXPECT_NEAR(faster.all_reduce.at(3).points[0].time.value, 0.7, 1e-12);
  const Link nearer = with_change(measured, "link.node.latency=0.5x").topology.levels[0].link;
  EXPECT_NEAR(nearer.send_receive.points[1].time.value, 0.55, 1e-12);
  EXPECT_NEAR(nearer.all_reduce.at(3).points[0].time.value, 0.8, 1e-12);
}

// The measured iteration is 9 s and the layers add up to 6: they count 1.5 times. Stage 1 at half its time must leave
// stage 0 as it was.
TEST(WhatIf, ChangesOneStageAlone) {
  Scenario measured = scenario();
  measured.graph.iteration = Timing{Seconds(9), {}, 1};
  const Graph half = with_change(measured, "stage.1.compute=0.5x").graph;
  EXPECT_EQ(half.iteration, std::nullopt);
  EXPECT_EQ(half.layers[0].forward.median, Seconds(1.5));
  EXPECT_EQ(half.layers[1].forward.median, Seconds(0.75));
  EXPECT_EQ(half.layers[1].backward.median, Seconds(1.5));
  const Graph absolute = with_change(measured, "stage.1.compute=900ms").graph;  // of 4.5 s
  EXPECT_NEAR(absolute.layers[1].backward.median.value, 0.6, 1e-12);
  EXPECT_NEAR(absolute.layers[0].backward.median.value, 3, 1e-12);
}

/// Stage 1 on a device of type "slow", where its layer takes 3 + 6 s.
Scenario mixed_devices() {
  Scenario out = scenario();
  out.topology.others = {{1, 1, {.name = "slow", .memory = std::nullopt}}};
  out.graph = with_profile(out.graph, "slow", chain_graph({3, 3}, {6, 6}, Bytes(500)));
  return out;
}

TEST(WhatIf, ChangesTheTimesOnEveryTypeOfDevice) {
  // One microbatch over free links: 1 + 3 + 6 + 2 s, and half of that.
  Scenario one = mixed_devices();
  one.plan.microbatches = 1;
  one.topology.levels[0].link = {BytesPerSecond(1e12), Seconds(0), {}, {}};
  const auto step = [](const Scenario& of) {
    return std::get<Prediction>(predict(of.graph, of.topology, BoundPlan(of.plan))).iteration.value;
  };
  EXPECT_NEAR(step(one), 12, 1e-6);
  EXPECT_NEAR(step(with_change(one, "compute=0.5x")), 6, 1e-6);
  EXPECT_NEAR(step(with_change(one, "stage.1.compute=0.5x")), 1 + 1.5 + 3 + 2, 1e-6);
  // Stage 1 takes 9 s where it is, not the 3 s of its layer on the other type.
  EXPECT_NEAR(step(with_change(one, "stage.1.compute=4500ms")), 1 + 1.5 + 3 + 2, 1e-6);
}

// The layers of the profile add up to 18 s, its iteration is 36 s: they count twice, those of the graph once.
TEST(WhatIf, SpreadsTheIterationOfEachTypeOfDevice) {
  Scenario measured = mixed_devices();
  measured.graph.profiles[0].iteration = Timing{Seconds(36), {}, 1};
  const Graph half = with_change(measured, "stage.1.compute=0.5x").graph;
  EXPECT_EQ(half.profiles[0].iteration, std::nullopt);
  EXPECT_EQ(half.profiles[0].layers[0].forward.median, Seconds(6));
  EXPECT_EQ(half.profiles[0].layers[1].forward.median, Seconds(3));
  EXPECT_EQ(half.layers[0].forward.median, Seconds(1));
  EXPECT_EQ(half.layers[1].forward.median, Seconds(0.5));
}

// Handling a message takes a sender 0.25 s and 0.5 s per byte beyond the first; a receiver 1 s per byte, with one byte
// measured. The latency scales the times of the first points, the bandwidth the rest.
TEST(WhatIf, ScalesTheProcessorTimeOfMessages) {
  Scenario shared = scenario();
  Link& link = shared.topology.levels[0].link;
  link.processing = MessageProcessing{
      MessageThread::Separate, {{{Bytes(1), Seconds(0.25)}, {Bytes(3), Seconds(1.25)}}}, {{{Bytes(1), Seconds(1)}}}};
  const auto changed = [&](const std::string& change) {
    return *with_change(shared, change).topology.levels[0].link.processing;
  };
  const MessageProcessing faster = changed("link.node.bandwidth=2x");
  EXPECT_EQ(faster.sender.points, (std::vector<CurvePoint>{{Bytes(1), Seconds(0.25)}, {Bytes(3), Seconds(0.75)}}));
  EXPECT_EQ(faster.receiver, link.processing->receiver);
  const MessageProcessing nearer = changed("link.node.latency=0.5x");
  EXPECT_EQ(nearer.sender.points, (std::vector<CurvePoint>{{Bytes(1), Seconds(0.125)}, {Bytes(3), Seconds(1.125)}}));
  EXPECT_EQ(nearer.receiver.points, (std::vector<CurvePoint>{{Bytes(1), Seconds(0.5)}}));
  link.processing->sender.points.clear();
  EXPECT_TRUE(changed("link.node.latency=0.5x").sender.points.empty());
}

// Both ranks compute on one processor, of which each end of a message takes 4 s, next to nothing of that fixed; nothing
// else goes on then. F0 1 s, a message 8 s, F1 and B1 3 s, a message 8 s, B0 2 s; at twice the bandwidth a message
// takes 4 s. Either way its receiver wakes up for it.
TEST(WhatIf, MakesMessagesOfASharedHostFaster) {
  Scenario shared = scenario();
  shared.plan.microbatches = 1;
  shared.topology.device.kind = DeviceKind::Processor;
  shared.topology.device.host_processors = 1;
  const Curve handling{{{Bytes(1), Seconds(1e-9)}, {Bytes(500), Seconds(4)}}};
  Link& link = shared.topology.levels[0].link;
  link = {BytesPerSecond(1e12), Seconds(0), {}, {}};
  link.processing = MessageProcessing{MessageThread::Separate, handling, handling};
  const auto result = std::get<WhatIf>(what_if(shared, {"link.node.bandwidth=2x"}));
  const double waking = 2 * kWakeOnCrowdedHost.value;
  EXPECT_NEAR(result.before.iteration.value, 22 + waking, 1e-6);
  EXPECT_NEAR(result.after.iteration.value, 14 + waking, 1e-6);
}

TEST(WhatIf, ChangesThePlanAndTheDevices) {
  EXPECT_EQ(with_change(scenario(), "schedule=gpipe").plan.schedule, "gpipe");
  EXPECT_EQ(with_change(scenario(), "microbatches=16").plan.microbatches, 16);
  EXPECT_TRUE(with_change(scenario(), "recompute=on").plan.stages[1].recompute);
  EXPECT_FALSE(with_change(scenario(), "stage.1.recompute=on").plan.stages[0].recompute);
  EXPECT_EQ(with_change(scenario(), "gradient_bucket=1kB").plan.gradient_bucket_bytes, Bytes(1000));
  EXPECT_EQ(with_change(scenario(), "memory=1GiB").topology.device.memory, Bytes(1 << 30));
}

// Copies share nothing but gradients, of which there are none here, so without latency a step of twice the microbatches
// takes as long.
TEST(WhatIf, ChangesTheNumberOfGroups) {
  const Scenario twice = with_change(scenario(), "node.count=4");
  EXPECT_EQ(twice.topology.levels[0].count, 4);
  EXPECT_EQ(twice.plan.stages[1].devices, (std::vector<int>{1, 3}));
  EXPECT_EQ(twice.plan.microbatches, 4);
  EXPECT_EQ(with_change(scenario(), "node.count=2x").plan, twice.plan);
  Scenario alone = scenario();
  alone.topology.levels[0].link.latency = Seconds(0);
  const auto result = std::get<WhatIf>(what_if(alone, {"node.count=4"}));
  EXPECT_NEAR(result.after.iteration.value, result.before.iteration.value, 1e-12);
  EXPECT_NEAR(result.ratio.ratio, 0.5, 1e-12);
}

TEST(WhatIf, FindsLevelsWhoseNamesHaveDots) {
  Scenario dotted = scenario();
  dotted.topology.levels[0].name = "rack.a";
  EXPECT_EQ(with_change(dotted, "rack.a.count=6").topology.levels[0].count, 6);
  EXPECT_EQ(with_change(dotted, "link.rack.a.bandwidth=2x").topology.levels[0].link.bandwidth, BytesPerSecond(2000));
}

/// Layers of one operator that only moves data: as much as an H100 moves in 1 s at 0.8 of its 3350 GB/s, apart from
/// the 5 us to start it. Measured forward: 2 s, twice that.
Scenario on_h100() {
  Scenario out = scenario();
  for (Layer& layer : out.graph.layers) {
    layer.forward_work = layer.backward_work = Work{Flops(0), Bytes(2'680'000'000'000), 1};
    layer.forward.median = layer.backward.median = Seconds(2);
  }
  out.graph.dtype = "bfloat16";
  out.graph.device = MeasuredDevice{"NVIDIA H100 80GB HBM3", DeviceKind::Gpu};
  out.topology.device = {"NVIDIA H100 80GB HBM3", Bytes(80'000'000'000)};
  return out;
}

// An H200 moves the same at 4800 GB/s: 3350 / 4800 s and 5 us. The factor of 2 / 1.000005 is the layers' own.
TEST(WhatIf, ChangesTheCard) {
  const Scenario after = with_change(on_h100(), "device=h200");
  EXPECT_EQ(after.topology.device.name, "NVIDIA H200");
  EXPECT_EQ(after.topology.device.memory, Bytes(141'000'000'000));
  EXPECT_EQ(after.topology.levels, on_h100().topology.levels);
  EXPECT_EQ(after.graph.device.name, "NVIDIA H200");
  const Timing& forward = after.graph.layers[0].forward;
  EXPECT_NEAR(forward.median.value, 2 / 1.000005 * (3350.0 / 4800 + 5e-6), 1e-9);
  EXPECT_NEAR(*forward.log_spread, 0.15, 1e-12);
  const auto result = std::get<WhatIf>(what_if(on_h100(), {"device=H200"}));
  EXPECT_LT(result.after.iteration, result.before.iteration);
  EXPECT_EQ(result.before.other_device, "");
  EXPECT_THAT(whatif_text(result, 100), HasSubstr("after the change: " + estimate_text(after.graph)));
}

// Only the times after a change of the card are estimates; other changes leave both sides with the graph's.
TEST(WhatIf, SaysWhoseTimesEachSideHas) {
  const auto json_of = [](const std::string& change) {
    const auto result = std::get<WhatIf>(what_if(on_h100(), {change}, {}, {}, "measured on an A100"));
    return nlohmann::json::parse(format::whatif_json(result));
  };
  const auto card = json_of("device=H200");
  EXPECT_EQ(card["before"]["other_device"], "measured on an A100");
  EXPECT_EQ(card["after"]["other_device"], estimate_text(with_change(on_h100(), "device=H200").graph));
  const auto compute = json_of("compute=2x");
  EXPECT_EQ(compute["before"]["other_device"], "measured on an A100");
  EXPECT_EQ(compute["after"]["other_device"], "measured on an A100");
  const auto at_home = nlohmann::json::parse(format::whatif_json(std::get<WhatIf>(what_if(on_h100(), {"compute=2x"}))));
  EXPECT_FALSE(at_home["before"].contains("other_device") || at_home["after"].contains("other_device"));
}

// Back on an H100: the layers' own times, with the doubts of both steps, sqrt(0.15^2 + 0.15^2).
TEST(WhatIf, ChangesTheCardOfAnEstimate) {
  const Scenario back = with_change(with_change(on_h100(), "device=H200"), "device=H100-SXM-80GB");
  EXPECT_NEAR(back.graph.layers[0].forward.median.value, 2, 1e-9);
  EXPECT_NEAR(*back.graph.layers[0].backward.log_spread, 0.15 * std::sqrt(2), 1e-12);
}

TEST(WhatIf, RefusesACardWithoutMeasuresOfTheGraphs) {
  Scenario processor = on_h100();
  processor.graph.device.name = "AMD EPYC 9654";
  EXPECT_THAT([&] { (void)with_change(processor, "device=H200"); },
              refuses("device: the graph's times are those of \"AMD EPYC 9654\", whose peak rates are not in the table "
                      "of cards; stagecraft estimate"));
  EXPECT_THAT([] { (void)with_change(on_h100(), "device=H900"); }, refuses("unknown card \"H900\", known are V100"));
  Scenario mixed = on_h100();
  mixed.topology.others = {{1, 1, {.name = "slow", .memory = std::nullopt}}};
  EXPECT_THAT([&] { (void)with_change(mixed, "device=H200"); }, refuses("needs devices of one type"));
}

TEST(WhatIf, RefusesWhatItDoesNotKnow) {
  const auto change = [](const std::string& text) { return [text] { (void)with_change(scenario(), text); }; };
  EXPECT_THAT(change("speed=2x"), refuses("unknown setting \"speed\", known are compute, stage.S.compute"));
  EXPECT_THAT(change("schedule"), refuses("found \"schedule\", expected NAME=VALUE"));
  EXPECT_THAT(change("schedule=magic"), refuses("known are"));
  EXPECT_THAT(change("link.rack.bandwidth=2x"), refuses("unknown level \"rack\", known are node"));
  EXPECT_THAT(change("stage.2.compute=2x"), refuses("there is no stage 2, the plan has 0..1"));
  EXPECT_THAT(change("stage.0.compute=fast"), refuses("found \"fast\", expected a factor such as 0.5x or a time"));
  EXPECT_THAT(change("compute=0x"), refuses("found \"0x\", expected a factor above 0"));
  EXPECT_THAT(change("link.node.bandwidth=-1"), refuses("expected a factor such as 2x or a bandwidth"));
  EXPECT_THAT(change("link.node.bandwidth=2"), refuses("found \"2\", expected a factor such as 2x or a bandwidth"));
  EXPECT_THAT(change("link.node.bandwidth=2/s"), refuses("found \"2/s\", expected a factor such as 2x or a bandwidth"));
  EXPECT_THAT(change("memory=80"), refuses("found \"80\", expected a factor such as 2x or a size such as 80GiB"));
  EXPECT_THAT(change("microbatches=0"), refuses("expected an integer of 1 or more"));
  EXPECT_THAT(change("memory=2x"), refuses("the topology gives no device memory"));
  EXPECT_THAT(change("recompute=yes"), refuses("expected on or off"));
  EXPECT_THAT(change("nodes.count=4"), refuses("unknown level \"nodes\", did you mean node? known are node"));
  EXPECT_THAT(change("node.count=0"), refuses("node.count: found \"0\", expected an integer of 1 or more"));
  EXPECT_THAT(change("node.count=1.2x"), refuses("found \"1.2x\", expected an integer"));
  EXPECT_THAT(change("node.count=many"), refuses("found \"many\", expected an integer"));
  EXPECT_THAT(change("node.count=3"), refuses("expected a multiple or a divisor of 2"));
}

// 1f1b of two microbatches, message 0.6 s: rank 0: F0 0-1, F1 1-2; rank 1: F0 1.6-2.6, B0 2.6-4.6, F1 4.6-5.6, B1
// 5.6-7.6; the last gradient comes at 8.2, B1 of rank 0 ends at 10.2. At twice the bandwidth a message takes 0.35 s and
// the step 10.2 - 2 * 0.25 = 9.7 s.
TEST(WhatIf, ComparesBeforeAndAfter) {
  const auto result = std::get<WhatIf>(what_if(scenario(), {"link.node.bandwidth=2x"}));
  EXPECT_NEAR(result.before.iteration.value, 10.2, 1e-12);
  EXPECT_NEAR(result.after.iteration.value, 9.7, 1e-12);
  EXPECT_NEAR(result.ratio.ratio, 9.7 / 10.2, 1e-12);
  EXPECT_GT(result.ratio.first_faster, 0.5);
  EXPECT_THAT(whatif_text(result, 100), HasSubstr("with link.node.bandwidth=2x"));
  EXPECT_THAT(whatif_text(result, 100), HasSubstr("-4.9 %"));
}

// Two replicas, four microbatches each, no measured memory: ranks 0 and 1 hold the same, and rank 2 is a stage alone.
TEST(WhatIf, PrintsTheMemoryOfAStageOnce) {
  Scenario replicas = scenario();
  replicas.topology = flat_topology(3, 1000, 0.1);
  replicas.plan = one_layer_a_stage(replicas.graph, replicas.topology, {2, 1}, "1f1b", 8);
  auto result = std::get<WhatIf>(what_if(replicas, {"compute=1x"}));
  ASSERT_EQ(result.before.timeline.memory.size(), 3U);
  result.before.timeline.memory[1].total = Bytes(3 << 20);
  result.after.timeline.memory[0].total = Bytes(6 << 20);
  const std::string text = whatif_text(result, 120);
  const std::size_t row = text.find("stage 0, ranks 0-1 peak memory");
  ASSERT_NE(row, std::string::npos) << text;
  EXPECT_THAT(text.substr(row, text.find('\n', row) - row),
              ::testing::AllOf(HasSubstr("3.00 MiB"), HasSubstr("6.00 MiB"), HasSubstr("+100.0 %")));
  EXPECT_THAT(text, HasSubstr("stage 1, rank 2 peak memory"));
  EXPECT_THAT(text, ::testing::Not(HasSubstr("stage 0, rank 0")));
}

// Ranks 0 and 1 run the stages before, 0 and 1 the first stage after, 2 and 3 the second.
TEST(WhatIf, PrintsTheMemoryOfTheRanksThatAStageHasAfterwards) {
  auto result = std::get<WhatIf>(what_if(scenario(), {"node.count=4"}));
  result.before.timeline.memory[1].total = Bytes(3 << 20);
  result.after.timeline.memory[1].total = Bytes(9 << 20);
  result.after.timeline.memory[2].total = result.after.timeline.memory[3].total = Bytes(3 << 20);
  const std::string text = whatif_text(result, 120);
  const std::size_t row = text.find("stage 1 peak memory");
  ASSERT_NE(row, std::string::npos) << text;
  EXPECT_THAT(text.substr(row, text.find('\n', row) - row),
              ::testing::AllOf(HasSubstr("3.00 MiB"), HasSubstr("+0.0 %"), ::testing::Not(HasSubstr("9.00 MiB"))));
}

// Two ranks with two chunks each: rank 0 has stages 0 and 2.
TEST(WhatIf, NamesAllStagesOfARank) {
  Scenario chunks;
  chunks.graph = chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}, Bytes(500));
  chunks.topology = flat_topology(2, 1000, 0.1);
  Partition partition{.stage_of_layer = {0, 1, 2, 3}, .replicas = {1, 1, 1, 1}};
  PlanSettings settings;
  settings.microbatches = 4;
  settings.schedule = "interleaved-1f1b";
  settings.chunks = 2;
  chunks.plan = make_plan(chunks.graph, chunks.topology, partition, settings);
  const auto result = std::get<WhatIf>(what_if(chunks, {"compute=1x"}));
  EXPECT_THAT(whatif_text(result, 120), HasSubstr("stages 0, 2, rank 0 peak memory"));
  EXPECT_THAT(whatif_text(result, 120), HasSubstr("stages 1, 3, rank 1 peak memory"));
}

// Every change that is a factor of 1 changes nothing.
TEST(WhatIf, LeavesThePredictionWithFactorsOfOne) {
  Scenario measured = scenario();
  measured.graph.iteration = Timing{Seconds(9), {}, 1};
  measured.topology.levels[0].link.send_receive.points = {{Bytes(1), Seconds(0.2)}, {Bytes(900), Seconds(0.7)}};
  for (const char* name : {"compute", "stage.0.compute", "link.node.bandwidth", "link.node.latency"}) {
    const auto result = std::get<WhatIf>(what_if(measured, {std::string(name) + "=1x"}));
    EXPECT_NEAR(result.before.iteration.value, result.after.iteration.value, 1e-9) << name;
  }
}

Scenario two_stages() {
  Scenario out;
  out.graph = chain_graph({1, 1}, {2, 2});
  out.topology = flat_topology(2);
  out.plan = one_layer_a_stage(out.graph, out.topology, {1, 1}, "1f1b", 4);
  return out;
}

TEST(Scaled, PutsEachCopyOnSeparateDevices) {
  const Scenario three = scaled(two_stages(), 3, ScaledWork::PerCopy);
  EXPECT_EQ(device_count(three.topology), 6);
  EXPECT_THAT(three.plan.stages[0].devices, ElementsAre(0, 2, 4));
  EXPECT_THAT(three.plan.stages[1].devices, ElementsAre(1, 3, 5));
  EXPECT_EQ(three.plan.microbatches, 12);
  EXPECT_EQ(scaled(two_stages(), 3, ScaledWork::Fixed).plan.microbatches, 4);
  EXPECT_NO_THROW(validate(BoundPlan(three.plan), three.graph, three.topology));
}

TEST(Scaled, RepeatsTheTypesOfDevices) {
  Scenario one = two_stages();
  one.topology.others = {{1, 1, {.name = "slow", .memory = std::nullopt}}};
  const Topology topology = scaled(one, 2, ScaledWork::PerCopy).topology;
  ASSERT_EQ(topology.others.size(), 2U);
  EXPECT_EQ(topology.others[1].first, 3);
}

TEST(Scaled, RefusesWhatCannotBeCopied) {
  Scenario one = two_stages();
  EXPECT_THAT([&] { (void)scaled(one, 0, ScaledWork::PerCopy); },
              ThrowsMessage<std::invalid_argument>("0 copies: there must be at least 1"));
  one.topology.device.host_processors = 2;
  EXPECT_THAT([&] { (void)scaled(one, 2, ScaledWork::PerCopy); },
              ThrowsMessage<std::invalid_argument>(::testing::HasSubstr("add a level for the link that joins hosts")));
  one = two_stages();
  one.plan.schedule = "listed";
  one.plan.listed.resize(2);
  EXPECT_THAT([&] { (void)scaled(one, 2, ScaledWork::PerCopy); },
              ThrowsMessage<std::invalid_argument>("2 copies: the action lists of schedule \"listed\" are of fixed "
                                                   "replicas; a plan with another schedule can have any"));
}

/// Two nodes of two devices; a stage on each node.
Scenario two_nodes() {
  Scenario out = two_stages();
  out.topology.levels = {Level{"device", 2, out.topology.levels[0].link},
                         Level{"node", 2, out.topology.levels[0].link}};
  out.plan = one_layer_a_stage(out.graph, out.topology, {2, 2}, "1f1b", 4);
  return out;
}

// Devices 0, 1 | 2, 3 become 0, 1, (2, 3) | 4, 5, (6, 7); with more nodes 0, 1 | 2, 3 | (4, 5) | (6, 7).
TEST(WithGroups, CopiesThePlanWithinTheLevel) {
  const Scenario larger = with_groups(two_nodes(), 0, 4);
  EXPECT_EQ(device_count(larger.topology), 8);
  EXPECT_THAT(larger.plan.stages[0].devices, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(larger.plan.stages[1].devices, ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(larger.plan.microbatches, 8);
  const Scenario more = with_groups(two_nodes(), 1, 4);
  EXPECT_THAT(more.plan.stages[0].devices, ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(more.plan.stages[1].devices, ElementsAre(2, 3, 6, 7));
  EXPECT_NO_THROW(validate(BoundPlan(more.plan), more.graph, more.topology));
}

TEST(WithGroups, DropsWhatItCopied) {
  for (const int level : {0, 1}) {
    for (const int factor : {2, 3}) {
      const Scenario one = two_nodes();
      const Scenario back = with_groups(with_groups(one, level, 2 * factor), level, 2);
      EXPECT_EQ(back.topology, one.topology);
      EXPECT_EQ(back.plan.microbatches, 4);
      for (const std::size_t s : {0U, 1U}) EXPECT_EQ(back.plan.stages[s].devices, one.plan.stages[s].devices);
    }
  }
}

// Of the two replicas of each stage one is on the first device of its node.
TEST(WithGroups, KeepsTheReplicasOnTheDevicesThatStay) {
  const Scenario half = with_groups(two_nodes(), 0, 1);
  EXPECT_THAT(half.plan.stages[0].devices, ElementsAre(0));
  EXPECT_THAT(half.plan.stages[1].devices, ElementsAre(1));
  EXPECT_EQ(half.plan.microbatches, 2);
}

TEST(WithGroups, RefusesAPlanThatIsNotSoManyCopies) {
  const auto refusal = [](const Scenario& one, int level, int count) {
    try {
      (void)with_groups(one, level, count);
    } catch (const std::invalid_argument& e) { return std::string(e.what()); }
    return std::string();
  };
  EXPECT_EQ(refusal(two_nodes(), 1, 3),
            "found 3, expected a multiple or a divisor of 2, so that the plan has as many copies; for another number "
            "plan again");
  EXPECT_EQ(refusal(two_nodes(), 1, 1),
            "stage 0 has 2 of its 2 replicas on the devices that stay, not one in 2; plan again for the smaller "
            "topology");
  Scenario odd = two_nodes();
  odd.plan.microbatches = 3;
  EXPECT_EQ(refusal(odd, 0, 1),
            "the copies that stay have one in 2 of the plan's 3 microbatches, which is not an integer; set "
            "microbatches first");
  Scenario mixed = two_nodes();
  mixed.topology.others = {{3, 1, {.name = "slow", .memory = std::nullopt}}};
  EXPECT_EQ(refusal(mixed, 0, 4), "needs devices of one type, the topology has several");
  EXPECT_EQ(with_groups(mixed, 1, 4).topology.others.back().first, 7);
}

// Without parameters nothing is summed: each copy takes as long as one alone.
TEST(PredictScaling, IsPerfectWithoutGradients) {
  const auto result = predict_scaling(two_stages(), {1, 2, 4}, ScaledWork::PerCopy, std::nullopt);
  const auto& points = std::get<std::vector<ScalePoint>>(result);
  ASSERT_EQ(points.size(), 3U);
  for (const ScalePoint& point : points) {
    EXPECT_DOUBLE_EQ(point.iteration.value, 15);  // (4 + 1) * 3
    EXPECT_NEAR(point.efficiency, 1, 1e-12);
    EXPECT_LE(point.efficiency_low, 1);
    EXPECT_GE(point.efficiency_high, 1);
    EXPECT_LT(point.low, point.iteration);
    EXPECT_GT(point.high, point.iteration);
    EXPECT_TRUE(point.fits);
  }
  EXPECT_EQ(points[2].devices, 8);
}

}  // namespace
}  // namespace stagecraft
