#include "costmodel/accuracy/calibrate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/format/results/accuracy_json.h"
#include "tests/costmodel/documents.h"
#include "tests/support/chains.h"

// Expected numbers by hand.
// Expected numbers by hand.

namespace stagecraft {
namespace {

using testing::chain_graph;
using testing::flat_topology;
using ::testing::HasSubstr;
using testing::one_layer_a_stage;
using ::testing::ThrowsMessage;

/// A measurement of `steps` equal steps of `step` on as many ranks as the plan has; without spans.
Measurement measured(const Plan& plan, Seconds step, Bytes peak = 0_B) {
  const BoundPlan bound(plan);
  Measurement out;
  out.model = plan.model;
  out.schedule = plan.schedule;
  out.microbatches = plan.microbatches;
  out.timeline.ranks = static_cast<int>(bound.ranks().size());
  for (const RankRole& role : bound.ranks()) out.timeline.stage_of_rank.push_back(role.stages.front());
  for (int i = 0; i < 3; ++i) out.timeline.steps.push_back({i, step * i, step * (i + 1)});
  if (peak > 0_B) out.timeline.memory = {{0, peak, {}}};
  return out;
}

/// What a machine would measure where the truth is `truth`.
Measurement measured_by(const Graph& graph, const Topology& topology, const Plan& plan, const Calibration& truth) {
  const auto result = predict_calibrated(graph, topology, BoundPlan(plan), truth);
  return measured(plan, std::get<Prediction>(result).iteration);
}

TEST(Calibrate, ShrinksTheComputeFactorOfOneRun) {
  // Two microbatches of 1 + 2 s: 6 s, measured 6.6. With noise 0.03 and a spread of 0.1, log(factor) is
  // log(1.1) * 0.03^-2 / (0.03^-2 + 0.1^-2) = 0.0953 * 0.9174 = 0.0874. The host's 20 us per action do not matter.
  const Graph graph = chain_graph({1}, {2});
  const Topology topology = flat_topology(1);
  const Plan plan = one_layer_a_stage(graph, topology, {1}, "1f1b", 2);
  const Calibration c = calibrate(graph, topology, {{"run", plan, measured(plan, 6.6_s)}});
  EXPECT_NEAR(std::log(c.compute), 0.0874, 2e-4);
  EXPECT_EQ(c.links.at(topology.levels[0].name), 1.0);  // no message, so nothing was learned
  EXPECT_EQ(c.memory, 1.0);
  EXPECT_NEAR(c.error_before, 1 - 6 / 6.6, 1e-9);
  EXPECT_EQ(c.runs, 1);
  EXPECT_EQ(c.plans, 1);
  EXPECT_TRUE(c.width_is_declared);
  EXPECT_NEAR(c.log_half_width, std::log(1.15), 1e-12);
}

TEST(Calibrate, LearnsFromForwardsAndBackwards) {
  // The step agrees with the plain prediction, the spans take 1.2 times as long: pulls of 0 and log(1.2) = 0.1823, both
  // with slope 1. The least of x^2 + (0.1823 - x)^2 + (0.03 / 0.1)^2 x^2, first without Huber: 0.1823 / 2.09 = 0.0872;
  // both residuals exceed 1.345 * 0.03 = 0.040, so they pull alike and only the prior counts: x where one is 0.0404:
  // x / 0.1^2 = 1.345 / 0.03 - x / 0.03^2, x = 0.03700.
  const Graph graph = chain_graph({1}, {2});
  const Topology topology = flat_topology(1);
  const Plan plan = one_layer_a_stage(graph, topology, {1}, "1f1b", 1);
  Measurement run = measured(plan, 3_s);
  for (int i = 0; i < 3; ++i) {
    const Seconds start = 3_s * i;
    run.timeline.spans.push_back({0, i, {ActionKind::Forward, 0, 0, -1}, start, start + 1.2_s});
    run.timeline.spans.push_back({0, i, {ActionKind::Backward, 0, 0, -1}, start + 1.2_s, start + 3.6_s});
  }
  const Calibration c = calibrate(graph, topology, {{"run", plan, run}});
  EXPECT_NEAR(std::log(c.compute), 0.0370, 2e-4);
}

TEST(Calibrate, DistinguishesLinksFromCompute) {
  // Plans with and without messages, all measured where layers take 1.05 and messages 1.8 times as long.
  const Graph graph = chain_graph({1, 1}, {2, 2}, 1000_B);
  const Topology topology = flat_topology(2, 1000, 0.5);
  Calibration truth;
  truth.compute = 1.05;
  truth.links[topology.levels[0].name] = 1.8;
  std::vector<CalibrationRun> runs;
  for (int microbatches = 1; microbatches <= 6; ++microbatches) {
    const Plan plan = one_layer_a_stage(graph, topology, {1, 1}, "gpipe", microbatches);
    runs.push_back({"run", plan, measured_by(graph, topology, plan, truth)});
    Plan alone = plan;
    alone.stages = {{{graph.layers[0].id, graph.layers[1].id}, {0}, false}};
    alone.boundaries.clear();
    alone.warmups = {0};
    runs.push_back({"alone", alone, measured_by(graph, topology, alone, truth)});
  }
  const Calibration c = calibrate(graph, topology, runs);
  EXPECT_NEAR(c.compute, 1.05, 0.01);
  EXPECT_NEAR(c.links.at(topology.levels[0].name), 1.8, 0.1);
  EXPECT_EQ(c.plans, 12);
  EXPECT_LT(c.error_after, 0.01);
  EXPECT_GT(c.error_before, 0.04);
  EXPECT_FALSE(c.width_is_declared);
  EXPECT_LT(c.log_half_width, 0.05);
}

TEST(Calibrate, ShrinksTheMemoryFactor) {
  // Measured 1.2 times the prediction: log(1.2) * 0.03^-2 / (0.03^-2 + 0.2^-2) = 0.18232 * 0.97800.
  const Graph graph = chain_graph({1}, {2}, 0_B, 100000_B);
  const Topology topology = flat_topology(1);
  const Plan plan = one_layer_a_stage(graph, topology, {1}, "1f1b", 1);
  const auto plain = std::get<Prediction>(predict(graph, topology, BoundPlan(plan)));
  const Bytes peak((plain.timeline.memory.at(0).total.value * 6) / 5);
  const Calibration c = calibrate(graph, topology, {{"run", plan, measured(plan, 3_s, peak)}});
  EXPECT_NEAR(std::log(c.memory), 0.18232 * 0.97800, 1e-3);
}

TEST(Calibrate, NamesTheRunThatDoesNotFit) {
  const Graph graph = chain_graph({1}, {2});
  const Topology topology = flat_topology(1);
  const Plan plan = one_layer_a_stage(graph, topology, {1}, "1f1b", 1);
  Measurement other = measured(plan, 3_s);
  other.timeline.ranks = 2;
  other.timeline.stage_of_rank = {0, 0};
  EXPECT_THAT([&] { (void)calibrate(graph, topology, {{"run.json", plan, other}}); },
              ThrowsMessage<std::invalid_argument>(::testing::StartsWith("run.json: ")));
  EXPECT_THROW((void)calibrate(graph, topology, {}), std::invalid_argument);
}

TEST(WithCalibration, ScalesTimesOnly) {
  Calibration c;
  c.compute = 2;
  const Graph graph = with_calibration(full_graph(), c);
  EXPECT_EQ(graph.layers[0].forward.median, 3_s);
  EXPECT_EQ(graph.layers[0].forward.spread, 0.5_s);
  EXPECT_EQ(graph.layers[0].update->median, 0.25_s);
  EXPECT_EQ(graph.iteration->median, 18_s);
  EXPECT_EQ(graph.layers[0].backward_parts->weights.median, full_graph().layers[0].backward_parts->weights.median * 2);
  EXPECT_EQ(graph.layers[0].parameter_bytes, full_graph().layers[0].parameter_bytes);
}

TEST(WithCalibration, ScalesTheNamedLevel) {
  Calibration c;
  c.links["server"] = 2;
  const Topology topology = with_calibration(full_topology(), c);
  const Link& link = topology.levels[0].link;
  EXPECT_EQ(link.bandwidth, BytesPerSecond(4));
  EXPECT_EQ(link.latency, 1_s);
  EXPECT_EQ(link.send_receive.points[1].time, 4_s);
  EXPECT_EQ(link.all_reduce.at(2).points[0].time, 6_s);
  EXPECT_EQ(link.all_gather.at(2).points[0].time, 12_s);
  EXPECT_EQ(link.reduce_scatter.at(2).points[0].time, 14_s);
  EXPECT_EQ(link.processing->sender.points[0].time, 16_s);
  EXPECT_EQ(link.processing->receiver.points[0].time, 18_s);
  EXPECT_EQ(topology.levels[1], full_topology().levels[1]);
  c.links["moon"] = 2;
  EXPECT_THAT([&] { (void)with_calibration(full_topology(), c); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("unknown level \"moon\", known are server, rack")));
}

TEST(PredictCalibrated, AppliesEveryFactorAndSaysSo) {
  // One microbatch of 1 + 2 s, twice as long, and 0.5 s of host time for each of forward, backward and update: 7.5 s.
  Graph graph = chain_graph({1}, {2}, 0_B, 1000_B);
  const Topology topology = flat_topology(1);
  const Plan plan = one_layer_a_stage(graph, topology, {1}, "1f1b", 1);
  Calibration c = full_calibration();
  c.device.clear();
  c.links.clear();
  c.compute = 2;
  c.memory = 3;
  c.log_half_width = std::log(1.25);
  const auto plain = std::get<Prediction>(predict(graph, topology, BoundPlan(plan)));
  const auto p = std::get<Prediction>(predict_calibrated(graph, topology, BoundPlan(plan), c));
  EXPECT_NEAR(p.iteration.value, 7.5, 1e-12);
  EXPECT_NEAR(p.low->value, 6, 1e-12);
  EXPECT_NEAR(p.high->value, 9.375, 1e-12);
  EXPECT_EQ(p.timeline.memory.at(0).total, plain.timeline.memory.at(0).total * 3);
  EXPECT_EQ(p.stages.at(0).memory.total, plain.stages.at(0).memory.total * 3);
  EXPECT_EQ(p.calibration,
            "compute x 2, host 500 ms per action, memory x 3; from 6 runs of 3 plans, median error 6.2 %");
  EXPECT_EQ(plain.calibration, "");
  EXPECT_TRUE(p.stages.at(0).fits);
  Topology small = topology;
  small.device.memory =
      plain.timeline.memory.at(0).total * 2;  // enough for the plain prediction, not for thrice as much
  EXPECT_FALSE(std::get<Prediction>(predict_calibrated(graph, small, BoundPlan(plan), c)).stages.at(0).fits);
  graph.device.name = "another";
  c.device = "one";
  EXPECT_THAT([&] { (void)predict_calibrated(graph, topology, BoundPlan(plan), c); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("times of \"one\", the graph's are of \"another\"")));
}

TEST(CalibrationJson, ReadsBackWhatWasWritten) {
  EXPECT_EQ(format::parse_calibration(format::calibration_json(full_calibration()), "c.json"), full_calibration());
  Calibration least;
  least.runs = 1;
  least.plans = 1;
  EXPECT_EQ(format::parse_calibration(format::calibration_json(least), "c.json"), least);
}

TEST(CalibrationJson, NamesPlaceFoundAndExpected) {
  const auto refused = [](const std::string& from, const std::string& to, const std::string& message) {
    std::string text = format::calibration_json(full_calibration());
    text.replace(text.find(from), from.size(), to);
    EXPECT_THAT([&] { (void)format::parse_calibration(text, "c.json"); },
                ThrowsMessage<FormatError>(HasSubstr(message)));
  };
  refused("\"compute_factor\": 1.25", "\"compute_factor\": 0",
          "c.json: /compute_factor: found 0, expected a number above 0");
  refused("\"level\": \"server\"", "\"level\": \"rack\"",
          "c.json: /links/1/level: a factor of \"rack\" already exists");
  refused("\"runs\": 6", "\"runs\": 0", "c.json: /runs: found 0, expected an integer from 1 to");
  refused("\"version\": 1", "\"version\": 2", "c.json: /version: ");
  refused("\"declared\": true", "\"declared\": 1", "c.json: /interval/declared: found 1, expected true or false");
}

TEST(ValidationJson, ReadsBackWhatWasWritten) {
  EXPECT_EQ(format::parse_validation(format::validation_json(full_validation()), "v.json"), full_validation());
  Validation least = full_validation();
  least.runs[0].step_samples = 0;
  least.runs[0].times.low.reset();
  least.runs[0].times.high.reset();
  least.regimes[0].coverage = {};
  least.regimes[0].order = {};
  least.noise.reset();
  EXPECT_EQ(format::parse_validation(format::validation_json(least), "v.json"), least);
}

TEST(ValidationJson, ReadsVersion1WithUnknownNoise) {
  const Validation old = format::parse_validation(
      R"({"format": "stagecraft.validation", "version": 1, "regimes": [], "runs": [{"name": "m.json", "model": "a",
          "schedule": "1f1b", "ranks": 2, "group": 0, "predicted_s": 1, "measured_s": 2}]})",
      "v.json");
  EXPECT_EQ(old.noise, std::nullopt);
  ASSERT_EQ(old.runs.size(), 1U);
  EXPECT_EQ(old.runs[0].times.measured, 2_s);
}

TEST(ValidationJson, RefusesANegativeNoise) {
  std::string text = format::validation_json(full_validation());
  const std::string noise = "\"noise\": 0.03";
  text.replace(text.find(noise), noise.size(), "\"noise\": -0.5");
  EXPECT_THAT([&] { (void)format::parse_validation(text, "v.json"); },
              ThrowsMessage<FormatError>(HasSubstr("v.json: /noise: found -0.5, expected ")));
}

TEST(RobustFactors, ShrinksHalfWayIfNoiseAndPriorAreEqual) {
  // Predicted 1, measured e^0.04: least (0.04 - x)^2 / 0.05^2 + x^2 / 0.05^2 has x = 0.02.
  const auto f =
      robust_factors(std::vector<FitRow>{{0, {1}, std::exp(0.04)}}, std::vector<FactorPrior>{{0.05}}, {.noise = 0.05});
  EXPECT_NEAR(std::log(f.at(0)), 0.02, 1e-9);
}

TEST(RobustFactors, PullOfAnOutlierIsBounded) {
  // Beyond 1.345 noise the pull is 1.345 / 0.05 whatever the size: x / 0.05^2 = 1.345 / 0.05, x = 1.345 * 0.05.
  for (const double size : {0.5, 1.0, 3.0}) {
    const auto f = robust_factors(std::vector<FitRow>{{0, {1}, std::exp(size)}}, std::vector<FactorPrior>{{0.05}},
                                  {.noise = 0.05});
    EXPECT_NEAR(std::log(f.at(0)), 1.345 * 0.05, 1e-6) << size;
  }
}

TEST(RobustFactors, KeepsAFactorThatNoRowDependsOn) {
  const auto f = robust_factors(std::vector<FitRow>{{0, {1, 0}, 1.5}}, std::vector<FactorPrior>{{0.1}, {0.1}});
  EXPECT_EQ(f.at(1), 1.0);
  EXPECT_EQ(robust_factors({}, std::vector<FactorPrior>{{0.1}}), std::vector<double>{1.0});
}

TEST(RobustFactors, DistinguishesMechanismsAndIgnoresABadRow) {
  // 60 rows of two mechanisms in random proportions, times 1.1 and 3, every tenth doubled by other work.
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<double> amount(0.1, 1);
  std::vector<FitRow> rows;
  for (int i = 0; i < 60; ++i) {
    FitRow row{0.05, {amount(random), amount(random)}, 0};
    row.measured = (row.fixed + 1.1 * row.parts[0] + 3 * row.parts[1]) * (i % 10 == 0 ? 2 : 1);
    rows.push_back(row);
  }
  const auto f = robust_factors(rows, std::vector<FactorPrior>{{1}, {1}});
  EXPECT_NEAR(f.at(0), 1.1, 0.05) << "seed " << kSeed;
  EXPECT_NEAR(f.at(1), 3, 0.1) << "seed " << kSeed;
}

TEST(RobustFactors, RefusesBadRows) {
  const std::vector<FactorPrior> prior{{0.1}};
  EXPECT_THROW((void)robust_factors(std::vector<FitRow>{{0, {1, 2}, 1}}, prior), std::invalid_argument);
  EXPECT_THROW((void)robust_factors(std::vector<FitRow>{{0, {0}, 1}}, prior), std::invalid_argument);
  EXPECT_THROW((void)robust_factors(std::vector<FitRow>{{0, {-1}, 1}}, prior), std::invalid_argument);
  EXPECT_THROW((void)robust_factors(std::vector<FitRow>{{0, {1}, 0}}, prior), std::invalid_argument);
  EXPECT_THROW((void)robust_factors({}, std::vector<FactorPrior>{{0}}), std::invalid_argument);
}

TEST(Fitted, IsTheSum) { EXPECT_EQ(fitted({1, {2, 3}, 1}, std::vector<double>{10, 100}), 321); }

}  // namespace
}  // namespace stagecraft
