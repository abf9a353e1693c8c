#include "costmodel/accuracy/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <stdexcept>

#include "costmodel/format/prediction_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using ::testing::HasSubstr;

Span span(int step, ActionKind kind, int microbatch, double start, double end) {
  return {0, step, {kind, 0, microbatch, -1}, Seconds(start), Seconds(end)};
}

/// One rank, a step of 4 s with two forwards of 2 s, and 300 B.
Prediction prediction() {
  Prediction out;
  out.iteration = 4_s;
  out.samples_per_s = 3;
  out.timeline.ranks = 1;
  out.timeline.stage_of_rank = {0};
  out.timeline.steps = {{0, 0_s, 4_s}};
  out.timeline.spans = {span(0, ActionKind::Forward, 0, 0, 2), span(0, ActionKind::Forward, 1, 2, 4),
                        span(0, ActionKind::SendActivation, 0, 2, 3)};
  out.timeline.memory = {{0, 300_B, {}}};
  return out;
}

/// Steps of 10, 4 and 6 s; forwards of 5 and 5, 1 and 3, 4 and 4 s; 12 samples per step; 200 B.
Measurement measurement() {
  Measurement out;
  out.microbatches = 2;
  out.microbatch_samples = 6;
  out.timeline.ranks = 1;
  out.timeline.stage_of_rank = {0};
  out.timeline.steps = {{0, 0_s, 10_s}, {1, 10_s, 14_s}, {2, 14_s, 20_s}};
  constexpr auto F = ActionKind::Forward;
  out.timeline.spans = {span(0, F, 0, 0, 5),
                        span(0, F, 1, 5, 10),
                        span(1, F, 0, 10, 11),
                        span(1, F, 1, 11, 14),
                        span(2, F, 0, 14, 18),
                        span(2, F, 1, 16, 20),
                        span(2, ActionKind::SendActivation, 0, 18, 19),
                        span(2, ActionKind::Update, -1, 19, 20)};
  out.timeline.memory = {{0, 200_B, {}}};
  return out;
}

// The run handles 2.4 instead of 3 samples per second: 0.8 of every rate.
TEST(Compare, MeasuresTheOtherRatesByTheSamplesOfTheRun) {
  Prediction predicted = prediction();
  predicted.rates = {300, FlopsPerSecond(10e12), 0.5, "device"};
  const Comparison comparison = compare(predicted, measurement(), 1);
  EXPECT_EQ(comparison.rates.predicted, predicted.rates);
  EXPECT_DOUBLE_EQ(*comparison.rates.measured.tokens_per_s, 240);
  EXPECT_DOUBLE_EQ(comparison.rates.measured.flops_per_s->value, 8e12);
  EXPECT_DOUBLE_EQ(*comparison.rates.measured.peak_share, 0.4);
  const std::string text = comparison_text(comparison);
  EXPECT_THAT(text, HasSubstr("tokens per second                             300            240    +25.0 %"));
  EXPECT_THAT(text, HasSubstr("operations per second                10.0 TFLOP/s   8.00 TFLOP/s    +25.0 %"));
  EXPECT_THAT(text, HasSubstr("share of the devices' peak                 50.0 %         40.0 %   +10.0 pt"));
}

TEST(Compare, TakesMediansOfTheStepsThatCount) {
  const Comparison comparison = compare(prediction(), measurement(), 1);
  EXPECT_EQ(comparison.step.predicted, 4_s);
  EXPECT_EQ(comparison.step.measured, 5_s);  // median of 4 and 6
  EXPECT_DOUBLE_EQ(*comparison.step.error(), -0.2);
  EXPECT_EQ(comparison.spread, 1_s);
  EXPECT_EQ(comparison.steps, 2U);
  EXPECT_EQ(comparison.skipped, 1U);
  ASSERT_TRUE(comparison.samples_per_s);
  EXPECT_EQ(comparison.samples_per_s->predicted, 3);
  EXPECT_DOUBLE_EQ(comparison.samples_per_s->measured, 2.4);  // 12 samples in 5 s
  ASSERT_EQ(comparison.memory.size(), 1U);
  EXPECT_DOUBLE_EQ(*comparison.memory[0].peak.error(), 0.5);
}

Yardstick yardstick(double product, double copy) {
  const auto times = [](const char* work, double s) {
    return YardstickTimes{work, Seconds(s), Seconds(s), Seconds(s), Seconds(s), Seconds(s), 2};
  };
  return {"a processor", 1, {times("product", product), times("copy", copy)}};
}

TEST(Compare, SaysHowMuchTheDeviceChangedAndLeavesTheErrorAsItIs) {
  Prediction predicted = prediction();
  Measurement measured = measurement();
  EXPECT_THAT(comparison_text(compare(predicted, measured, 1)), ::testing::Not(HasSubstr("drift")));
  predicted.yardstick = yardstick(4, 8);
  EXPECT_FALSE(compare(predicted, measured, 1).drift) << "the run has none";
  measured.conditions.yardstick = yardstick(5, 10);
  const Comparison comparison = compare(predicted, measured, 1);
  ASSERT_TRUE(comparison.drift);
  EXPECT_DOUBLE_EQ(comparison.drift->factor, 1.25);
  EXPECT_DOUBLE_EQ(*comparison.step.error(), -0.2);
  const std::string text = comparison_text(comparison);
  EXPECT_THAT(text, ::testing::Not(HasSubstr("removed")));
  EXPECT_THAT(text,
              HasSubstr("\ndrift since the profile: the device was 25.0 % slower (product +25.0 %, copy +25.0 %)\n"));
}

// Measured: 5 s.
TEST(Compare, SaysWhetherTheMeasurementLiesInsideTheInterval) {
  Prediction predicted = prediction();
  EXPECT_EQ(is_inside(compare(predicted, measurement(), 1)), std::nullopt);
  EXPECT_THAT(comparison_text(compare(predicted, measurement(), 1)), ::testing::Not(HasSubstr("interval")));
  predicted.low = 3_s;
  predicted.high = 5_s;
  EXPECT_EQ(is_inside(compare(predicted, measurement(), 1)), true);
  EXPECT_THAT(comparison_text(compare(predicted, measurement(), 1)),
              HasSubstr("the measured step lies inside the predicted 90 % interval, 3000.000 ms to 5000.000 ms\n"));
  predicted.high = 4.5_s;
  EXPECT_EQ(is_inside(compare(predicted, measurement(), 1)), false);
  EXPECT_THAT(comparison_text(compare(predicted, measurement(), 1)), HasSubstr("lies outside the predicted"));
}

TEST(Compare, SaysWhyDriftIsUnknown) {
  Prediction predicted = prediction();
  Measurement measured = measurement();
  predicted.yardstick = yardstick(4, 8);
  measured.conditions.yardstick = yardstick(4, 8);
  measured.conditions.yardstick->threads = 2;
  const Comparison comparison = compare(predicted, measured, 1);
  EXPECT_FALSE(comparison.drift);
  EXPECT_THAT(comparison_text(comparison), HasSubstr("\ndrift unknown: the yardsticks used 1 and 2 threads\n"));
}

TEST(Compare, SaysThatOtherProgramsDisturbedTheRun) {
  Measurement measured = measurement();
  measured.conditions.hosts = {{1.25, 0.75, 2}};
  EXPECT_THAT(comparison_text(compare(prediction(), measured, 1)),
              HasSubstr("\nnot trusted: other programs kept 0.8 of 2 processors busy, the run 1.2: measure on a quiet "
                        "machine\n"));
}

TEST(Compare, SaysThatTheRunUsedAnotherChannelThanTheLinks) {
  Prediction predicted = prediction();
  Measurement measured = measurement();
  predicted.channel = "ucx";
  EXPECT_TRUE(compare(predicted, measured, 1).distrust.empty()) << "the run does not say";
  measured.channel = "ucx";
  EXPECT_TRUE(compare(predicted, measured, 1).distrust.empty());
  measured.channel = "gloo";
  EXPECT_THAT(compare(predicted, measured, 1).distrust,
              ::testing::ElementsAre("the run used channel gloo, the links were measured over ucx"));
}

TEST(IdleShares, LookOnlyAtStepsWhoseSpansWereKept) {
  // Seven steps of 2 s with 1 s of work each; only the spans of the first two and the last one were kept. Work of a
  // step may begin during the step before, so the idle time of step 0 is known, but not that of step 1.
  Timeline timeline;
  timeline.ranks = 1;
  for (int step = 0; step < 7; ++step) {
    timeline.steps.push_back({step, Seconds(2.0 * step), Seconds(2.0 * step + 2)});
    if (step < 2 || step == 6) timeline.spans.push_back(span(step, ActionKind::Forward, 0, 2 * step, 2 * step + 1));
  }
  EXPECT_EQ(idle_shares(timeline), std::vector<double>{0.5});
  EXPECT_EQ(idle_shares(timeline, 1), std::vector<double>{0});  // unknown for these steps
}

TEST(Compare, SaysThatARunDidNotEnd) {
  Measurement unfinished = measurement();
  EXPECT_THAT(comparison_text(compare(prediction(), unfinished)), ::testing::Not(HasSubstr("did not end")));
  unfinished.ended = false;
  EXPECT_THAT(comparison_text(compare(prediction(), unfinished)),
              HasSubstr("the run did not finish; this is what it had measured so far\n"));
}

TEST(Compare, AveragesAStepsActionsAndLeavesSendsOut) {
  const Comparison comparison = compare(prediction(), measurement(), 1);
  ASSERT_EQ(comparison.actions.size(), 2U);
  EXPECT_EQ(comparison.actions[0].kind, ActionKind::Forward);
  EXPECT_EQ(comparison.actions[0].time.predicted, 2_s);
  EXPECT_EQ(comparison.actions[0].time.measured, 3_s);  // median of the means 2 and 4
  EXPECT_EQ(comparison.actions[1].kind, ActionKind::Update);
  EXPECT_EQ(comparison.actions[1].time.predicted, 0_s);
  EXPECT_EQ(comparison.actions[1].time.measured, 1_s);
}

TEST(Compare, NeverSkipsTheLastStep) {
  EXPECT_EQ(compare(prediction(), measurement(), 2).step.measured, 6_s);
  EXPECT_EQ(compare(prediction(), measurement(), 99).step.measured, 6_s);
  EXPECT_EQ(compare(prediction(), measurement(), 99).skipped, 2U);
  EXPECT_EQ(compare(prediction(), measurement(), 0).step.measured, 6_s);  // median of 10, 4 and 6
}

TEST(IdleShares, AreTheStepLessComputationUpdateAndReductionWhenTheyWere) {
  // Rank 0 is busy for 6 of 8 s, 4 of 8 s and 8 of 8 s, although the span that crosses into the second step is numbered
  // as part of the first; rank 1 is busy only with transfers.
  Timeline timeline;
  timeline.ranks = 2;
  timeline.steps = {{0, 0_s, 8_s}, {1, 8_s, 16_s}, {2, 16_s, 24_s}};
  timeline.spans = {span(0, ActionKind::Forward, 0, 0, 2),   span(0, ActionKind::SendActivation, 0, 2, 3),
                    span(0, ActionKind::Backward, 0, 3, 6),  span(0, ActionKind::Update, -1, 7, 9),
                    span(1, ActionKind::Forward, 1, 10, 11), span(1, ActionKind::WeightGradient, 1, 12, 14),
                    span(2, ActionKind::Reduce, -1, 16, 24)};
  timeline.spans.push_back({1, 0, {ActionKind::ReceiveActivation, 1, 0, 0}, 0_s, 24_s});
  EXPECT_EQ(idle_shares(timeline), (std::vector<double>{0.25, 1}));     // median of 1/4, 1/2 and 0
  EXPECT_EQ(idle_shares(timeline, 1), (std::vector<double>{0.25, 1}));  // median of 1/2 and 0
  EXPECT_EQ(idle_shares(timeline, 3), (std::vector<double>{0, 0}));
}

// Stages of 3 and 1 s a microbatch: the second rank idles for two thirds, whether all microbatches are replayed or only
// the first and last ones, and whether or not the prediction was a document in between.
TEST(IdleShares, OfAPredictionWithExtrapolatedMicrobatchesAreThoseOfTheWholeStep) {
  const Graph graph = testing::chain_graph({1, 0.25}, {2, 0.75});
  const Topology topology = testing::flat_topology(2);
  const BoundPlan plan(testing::one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 20'000));
  PredictOptions whole_replay;
  whole_replay.most_whole = 1 << 20;
  const auto shortened = std::get<Prediction>(predict(graph, topology, plan));
  ASSERT_GT(shortened.reckoned_microbatches, 500);
  const std::vector<double> whole = idle_shares(std::get<Prediction>(predict(graph, topology, plan, whole_replay)));
  ASSERT_EQ(whole.size(), 2U);
  EXPECT_NEAR(whole[1], 2.0 / 3, 1e-3);
  const Prediction read = format::parse_prediction(format::prediction_json(shortened), "prediction.json");
  for (const Prediction* prediction : {&shortened, &read}) {
    EXPECT_THAT(idle_shares(*prediction),
                ::testing::ElementsAre(::testing::DoubleNear(whole[0], 1e-9), ::testing::DoubleNear(whole[1], 1e-9)));
  }
}

TEST(Compare, ComparesEachRanksPredictedAndMeasuredBubble) {
  Prediction predicted = prediction();
  // Idle for 2 of 4 s.
  predicted.timeline.spans = {span(0, ActionKind::Forward, 0, 0, 1), span(0, ActionKind::Forward, 1, 3, 4)};
  Measurement measured = measurement();
  measured.timeline.spans = {span(0, ActionKind::Forward, 0, 0, 10), span(1, ActionKind::Forward, 0, 10, 13),
                             span(2, ActionKind::Forward, 0, 17, 20)};  // idle for 0 of 10, 1 of 4 and 3 of 6 s
  const Comparison comparison = compare(predicted, measured, 1);
  ASSERT_EQ(comparison.bubbles.size(), 1U);
  EXPECT_EQ(comparison.bubbles[0].rank, 0);
  EXPECT_EQ(comparison.bubbles[0].share.predicted, 0.5);
  EXPECT_EQ(comparison.bubbles[0].share.measured, 0.375);
  EXPECT_THAT(comparison_text(comparison),
              HasSubstr("rank 0 idle in a run                       50.0 %         37.5 %   +12.5 pt"));
  const auto json = nlohmann::json::parse(format::comparison_json(comparison));
  EXPECT_EQ(json["bubbles"][0]["predicted_share"], 0.5);
  EXPECT_EQ(json["bubbles"][0]["measured_share"], 0.375);
}

TEST(Compare, HasNoErrorWhereNothingWasMeasured) {
  EXPECT_EQ((Compared<Seconds>{1_s, 0_s}).error(), std::nullopt);
  Measurement silent = measurement();
  silent.microbatch_samples.reset();
  EXPECT_FALSE(compare(prediction(), silent).samples_per_s);
}

TEST(Compare, RefusesOtherRanksAndNoSteps) {
  const auto refusal = [](const Measurement& measured) -> std::string {
    try {
      (void)compare(prediction(), measured);
    } catch (const std::invalid_argument& e) { return e.what(); }
    return "";
  };
  Measurement other = measurement();
  other.timeline.stage_of_rank = {0, 1};
  EXPECT_EQ(refusal(other), "the prediction's ranks run stages 0, the measured ones 0 1; both must come from one plan");
  Measurement none = measurement();
  none.timeline.steps.clear();
  EXPECT_EQ(refusal(none), "the measurement has no steps");
}

TEST(ComparisonText, ShowsPredictedMeasuredAndTheError) {
  const std::string text = comparison_text(compare(prediction(), measurement(), 1));
  EXPECT_THAT(text, HasSubstr("4000.000 ms    5000.000 ms    -20.0 %"));
  EXPECT_THAT(text, HasSubstr("stage 0 forward"));
  EXPECT_THAT(text, HasSubstr("measured: median of 2 steps (first 1 skipped), median absolute deviation 1000.000 ms"));
}

}  // namespace

// Expected numbers by hand.

namespace {

Scored run(double predicted, double measured, int group = 0) {
  return {.predicted = Seconds(predicted), .low = {}, .high = {}, .measured = Seconds(measured), .group = group};
}

TEST(Quantile, IsLinearBetweenNeighbours) {
  // Places 0 to 3 of four values: 0.9 lies at 2.7.
  EXPECT_NEAR(quantile({4, 1, 3, 2}, 0.9), 3.7, 1e-12);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0), 1);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 1), 4);
  EXPECT_EQ(quantile({7}, 0.5), 7);
  EXPECT_THROW((void)quantile({}, 0.5), std::invalid_argument);
  EXPECT_THROW((void)quantile({1}, 1.5), std::invalid_argument);
}

TEST(ErrorScores, OfFourRuns) {
  // Errors 0.1, -0.2, 0.3, 0; sizes 0, 0.1, 0.2, 0.3; the 90th percentile lies 0.7 of the way from 0.2 to 0.3.
  const ErrorScores e = error_scores(std::vector{run(1.1, 1), run(0.8, 1), run(2.6, 2), run(5, 5)});
  EXPECT_EQ(e.n, 4U);
  EXPECT_NEAR(e.median, 0.15, 1e-12);
  EXPECT_NEAR(e.mean, 0.15, 1e-12);
  EXPECT_NEAR(e.p90, 0.27, 1e-12);
  EXPECT_NEAR(e.largest, 0.3, 1e-12);
  EXPECT_NEAR(e.bias, 0.05, 1e-12);
  EXPECT_EQ(error_scores({}), ErrorScores{});
}

TEST(OrderScores, CountsPairsInsideGroups) {
  // Group 0: predicted 1 < 2 < 3, measured 4, 3, 5: one of three pairs is wrong; the predicted best takes 4, the
  // best 3. Group 1: one pair, right, no regret. The single run of group 2 does not count.
  const OrderScores o =
      order_scores(std::vector{run(1, 4), run(2, 3), run(3, 5), run(1, 2, 1), run(2, 4, 1), run(9, 1, 2)});
  EXPECT_EQ(o.pairs, 4U);
  EXPECT_EQ(o.right, 3U);
  EXPECT_NEAR(o.tau.value(), 0.5, 1e-12);
  EXPECT_NEAR(o.mean_regret.value(), 1.0 / 6, 1e-12);
  EXPECT_NEAR(o.largest_regret.value(), 1.0 / 3, 1e-12);
}

TEST(OrderScores, TiesAreNoPairs) {
  const OrderScores o = order_scores(std::vector{run(1, 2), run(1, 3), run(2, 3)});
  EXPECT_EQ(o.pairs, 1U);  // of the first and the last
  EXPECT_EQ(o.right, 1U);
  EXPECT_FALSE(order_scores({}).tau.has_value());
}

TEST(OrderScores, LeavesOutPairsWithinTheNoise) {
  // Measured 4, 5 and 8: ratios 1.25, 2 and 1.6. Predicted 2, 1 and 3: the first pair is wrong, the others right. A
  // pair counts above 1 + noise: a ratio of 1.25 is not above 1.25.
  const std::vector runs{run(2, 4), run(1, 5), run(3, 8)};
  EXPECT_NEAR(order_scores(runs, 0.24).tau.value(), 1.0 / 3, 1e-12);
  const OrderScores o = order_scores(runs, 0.25);
  EXPECT_EQ(o.pairs, 2U);
  EXPECT_EQ(o.right, 2U);
  EXPECT_EQ(o.tau, 1.0);
  EXPECT_NEAR(o.largest_regret.value(), 0.25, 1e-12);  // 5 / 4 - 1, as without noise
  EXPECT_FALSE(order_scores(runs, 1).tau.has_value());
}

TEST(OrderScores, RefusesNoiseOutsideZeroToOne) {
  EXPECT_THROW((void)order_scores({}, -0.1), std::invalid_argument);
  EXPECT_THROW((void)order_scores({}, std::numeric_limits<double>::quiet_NaN()), std::invalid_argument);
  EXPECT_THROW((void)order_scores({}, std::numeric_limits<double>::infinity()), std::invalid_argument);
}

TEST(CoverageScores, CountsRunsWithAnInterval) {
  Scored inside = run(1, 1);
  inside.low = 0.9_s;
  inside.high = 1.1_s;  // half-width 0.2 / 2 = 0.1
  Scored outside = run(2, 4);
  outside.low = 1_s;
  outside.high = 3_s;  // half-width 0.5
  const CoverageScores c = coverage_scores(std::vector{inside, outside, run(1, 1)});
  EXPECT_EQ(c.n, 2U);
  EXPECT_NEAR(c.inside, 0.5, 1e-12);
  EXPECT_NEAR(c.half_width, 0.3, 1e-12);
  EXPECT_EQ(coverage_scores({}), CoverageScores{});
}

TEST(ConformalHalfWidth, TakesTheRankAboveTheShare) {
  std::vector<double> residuals;
  for (int i = 1; i <= 19; ++i) residuals.push_back(i % 2 == 0 ? i : -i);
  EXPECT_EQ(conformal_half_width(residuals, 0.9), 18);  // ceil(20 * 0.9)
}

TEST(ConformalHalfWidth, StretchesTheLargestOfFew) {
  EXPECT_NEAR(conformal_half_width({1, -2, 0.5, 1.5}, 0.9), 2 * std::sqrt(5.0 / 4), 1e-12);  // rank 5 of 4
  EXPECT_THROW((void)conformal_half_width({}, 0.9), std::invalid_argument);
}

}  // namespace

}  // namespace stagecraft
