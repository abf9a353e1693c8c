#include "costmodel/accuracy/intervals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "costmodel/conditions.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using testing::flat_topology;
using testing::one_layer_a_stage;

/// Forward and backward of each layer: median 1 s, deviation 0.1 s, 100 samples.
Graph measured_graph(int layers) {
  Graph graph = chain_graph(std::vector<double>(static_cast<std::size_t>(layers), 1),
                            std::vector<double>(static_cast<std::size_t>(layers), 1), Bytes(500));
  for (Layer& layer : graph.layers) {
    layer.forward.spread = layer.backward.spread = Seconds(0.1);
    layer.forward.count = layer.backward.count = 100;
  }
  return graph;
}

/// measured_graph(1), whose GPU waited for launches in 1 of 20 ns.
Graph launch_bound_graph() {
  Graph graph = measured_graph(1);
  graph.quality = ProfileQuality{};
  graph.quality->watched_ns = 20;
  graph.quality->host_wait_ns = 1;
  return graph;
}

// The standard error of a median of 100 samples with a median absolute deviation of 0.1 s: sqrt(pi / 2) * 1.4826 * 0.1
// / 10 = 0.018582 s. All four times add up linearly, so the relative error of their sum is that of each.
TEST(Intervals, AddTheErrorsOfLayersLinearly) {
  const Graph graph = measured_graph(2);
  const BoundPlan plan(one_layer_a_stage(graph, flat_topology(2), {1, 1}, "1f1b", 2));
  const Doubt doubt = compute_doubt(graph, plan);
  EXPECT_NEAR(doubt.log_spread, std::sqrt(std::acos(-1.0) / 2) * 1.4826 * 0.1 / 10, 1e-12);
  EXPECT_EQ(doubt.source, FigureSource::Measured);
}

TEST(Intervals, TakeTheLargerErrorOfTheIterationAndAddTheDrift) {
  Graph graph = measured_graph(2);
  const BoundPlan plan(one_layer_a_stage(graph, flat_topology(2), {1, 1}, "1f1b", 2));
  const double error = std::sqrt(std::acos(-1.0) / 2) * 1.4826;
  graph.iteration = Timing{Seconds(4), Seconds(1), 25};  // 1 / 5 / 4 = 0.05 of itself
  EXPECT_NEAR(compute_doubt(graph, plan).log_spread, error * 0.05, 1e-12);
  Yardstick yardstick;
  yardstick.works.push_back({"work", Seconds(1), Seconds(1), Seconds(1), Seconds(1), Seconds(1.2), 3});
  graph.conditions.yardstick = yardstick;
  EXPECT_NEAR(compute_doubt(graph, plan).log_spread, std::hypot(error * 0.05, speed_spread(yardstick)), 1e-12);
}

TEST(Intervals, NameTheSource) {
  const Graph given = chain_graph({1, 1}, {1, 1}, Bytes(500));
  Topology topology = flat_topology(2, 1000);
  const BoundPlan plan(one_layer_a_stage(given, topology, {1, 1}, "1f1b", 2));
  EXPECT_EQ(compute_doubt(given, plan), (Doubt{0.1, FigureSource::Assumed}));
  EXPECT_EQ(link_doubt(given, topology, plan, 0), (Doubt{0.5, FigureSource::Analytic}));
  Link& link = topology.levels[0].link;
  link.origin = LinkOrigin::Measured;
  EXPECT_EQ(link_doubt(given, topology, plan, 0), (Doubt{0.1, FigureSource::Fitted}));
  link.send_receive.points = {{Bytes(100), Seconds(0.1)}, {Bytes(500), Seconds(0.5)}};
  EXPECT_EQ(link_doubt(given, topology, plan, 0), (Doubt{0.1, FigureSource::Measured}));
  link.send_receive.points.back().bytes = Bytes(499);
  EXPECT_EQ(link_doubt(given, topology, plan, 0), (Doubt{0.5, FigureSource::Extrapolated}));
}

// The declared 10 % and the residuals of the curve are independent: they add in quadrature.
TEST(Intervals, WidenWithTheResidualsOfACurve) {
  const Graph graph = measured_graph(2);
  Topology topology = flat_topology(2, 1000);
  const BoundPlan plan(one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 2));
  Link& link = topology.levels[0].link;
  link.origin = LinkOrigin::Measured;
  link.send_receive.points = {{Bytes(100), Seconds(1)}, {Bytes(500), Seconds(5)}};
  const auto high = [&] {
    return std::get<Prediction>(predict_with_intervals(graph, topology, plan, std::nullopt)).high->value;
  };
  const double narrow = high();
  link.send_receive.log_spread = 0;
  EXPECT_EQ(high(), narrow);
  link.send_receive.log_spread = 0.24;
  EXPECT_NEAR(link_doubt(graph, topology, plan, 0).log_spread, 0.26, 1e-15);  // 0.1, 0.24, 0.26: a right triangle
  EXPECT_GT(high(), narrow);
  link.send_receive.points.back().bytes = Bytes(499);
  link.send_receive.log_spread = 1.2;
  EXPECT_NEAR(link_doubt(graph, topology, plan, 0).log_spread, 1.3, 1e-15);  // 0.5, 1.2, 1.3
}

TEST(Intervals, WidenWithTheResidualsOfAnAllReduce) {
  const Graph graph = chain_graph({1}, {1}, Bytes(0), Bytes(500));
  Topology topology = flat_topology(2, 1000);
  Link& link = topology.levels[0].link;
  link.origin = LinkOrigin::Measured;
  link.all_reduce[2] = {{{Bytes(500), Seconds(1)}}, 0.24};
  const BoundPlan plan(one_layer_a_stage(graph, topology, {2}, "1f1b", 2));
  EXPECT_NEAR(link_doubt(graph, topology, plan, 0).log_spread, 0.26, 1e-15);
}

// Stages 0 and 1 share a parameter, stages 1 and 2 another: pairs sum them, and all-reduces of pairs were measured.
TEST(Intervals, TakeTheCurveOfTheRanksThatSumASharedParameter) {
  Graph graph = chain_graph({1, 1, 1}, {1, 1, 1}, Bytes(500), Bytes(500));
  graph.layers[0].tied = {{"a", Bytes(100)}};
  graph.layers[1].tied = {{"a", Bytes(100)}, {"b", Bytes(100)}};
  graph.layers[2].tied = {{"b", Bytes(100)}};
  Topology topology = flat_topology(3, 1000);
  Link& link = topology.levels[0].link;
  link.origin = LinkOrigin::Measured;
  link.send_receive.points = {{Bytes(100), Seconds(0.1)}, {Bytes(500), Seconds(0.5)}};
  link.all_reduce[2].points = {{Bytes(100), Seconds(0.1)}};
  const BoundPlan plan(one_layer_a_stage(graph, topology, {1, 1, 1}, "1f1b", 2));
  EXPECT_EQ(link_doubt(graph, topology, plan, 0), (Doubt{0.1, FigureSource::Measured}));
  link.all_reduce.clear();
  EXPECT_EQ(link_doubt(graph, topology, plan, 0), (Doubt{0.1, FigureSource::Fitted}));
}

// Layers of known spread s, one stage, no links: the interval of a step of 4 s is exp(+-sqrt((1.645 s)^2 +
// log(1.08)^2)). 1.645 s is 0.030564, of variance 0.00093416, log(1.08) is 0.076961, of variance 0.0059230: 13.6 % and
// 86.4 % of 0.0068572.
TEST(Intervals, OfAStepCombineIndependentMechanisms) {
  const Graph graph = measured_graph(1);
  const Topology topology = flat_topology(1);
  const BoundPlan plan(one_layer_a_stage(graph, topology, {1}, "1f1b", 2));
  const Prediction p = std::get<Prediction>(predict_with_intervals(graph, topology, plan, std::nullopt));
  const double half = std::hypot(1.6448536269514722 * compute_doubt(graph, plan).log_spread, std::log(1.08));
  EXPECT_EQ(p.iteration, Seconds(4));
  EXPECT_NEAR(p.low->value, 4 * std::exp(-half), 1e-9);
  EXPECT_NEAR(p.high->value, 4 * std::exp(half), 1e-9);
  EXPECT_EQ(p.interval, "variance by source: layers 13.6 % (half-width 3.1 %), model 86.4 % (8.0 %, assumed)");
  ASSERT_TRUE(p.stages[0].ranges);
  EXPECT_EQ(p.stages[0].ranges->compute.source, FigureSource::Measured);
  EXPECT_LT(p.stages[0].ranges->compute.low, Seconds(4 * 0.92));
  EXPECT_GT(p.stages[0].ranges->compute.high, Seconds(4 * 1.08));
  EXPECT_EQ(p.stages[0].ranges->reduce.high, Seconds(0)) << "nothing is reduced, and that is certain";
}

// A spread of 0.5 on the logarithmic scale is a half-width of exp(0.82243) - 1 = 127.6 % alone, but 0.67639 of a
// variance of 0.68231: 99.1 %. The model's 0.0059230 are the other 0.9 %.
TEST(Intervals, OfAStepShareOneVariance) {
  Graph graph = measured_graph(1);
  for (Timing* timing : {&graph.layers[0].forward, &graph.layers[0].backward}) *timing = {1_s, {}, 0, 0.5};
  const Topology topology = flat_topology(1);
  const BoundPlan plan(one_layer_a_stage(graph, topology, {1}, "1f1b", 2));
  EXPECT_EQ(std::get<Prediction>(predict_with_intervals(graph, topology, plan, std::nullopt)).interval,
            "variance by source: layers 99.1 % (half-width 127.6 %), model 0.9 % (8.0 %, assumed)");
}

// As above, and the GPU waited for launches in 1 of 20 ns: log(1.4)^2 is 0.11321, 94.3 % of a variance of 0.12007.
TEST(Intervals, AreWiderWhereTheGpuWaitsForLaunches) {
  const Graph graph = launch_bound_graph();
  const Topology topology = flat_topology(1);
  const BoundPlan plan(one_layer_a_stage(graph, topology, {1}, "1f1b", 2));
  const Prediction p = std::get<Prediction>(predict_with_intervals(graph, topology, plan, std::nullopt));
  EXPECT_EQ(p.interval,
            "variance by source: layers 0.8 % (half-width 3.1 %), launches 94.3 % (40.0 %, assumed), model 4.9 % "
            "(8.0 %, assumed)");
  EXPECT_GT(p.stages[0].ranges->compute.high, Seconds(4 * 1.4));
}

// A microbatch takes the device 2.1 s and loading 2.5 s, so a step is as long as loading, and 1.4 times as long if that
// is: log(1.4)^2 is 0.11321, 95.0 % of a variance of 0.11914. The layers' errors change nothing.
TEST(Intervals, AreWiderWhereTheGpuWaitsForItsData) {
  Graph graph = measured_graph(1);
  Layer input;
  input.id = input.name = "input";
  input.kind = kInputKind;
  input.forward = {Seconds(0.1), {}, 7};
  input.loading = Timing{Seconds(2.5), {}, 7};
  graph.layers.push_back(input);
  graph.edges.push_back({1, 0, 0});
  const Topology topology = flat_topology(1);
  const BoundPlan plan(one_layer_a_stage(measured_graph(1), topology, {1}, "1f1b", 2));
  const auto interval = [&](double loading) {
    graph.layers[1].loading->median = Seconds(loading);
    return std::get<Prediction>(predict_with_intervals(graph, topology, plan, std::nullopt)).interval;
  };
  EXPECT_THAT(interval(2.5),
              ::testing::HasSubstr("layers 0.0 % (half-width 0.0 %), loading 95.0 % (40.0 %, assumed), model 5.0 % "
                                   "(8.0 %, assumed)"));
  EXPECT_THAT(interval(1.5), ::testing::Not(::testing::HasSubstr("loading"))) << "2.1 s are hidden";
}

TEST(Intervals, AreThoseOfTheCalibration) {
  const Graph graph = measured_graph(1);
  const Topology topology = flat_topology(1);
  Calibration calibration;
  calibration.compute = 2;
  calibration.log_half_width = std::log(1.1);
  const BoundPlan plan(one_layer_a_stage(graph, topology, {1}, "1f1b", 2));
  const Prediction p = std::get<Prediction>(predict_with_intervals(graph, topology, plan, calibration));
  EXPECT_EQ(p.iteration, Seconds(8));
  EXPECT_NEAR(p.high->value, 8.8, 1e-9);
  EXPECT_EQ(p.interval, "half-width 10.0 %, residuals of the calibration");
  EXPECT_NEAR(p.stages[0].ranges->compute.high.value, 8.8, 1e-9);
  EXPECT_EQ(p.stages[0].ranges->compute.source, FigureSource::Calibrated);
}

// Equal plans: even odds, and an interval from each one's own error alone, sqrt(2) * log(1.075). Layers that are
// all 10 % slower leave the ratio as it is, however unsure they are.
TEST(StepRatio, CancelsCommonErrors) {
  Graph graph = measured_graph(2);
  for (Layer& layer : graph.layers) layer.forward.spread = layer.backward.spread = Seconds(10);
  const Topology topology = flat_topology(2, 1e12);
  const Plan plan = one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 4);
  const Plan other = one_layer_a_stage(graph, topology, {1, 1}, "gpipe", 4);
  const auto same = std::get<StepRatio>(step_ratio({graph, topology, plan}, {graph, topology, other}, std::nullopt));
  EXPECT_NEAR(same.ratio, 1, 1e-9);
  EXPECT_NEAR(same.first_faster, 0.5, 1e-6);
  EXPECT_NEAR(std::log(same.high), std::sqrt(2) * std::log(1.075), 1e-9);
}

// Runs of one plan differ by what launches take: sqrt(2) * log(1.4) in quadrature with sqrt(2) * log(1.075).
TEST(StepRatio, CountsLaunchesAsEachOnesOwnError) {
  const Graph graph = launch_bound_graph();
  const Topology topology = flat_topology(1);
  const Plan plan = one_layer_a_stage(graph, topology, {1}, "1f1b", 4);
  const Plan other = one_layer_a_stage(graph, topology, {1}, "gpipe", 4);
  const auto same = std::get<StepRatio>(step_ratio({graph, topology, plan}, {graph, topology, other}, std::nullopt));
  EXPECT_NEAR(std::log(same.high), std::sqrt(2) * std::hypot(std::log(1.4), std::log(1.075)), 1e-12);
}

// One plan over a link of half the bandwidth takes longer, by how much is unsure; and as long with the same link.
TEST(StepRatio, OfOnePlanDoesNotSpeedUpWithASlowerLink) {
  const Graph graph = chain_graph({1, 1}, {1, 1}, Bytes(500), Bytes(100));
  const Topology topology = flat_topology(2, 1000);
  Topology slow = topology;
  slow.levels[0].link.bandwidth = BytesPerSecond(500);
  const Plan plan = one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 4);
  const auto change = std::get<StepRatio>(step_ratio({graph, slow, plan}, {graph, topology, plan}, std::nullopt));
  EXPECT_GT(change.ratio, 1);
  EXPECT_GE(change.low, 1);
  EXPECT_GT(change.high, change.ratio);
  const auto same = std::get<StepRatio>(step_ratio({graph, topology, plan}, {graph, topology, plan}, std::nullopt));
  EXPECT_EQ(same.low, 1);
  EXPECT_EQ(same.high, 1);
}

// One stage computes 2 s per microbatch with nothing else: the ratio to a graph with layers of half the time is 2, its
// logarithm 8.3 half-widths off, so the probability is nearly 0 and its mirror nearly 1.
TEST(StepRatio, GivesOddsThatMirror) {
  const Graph graph = measured_graph(1);
  Graph fast = graph;
  fast.layers[0].forward.median = Seconds(0.9);
  const Topology topology = flat_topology(1);
  const Plan plan = one_layer_a_stage(graph, topology, {1}, "1f1b", 4);
  const Plan other = one_layer_a_stage(graph, topology, {1}, "gpipe", 4);
  const auto odds = std::get<StepRatio>(step_ratio({fast, topology, plan}, {graph, topology, other}, std::nullopt));
  const auto mirror = std::get<StepRatio>(step_ratio({graph, topology, other}, {fast, topology, plan}, std::nullopt));
  EXPECT_NEAR(odds.ratio, 0.95, 1e-12);
  EXPECT_GT(odds.first_faster, 0.5);
  EXPECT_LT(odds.first_faster, 1);
  EXPECT_NEAR(odds.first_faster + mirror.first_faster, 1, 1e-12);
  EXPECT_NEAR(odds.low * mirror.high, 1, 1e-9);
}

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class UnmeasuredParts : public ::testing::Test {
 protected:
  UnmeasuredParts() { graph_.quality.emplace().clock = "host"; }
  [[nodiscard]] BoundPlan plan() const { return BoundPlan(one_layer_a_stage(graph_, topology_, {1, 1}, "1f1b", 2)); }
  Graph graph_ = chain_graph({1, 1}, {1, 1}, Bytes(500));
  Topology topology_ = flat_topology(2, 1000);
};

TEST_F(UnmeasuredParts, AreTheSlowdownsThatThePlanNeeds) {
  const auto lacking = unmeasured(graph_, topology_, plan());
  ASSERT_THAT(lacking, SizeIs(2));
  EXPECT_THAT(lacking[0].text, HasSubstr("slowdown of 2 ranks on a host"));
  EXPECT_THAT(lacking[0].text, HasSubstr("--concurrent 2"));
  EXPECT_THAT(lacking[1].text, HasSubstr("several microbatches in flight"));
  graph_.slowdown = {1, 1.5};
  EXPECT_THAT(unmeasured(graph_, topology_, plan()), SizeIs(1));
  graph_.in_flight_slowdown = InFlightSlowdown{4, 1.1};
  EXPECT_THAT(unmeasured(graph_, topology_, plan()), IsEmpty());
}

TEST_F(UnmeasuredParts, AreNoneOfAGraphThatNoProfileOfACpuMade) {
  graph_.quality->clock = "cupti";
  EXPECT_THAT(unmeasured(graph_, topology_, plan()), IsEmpty());
  graph_.quality.reset();
  EXPECT_THAT(unmeasured(graph_, topology_, plan()), IsEmpty());
}

TEST_F(UnmeasuredParts, WidenTheInterval) {
  // Independent of the other errors: logarithms of half-widths add in quadrature.
  const auto half = [&] {
    const auto result = predict_with_intervals(graph_, topology_, plan(), std::nullopt);
    const auto& prediction = std::get<Prediction>(result);
    return std::log(*prediction.high / prediction.iteration);
  };
  graph_.slowdown = {1, 1};
  graph_.in_flight_slowdown = InFlightSlowdown{4, 1};
  const double whole = half();
  graph_.in_flight_slowdown.reset();
  EXPECT_NEAR(half(), std::hypot(whole, std::log(1.1)), 1e-9);
  graph_.slowdown.clear();
  EXPECT_NEAR(half(), std::hypot(whole, std::log(1.1), std::log(1.25)), 1e-9);
}

Graph graph_with_waits(std::int64_t host_wait_ns) {
  Graph graph;
  graph.quality = ProfileQuality{};
  graph.quality->watched_ns = 1000;
  graph.quality->host_wait_ns = host_wait_ns;
  return graph;
}

TEST(Launches, AreWaitedForInMoreThan5Of1000Nanoseconds) {
  EXPECT_FALSE(waits_for_launches(graph_with_waits(5)));
  EXPECT_TRUE(waits_for_launches(graph_with_waits(6)));
}

TEST(Launches, AreNotWaitedForWithoutAProfile) {
  EXPECT_FALSE(waits_for_launches(Graph()));
  Graph unprofiled;
  unprofiled.quality = ProfileQuality{};
  EXPECT_FALSE(waits_for_launches(unprofiled));
}

TEST(Launches, AreNotedWithTheirShareOfAStep) {
  EXPECT_THAT(
      launches_text(graph_with_waits(47)),
      ::testing::StartsWith("the GPU waits for kernel launches in 4.7 % of a step, so the step depends on the host"));
  EXPECT_EQ(launches_text(graph_with_waits(0)), "");
}

}  // namespace

}  // namespace stagecraft
