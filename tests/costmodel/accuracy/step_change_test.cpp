#include "costmodel/accuracy/step_change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>

#include "costmodel/format/results/accuracy_json.h"
#include "tests/costmodel/documents.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

Span span(int rank, int step, ActionKind kind, double start, double end) {
  return {rank, step, {kind, rank, 0, -1}, Seconds(start), Seconds(end)};
}

/// A rank a stage with a forward of 1 s and then a backward of `backward` s, and a send that counts for nothing; the
/// given peaks.
Prediction prediction(const std::vector<double>& backward, double step, const std::vector<Bytes>& memory) {
  Prediction out;
  out.iteration = Seconds(step);
  out.timeline.steps = {{0, 0_s, Seconds(step)}};
  double idle = 0;
  for (std::size_t s = 0; s < backward.size(); ++s) {
    const int rank = static_cast<int>(s);
    StagePrediction& stage = out.stages.emplace_back();
    stage.stage = rank;
    stage.exposed_transfer = 0.5_s;
    stage.bubble = Seconds(step - 1 - backward[s] - 0.5);
    idle += step - 1 - backward[s];
    out.timeline.stage_of_rank.push_back(rank);
    out.timeline.memory.push_back({rank, memory[s], {}});
    out.timeline.spans.push_back(span(rank, 0, ActionKind::Forward, 0, 1));
    out.timeline.spans.push_back(span(rank, 0, ActionKind::Backward, 1, 1 + backward[s]));
    out.timeline.spans.push_back(span(rank, 0, ActionKind::SendGradient, 1, 2));
  }
  out.timeline.ranks = static_cast<int>(backward.size());
  out.bubble = idle / step / static_cast<double>(backward.size());
  return out;
}

// Steps of 4 and 5 s. Of the first plan's two stages one is idle for 1 and one for 0 s, of the second plan's single
// stage for 2.5 s.
TEST(StepChange, OfPredictionsComparesPlansOfOtherStages) {
  Prediction first = prediction({2, 3}, 4, {100_B, 300_B});
  first.low = 3_s;
  first.high = 5_s;
  const Prediction second = prediction({1.5}, 5, {450_B});
  const StepChange change = step_change(first, second);
  EXPECT_FALSE(change.measured);
  EXPECT_DOUBLE_EQ(*change.step.change(), 0.25);
  EXPECT_EQ(change.bubble, (Changed<double>{0.125, 0.5}));
  EXPECT_EQ(change.memory, (Changed<Bytes>{300_B, 450_B}));
  EXPECT_THAT(
      change.actions,
      ElementsAre(ActionChange{0, ActionKind::Forward, {1_s, 1_s}}, ActionChange{0, ActionKind::Backward, {2_s, 1.5_s}},
                  ActionChange{1, ActionKind::Forward, {1_s, {}}}, ActionChange{1, ActionKind::Backward, {3_s, {}}}));
  EXPECT_THAT(change.ranks,
              ElementsAre(RanksChange{0, {0.25, 0.5}, {100_B, 450_B}}, RanksChange{1, {0.0, {}}, {300_B, {}}}));
  EXPECT_THAT(change.differences, ElementsAre(ConditionChange{"ranks", "2", "1"}, ConditionChange{"stages", "2", "1"}));
  EXPECT_EQ(step_change_text(change, "a.json", "b.json", 80),
            "                              a.json b.json   change\n"
            "step                          4.00 s 5.00 s  +25.0 %\n"
            "  90 % interval     3.00 s to 5.00 s      -\n"
            "idle                          12.5 % 50.0 % +37.5 pt\n"
            "largest peak memory            300 B  450 B  +50.0 %\n"
            "stage 0 forward               1.00 s 1.00 s   +0.0 %\n"
            "stage 0 backward              2.00 s 1.50 s  -25.0 %\n"
            "stage 1 forward               1.00 s      -\n"
            "stage 1 backward              3.00 s      -\n"
            "stage 0 idle                  25.0 % 50.0 % +25.0 pt\n"
            "stage 0 peak memory            100 B  450 B +350.0 %\n"
            "stage 1 idle                   0.0 %      -\n"
            "stage 1 peak memory            300 B      -\n"
            "ranks: 2 and 1\n"
            "stages: 2 and 1\n");
}

TEST(StepChange, OfPredictionsNamesWhatWasPredictedWith) {
  const Prediction first = prediction({2}, 4, {100_B});
  Prediction second = first;
  second.changes = {"compute=0.8x", "schedule=gpipe"};
  second.calibration = "compute x 1.1";
  second.channel = "ucx";
  second.other_device = "measured on A, the topology has B";
  EXPECT_THAT(step_change_text(step_change(first, second), "a", "b", 80),
              AllOf(HasSubstr("\nchanges: none and compute=0.8x, schedule=gpipe\n"),
                    HasSubstr("\ncalibration: none and compute x 1.1\n"),
                    HasSubstr("\nchannel of the links: unknown and ucx\n"),
                    HasSubstr("\ntimes of another device: none and measured on A, the topology has B\n")));
  EXPECT_TRUE(step_change(second, second).differences.empty());
}

// The second rank of the first stage's device runs a third stage as well: its idle time counts once, for stage 0.
TEST(StepChange, OfPredictionsCountsRanksWithSeveralStagesOnce) {
  Prediction chunked = prediction({2, 2}, 8, {100_B, 200_B});
  for (int s = 2; s < 4; ++s) {
    StagePrediction& later = chunked.stages.emplace_back();
    later.stage = s;
    later.exposed_transfer = 1_s;
  }
  // 0.5 s of waiting for messages and 4.5 s of bubble for the first, 1 s of waiting for the second: 6 of 8 s.
  EXPECT_THAT(step_change(chunked, chunked).ranks,
              ElementsAre(RanksChange{0, {0.75, 0.75}, {100_B, 100_B}}, RanksChange{1, {0.75, 0.75}, {200_B, 200_B}}));
}

Measurement run(const std::vector<double>& steps, int samples = 6) {
  Measurement out;
  out.model = "chain";
  out.schedule = "1f1b";
  out.microbatches = 2;
  out.microbatch_samples = samples;
  out.timeline.ranks = 1;
  out.timeline.stage_of_rank = {0};
  out.timeline.memory = {{0, 200_B, {}}};
  double start = 0;
  for (const double time : steps) {
    const int step = static_cast<int>(out.timeline.steps.size());
    out.timeline.steps.push_back({step, Seconds(start), Seconds(start + time)});
    out.timeline.spans.push_back(span(0, step, ActionKind::Forward, start, start + time / 2));
    start += time;
  }
  return out;
}

// Medians of 4 and 6, and of 3, 4 and 8 s. 12 samples a step.
TEST(StepChange, OfRunsTakesMediansOfTheStepsThatCount) {
  const StepChange change = step_change(run({10, 4, 6}), run({20, 3, 4, 8}), 1);
  EXPECT_TRUE(change.measured);
  EXPECT_EQ(change.step, (Changed<Seconds>{5_s, 4_s}));
  EXPECT_EQ(change.spread, (Changed<Seconds>{1_s, 1_s}));  // deviations 1 and 1; 1, 0 and 4
  EXPECT_EQ(change.steps, (Changed<std::size_t>{2, 3}));
  EXPECT_EQ(change.samples_per_s, (Changed<double>{2.4, 3.0}));
  EXPECT_EQ(change.bubble, (Changed<double>{0.5, 0.5}));
  EXPECT_EQ(change.actions, (std::vector<ActionChange>{{0, ActionKind::Forward, {2.5_s, 2_s}}}));
  EXPECT_THAT(step_change_text(change, "a", "b", 80),
              AllOf(HasSubstr("step                        5.00 s 4.00 s -20.0 %\n"),
                    HasSubstr("  median absolute deviation 1.00 s 1.00 s\n"),
                    HasSubstr("samples per second             2.4    3.0 +25.0 %\n"),
                    HasSubstr("measured: medians of 2 and 3 steps\n"), Not(HasSubstr("interval"))));
  EXPECT_EQ(step_change(run({10, 4}), run({7}), 9).step, (Changed<Seconds>{4_s, 7_s})) << "never the last one";
}

TEST(StepChange, OfRunsSaysWhatElseDiffersAndWhatIsDoubtful) {
  Measurement first = run({4});
  Measurement second = run({5});
  second.model = "other";
  second.schedule = "gpipe";
  second.microbatches = 3;
  second.channel = "gloo";
  second.ended = false;
  first.conditions = full_conditions();
  second.conditions = full_conditions();
  for (YardstickTimes& work : second.conditions.yardstick->works) work.median = work.median * 1.25;
  const StepChange change = step_change(first, second);
  ASSERT_TRUE(change.drift);
  EXPECT_DOUBLE_EQ(change.drift->factor, 1.25);
  const std::string text = step_change_text(change, "a", "b", 80);
  EXPECT_THAT(text, AllOf(Not(HasSubstr("removed")), HasSubstr("\nmodel: chain and other\n"),
                          HasSubstr("\nschedule: 1f1b and gpipe\n"), HasSubstr("\nmicrobatches: 2 and 3\n"),
                          HasSubstr("\nchannel: unknown and gloo\n"),
                          HasSubstr("\nnot trusted: the second run did not finish\n"),
                          HasSubstr("drift from the first run to the second: the device was 25.0 % slower")));
  second.conditions.yardstick->threads += 1;
  EXPECT_THAT(step_change_text(step_change(first, second), "a", "b", 80), HasSubstr("\ndrift unknown: "));
}

TEST(StepChange, RefusesARunWithoutSteps) {
  EXPECT_THAT([] { (void)step_change(run({4}), run({})); },
              ::testing::ThrowsMessage<std::invalid_argument>("the second run has no steps"));
}

TEST(StepChange, HasNoChangeFromNothing) {
  EXPECT_EQ((Changed<double>{0.0, 1.0}).change(), std::nullopt);
  EXPECT_EQ((Changed<double>{{}, 1.0}).change(), std::nullopt);
  EXPECT_EQ((Changed<double>{2.0, 1.0}).change(), -0.5);
}

}  // namespace
}  // namespace stagecraft
