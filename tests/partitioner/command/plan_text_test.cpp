#include "partitioner/command/plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Layers 0 and 1, of 1 + 2 s and 1 KiB of parameters each, on two replicas; layer 2 on the third device.
RankedPlan two_stages() {
  RankedPlan out;
  out.origin = "profile, 2 stages";
  out.plan = make_plan(testing::chain_graph({1, 1, 1}, {2, 2, 2}, 0_B, 1_KiB), testing::flat_topology(3),
                       {{0, 0, 1}, {2, 1}}, {});
  out.plan.strategy = "profile";
  out.plan.iteration = out.prediction.iteration = Seconds(20);
  out.prediction.bubble = 0.125;
  out.prediction.timeline.memory = {{0, Bytes(3072), {}}, {1, Bytes(1024), {}}};
  return out;
}

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

TEST(RankingText, ShowsThePlansAndWhatFits) {
  RankedPlan large = two_stages();
  large.origin = "pipedream";
  large.fits = false;
  large.prediction.iteration = Seconds(10);
  EXPECT_EQ(ranking_text({{two_stages(), large}, {}, 0}, "~", 80),
            "plan              replicas    step    idle peak memory\n"
            "profile, 2 stages      2-1 ~20.0 s ~12.5 %   ~3.00 KiB\n"
            "pipedream              2-1 ~10.0 s ~12.5 %   ~3.00 KiB does not fit\n");
}

TEST(RankingText, SaysWhatItLeavesOut) {
  Ranking ranking{std::vector<RankedPlan>(14, two_stages()), {{"schedule: odd", 2}}, 1};
  for (std::size_t i = 1; i < ranking.plans.size(); ++i) {
    ranking.plans[i].prediction.iteration = Seconds(30 + static_cast<double>(i));
    for (std::size_t more = 0; more < i; ++more)
      ranking.plans[i].plan.stages.front().devices.push_back(10 + static_cast<int>(more));
  }
  EXPECT_THAT(ranking_text(ranking, "", 80),
              EndsWith("and 2 more\n"  // 14, of which 12 are shown
                       "1 more skipped: its compute time alone exceeds the best step\n"
                       "skipped 2 candidates: schedule: odd (2)\n"));
  ranking.slower = 2;
  EXPECT_THAT(ranking_text(ranking, "", 80),
              HasSubstr("2 more skipped: their compute time alone exceeds the best step\n"));
}

RankedPlan two_replicas_then_one() {
  RankedPlan out = two_stages();
  out.origin = "optimal";
  out.plan.stages[0].devices = {0, 1};
  out.plan.stages[1].devices = {2};
  return out;
}

/// Devices 0 and 1, 2 in order; the other way round they are placed. Plans of one shape differ in their cuts alone.
TEST(RankingText, HasARowForEachShape) {
  const RankedPlan in_order = two_replicas_then_one();
  RankedPlan slower = in_order;
  slower.prediction.iteration = Seconds(21);
  RankedPlan placed = in_order;
  placed.plan.stages[0].devices = {0, 2};
  placed.plan.stages[1].devices = {1};
  placed.prediction.iteration = Seconds(22);
  EXPECT_EQ(ranking_text({{in_order, slower, placed, slower}, {}, 0}, "", 80),
            "plan            replicas   step   idle peak memory\n"
            "optimal              2-1 20.0 s 12.5 %    3.00 KiB best of 3\n"
            "optimal, placed      2-1 22.0 s 12.5 %    3.00 KiB\n");
}

/// Steps of 20, 20.1 and 20.3 s: the second is within 1 % of the first, the third is not. The fourth is in two chunks.
TEST(RankingText, JoinsShapesWhoseStepsAreWithinOnePercent) {
  const RankedPlan first = two_replicas_then_one();
  RankedPlan tie = first;
  tie.plan.stages[0].devices = {0};
  tie.plan.stages[1].devices = {1, 2};
  tie.prediction.iteration = Seconds(20.1);
  RankedPlan slower = first;
  slower.plan.stages[1].devices = {2, 3};
  slower.prediction.iteration = Seconds(20.3);
  RankedPlan chunked = first;
  chunked.plan.stages = {first.plan.stages[1], first.plan.stages[1]};
  chunked.plan.stages[0].devices = chunked.plan.stages[1].devices = {0};
  chunked.plan.chunks = 2;
  chunked.prediction.iteration = Seconds(30);
  EXPECT_EQ(ranking_text({{first, first, tie, slower, chunked}, {}, 0, Seconds(20)}, "", 80),
            "plan              replicas   step   idle peak memory\n"
            "optimal                2-1 20.0 s 12.5 %    3.00 KiB best of 2; 1-2 within 1 %\n"
            "optimal                2-2 20.3 s 12.5 %    3.00 KiB\n"
            "optimal, 2 chunks      1-1 30.0 s 12.5 %    3.00 KiB\n");
}

/// Steps of 20 and 20.1 s differ by 0.5 %.
TEST(RankingText, SaysHowTiesAreDecidedUnlessABoundTellsThemApart) {
  Ranking ranking{{two_stages(), two_stages()}, {}, 0};
  ranking.plans[1].prediction.iteration = Seconds(20.1);
  const std::string ties = "steps within 1 % are ties: fewer devices, then fewer stages win\n";
  EXPECT_THAT(ranking_text(ranking, "", 80), EndsWith(ties));
  ranking.lower_bound = Seconds(20);
  EXPECT_THAT(ranking_text(ranking, "", 80), Not(HasSubstr(ties)));
  ranking.lower_bound.reset();
  ranking.plans[1].prediction.iteration = Seconds(20.3);
  EXPECT_THAT(ranking_text(ranking, "", 80), Not(HasSubstr(ties)));
}

TEST(RankingText, CountsTheStagesOfALongPlan) {
  RankedPlan ranked = two_stages();
  while (ranked.plan.stages.size() < 10) ranked.plan.stages.push_back(ranked.plan.stages.back());
  EXPECT_THAT(ranking_text({{ranked}, {}, 0}, "", 80), AllOf(StartsWith("plan "), HasSubstr(" 10 stages ")));
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
