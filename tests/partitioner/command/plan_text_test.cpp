#include "partitioner/command/plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/partitioner/two_stages.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;

Graph graph() { return testing::chain_graph({1, 1, 1}, {2, 2, 2}, 0_B, 1_KiB); }

TEST(StagesText, ShowsStagesAndTimes) {
  RankedPlan ranked = two_stages();
  ranked.plan.steady_state = Seconds(3);
  EXPECT_EQ(stages_text(graph(), ranked, "", 80),
            "stage replicas devices layers fwd + bwd parameters first .. last\n"
            "    0        2     0,1      2    6.00 s   2.00 KiB l0 .. l1\n"
            "    1        1       2      1    3.00 s   1.00 KiB l2 .. l2\n"
            "4 microbatches per step; 1f1b\n"
            "slowest stage 3.00 s per microbatch; predicted step 20.0 s\n"
            "idle 12.5 %\n");
}

TEST(StagesText, CountsTheSamplesOfAStep) {
  Graph known = graph();
  known.microbatch_samples = 16;
  RankedPlan ranked = two_stages();
  EXPECT_THAT(stages_text(known, ranked, "", 80),
              HasSubstr("\n4 microbatches of 16 samples, 64 samples per step; 1f1b\n"));
  known.microbatch_samples = 1;
  ranked.plan.microbatches = 1;
  EXPECT_THAT(stages_text(known, ranked, "", 80), HasSubstr("\n1 microbatch of 1 sample, 1 sample per step; 1f1b\n"));
}

TEST(IdleReasonText, NamesTooFewMicrobatches) {
  RankedPlan ranked = two_stages();
  ranked.plan.microbatches = 2;  // stage 0 has two replicas
  EXPECT_EQ(idle_reason_text({}, ranked), "") << "no device is left over";
  ranked.prediction.unused_devices = {3};
  EXPECT_EQ(idle_reason_text({}, ranked),
            "; with 2 microbatches, at most 2 replicas of a stage have work: try more --microbatches");
  Graph whole;
  whole.whole_batch_loss = true;
  EXPECT_EQ(idle_reason_text(whole, ranked),
            "; with 2 microbatches, at most 2 replicas of a stage have work, and the loss allows no more");
  ranked.plan.microbatches = 3;
  EXPECT_EQ(idle_reason_text({}, ranked), "") << "a third replica would have work";
}

TEST(StagesText, SaysHowFarFromTheBestThePlanCanBe) {
  RankedPlan ranked = two_stages();
  ranked.plan.lower_bound = Seconds(20);
  EXPECT_THAT(stages_text(graph(), ranked, "", 80),
              EndsWith("; predicted step 20.0 s: the best possible on these devices\nidle 12.5 %\n"));
  ranked.plan.lower_bound = Seconds(16);  // 20 / 16 = 1.25
  EXPECT_THAT(
      stages_text(graph(), ranked, "", 80),
      EndsWith("; predicted step 20.0 s: at most 25 % above the best possible on these devices\nidle 12.5 %\n"));
}

TEST(StagesText, SpeaksOfDevicesWhereTheyHaveSeveralStagesAndOfASteadyStateWithoutEnd) {
  RankedPlan ranked = two_stages();
  ranked.plan.steady_state = Seconds(3);
  ranked.plan.chunks = 2;
  EXPECT_THAT(stages_text(graph(), ranked, "", 80), HasSubstr("slowest device 3.00 s per microbatch"));
  ranked.plan.chunks = 1;
  ranked.endless = true;
  EXPECT_THAT(stages_text(graph(), ranked, "", 80), HasSubstr("per microbatch; predicted"));
  ranked.prediction.idle_devices = {1};  // only then the end of the step matters
  EXPECT_THAT(stages_text(graph(), ranked, "", 80), HasSubstr("per microbatch in steady state; predicted"));
}

TEST(StagesText, MarksTimesOfAnotherDevice) {
  EXPECT_THAT(
      stages_text(graph(), two_stages(), "measured on A, the topology has B", 80),
      AllOf(HasSubstr(" ~6.00 s "), HasSubstr(" ~2.00 KiB "), HasSubstr("; predicted step ~20.0 s\nidle ~12.5 %\n"),
            EndsWith("~ marks figures that were not measured on this topology's devices: measured on A, the "
                     "topology has B\n")));
}

TEST(ProgressText, OfALimitedSearchSaysHowGoodThePlanIs) {
  SearchState state;
  EXPECT_EQ(progress_text(state), "");
  state.search = "optimal";
  state.passed = 1.23_s;
  state.limit = 3_s;
  EXPECT_EQ(progress_text(state), "optimal: 1.2 of 3 s");
  state.best = 12.3_ms;
  EXPECT_EQ(progress_text(state), "optimal: 1.2 of 3 s, best step 12.3 ms");
  state.lower_bound = 12_ms;  // 12.3 / 12 = 1.025
  state.predicted = 812;
  EXPECT_EQ(progress_text(state), "optimal: 1.2 of 3 s, best step 12.3 ms, gap at most 2.5 %, 812 plans predicted");
  state.part = "zb-h1 (2 of 6)";
  state.simulated = 0.5;
  EXPECT_EQ(progress_text(state),
            "zb-h1 (2 of 6): optimal: 1.2 of 3 s, best step 12.3 ms, gap at most 2.5 %, simulating a plan: 50 %, "
            "812 plans predicted");
}

// 10 of 40 took 5 s, so the other 30 take 15 s.
TEST(ProgressText, OfASearchWithoutLimitSaysWhatIsLeft) {
  SearchState state;
  state.search = "auto";
  state.passed = 5_s;
  state.all = 40;
  EXPECT_EQ(progress_text(state), "auto: 5 s, 0 of 40");
  state.done = 10;
  EXPECT_EQ(progress_text(state), "auto: 5 s, 10 of 40, 15 s left");
  state.limit = 60_s;
  EXPECT_EQ(progress_text(state), "auto: 5 s of 1 min 0 s, 10 of 40");
}

TEST(ProgressText, IsOnlyTheTimeWhereNothingElseIsKnown) {
  SearchState state;
  state.search = "pipedream";
  state.passed = 75_s;
  EXPECT_EQ(progress_text(state), "pipedream: 1 min 15 s");
}

}  // namespace
}  // namespace stagecraft::partitioner
