#include "costmodel/timeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>
#include <vector>

namespace stagecraft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Median, IsTheMiddleOrTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(median({3}), 3);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({8, 2, 100, 4}), 6);
}

TEST(StepTime, IsTheMedianOfTheStepsThatCount) {
  Timeline timeline;
  timeline.steps = {{0, 0_s, 9_s}, {1, 9_s, 11_s}, {2, 11_s, 15_s}};
  EXPECT_EQ(step_time(timeline), 4_s);
  EXPECT_EQ(step_time(timeline, 1), 3_s);
  try {
    (void)step_time(timeline, 3);
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(), "no steps are left: the timeline has 3 and the first 3 are skipped");
  }
}

TEST(WarmUpSteps, AreTwoAndLeaveOneToMeasure) {
  Timeline timeline;
  EXPECT_EQ(warm_up_steps(timeline), 0U);
  for (const std::size_t expected : {0U, 1U, 2U, 2U}) {
    timeline.steps.emplace_back();
    EXPECT_EQ(warm_up_steps(timeline), expected) << timeline.steps.size();
  }
}

TEST(MemoryPart, HasANameForEachPartInTheirOrder) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < kMemoryParts; ++i) {
    const auto part = static_cast<MemoryPart>(i);
    names.emplace_back(to_string(part));
    EXPECT_EQ(memory_part(names.back()), part);
  }
  EXPECT_STREQ(to_string(MemoryPart::Workspace), "workspace") << "the last one";
  EXPECT_TRUE(std::ranges::is_sorted(names)) << "files list them in this order";
}

TEST(MemoryPart, ListsTheNamesForAWrongOne) {
  EXPECT_THAT([] { (void)memory_part("weights"); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("activations, communication, frozen")));
}

/// Two spans in each step of a run.
SpanKeeper keeper_of(int first_step, int steps) {
  SpanKeeper keeper(first_step);
  for (int step = first_step; step < first_step + steps; ++step) {
    for (const int stage : {0, 1}) keeper.add({0, step, {ActionKind::Update, stage, -1, -1}, {}, {}});
  }
  return keeper;
}

std::set<int> steps_of(const SpanKeeper& keeper) {
  std::set<int> out;
  for (const Span& span : keeper.spans()) out.insert(span.step);
  return out;
}

TEST(SpanKeeper, KeepsAllStepsOfAShortRun) {
  const SpanKeeper keeper = keeper_of(7, 32);
  EXPECT_EQ(keeper.spans().size(), 2U * 32);
  EXPECT_EQ(keeper.kept(), (KeptSpans{16, 16, 1}));
}

TEST(SpanKeeper, KeepsTheStepsThatItSaysAndNoOthers) {
  for (const int steps : {33, 64, 65, 100, 1000, 4097}) {
    for (const int first_step : {0, 5}) {
      const SpanKeeper keeper = keeper_of(first_step, steps);
      const KeptSpans kept = keeper.kept();
      std::set<int> expected;
      for (int place = 0; place < steps; ++place) {
        if (place < kept.first || place >= steps - kept.last || place % kept.every == 0)
          expected.insert(first_step + place);
      }
      EXPECT_EQ(steps_of(keeper), expected) << steps;
      EXPECT_EQ(keeper.spans().size(), 2 * expected.size()) << steps;
      EXPECT_LE(expected.size(), static_cast<std::size_t>(SpanKeeper::kMost)) << steps;
    }
  }
}

TEST(SpanKeeper, WidensTheDistanceByPowersOfTwo) {
  // Steps 0 to 31 are 32 with every step kept; step 32 would be one too many; steps 0, 2, ..., 62 are 32 with every
  // second kept.
  EXPECT_EQ(keeper_of(0, 32).kept().every, 1);
  EXPECT_EQ(keeper_of(0, 33).kept().every, 2);
  EXPECT_EQ(keeper_of(0, 64).kept().every, 2);
  EXPECT_EQ(keeper_of(0, 65).kept().every, 4);
}

TEST(SpanKeeper, TakesSpansOfOlderStepsThatComeLate) {
  SpanKeeper keeper = keeper_of(0, 100);
  keeper.add({0, 90, {ActionKind::Update, 2, -1, -1}, {}, {}});
  std::vector<int> stages;
  for (const Span& span : keeper.spans()) {
    if (span.step == 90) stages.push_back(span.action.stage);
  }
  EXPECT_THAT(stages, ElementsAre(0, 1, 2));
  keeper.add({0, 17, {ActionKind::Update, 2, -1, -1}, {}, {}});  // dropped since step 33
  EXPECT_FALSE(steps_of(keeper).contains(17));
}

constexpr auto F = ActionKind::Forward;
constexpr auto B = ActionKind::Backward;
constexpr auto SA = ActionKind::SendActivation;
constexpr auto RA = ActionKind::ReceiveActivation;
constexpr auto SG = ActionKind::SendGradient;
constexpr auto RG = ActionKind::ReceiveGradient;
constexpr auto U = ActionKind::Update;

/// Three stages, one rank each: 1 -> 2 and 0 -> 2 with gradients, 0 -> 1 without.
Plan plan() {
  Plan out;
  out.schedule = "gpipe";
  out.microbatches = 1;
  for (int s = 0; s < 3; ++s) out.stages.push_back({.layers = {"l" + std::to_string(s)}, .devices = {s}});
  const BoundaryTensor number{"l0", 0, Bytes(8), {}, "", false};
  const BoundaryTensor near{"l1", 0, Bytes(8), {}, "", true};
  const BoundaryTensor far{"l0", 1, Bytes(8), {}, "", true};
  out.boundaries = {{0, 1, {number}}, {0, 2, {far}}, {1, 2, {near}}};
  out.warmups = {2, 1, 0};
  return out;
}

/// Lists of ranks 0, 1 and 2.
std::vector<std::vector<Action>> lists() {
  return {{{F, 0, 0, -1}, {SA, 0, 0, 1}, {SA, 0, 0, 2}, {RG, 0, 0, 2}, {B, 0, 0, -1}, {U, 0, -1, -1}},
          {{RA, 1, 0, 0}, {F, 1, 0, -1}, {SA, 1, 0, 2}, {RG, 1, 0, 2}, {B, 1, 0, -1}, {U, 1, -1, -1}},
          {{RA, 2, 0, 1}, {RA, 2, 0, 0}, {F, 2, 0, -1}, {B, 2, 0, -1}, {SG, 2, 0, 1}, {SG, 2, 0, 0}, {U, 2, -1, -1}}};
}

/// What ranks that follow the lists measure in steps 4 and 5, interleaved as a run may gather the spans.
Timeline measured() {
  const std::vector<std::vector<Action>> spans = {
      {{F, 0, 0, -1}, {SA, 0, 0, 1}, {SA, 0, 0, 2}, {RG, 0, 0, 2}, {B, 0, 0, -1}, {U, 0, -1, -1}},
      {{RA, 1, 0, 0}, {F, 1, 0, -1}, {SA, 1, 0, 2}, {RG, 1, 0, 2}, {B, 1, 0, -1}, {U, 1, -1, -1}},
      {{RA, 2, 0, 0}, {RA, 2, 0, 1}, {F, 2, 0, -1}, {B, 2, 0, -1}, {SG, 2, 0, 1}, {SG, 2, 0, 0}, {U, 2, -1, -1}}};
  Timeline out;
  out.ranks = 3;
  for (const int step : {4, 5}) {
    for (int rank = 0; rank < 3; ++rank) {
      for (const Action& action : spans[static_cast<std::size_t>(rank)])
        out.spans.push_back({rank, step, action, {}, {}});
    }
  }
  return out;
}

/// The error of the first rank that does not run its list in steps 4 and 5.
std::optional<std::string> found(const Timeline& timeline) {
  for (int rank = 0; rank < 3; ++rank) {
    OrderCheck check(BoundPlan(plan()), lists()[static_cast<std::size_t>(rank)], rank, 4);
    for (const Span& span : timeline.spans) {
      if (span.rank != rank) continue;
      if (auto wrong = check.next(span)) return wrong;
    }
    if (auto wrong = check.end(2)) return wrong;
  }
  return std::nullopt;
}

TEST(OrderCheck, FindsNothingWhereEveryRankDidAsItsListSays) { EXPECT_EQ(found(measured()), std::nullopt); }

TEST(OrderCheck, NamesRankStepEntryAndBothActionsOfASwap) {
  Timeline timeline = measured();
  std::swap(timeline.spans[19 + 1].action, timeline.spans[19 + 2].action);  // the sends of rank 0 in step 5
  EXPECT_EQ(found(timeline), "rank 0, step 6, entry 2: measured \"0SEND_F0 to stage 2\", the list has \"0SEND_F0\"");
}

TEST(OrderCheck, NamesWhatIsMissing) {
  Timeline timeline = measured();
  timeline.spans.erase(timeline.spans.begin() + 6);  // rank 1's first wait
  EXPECT_EQ(found(timeline), "rank 1, step 5, entry 1: measured \"1F0\", the list has \"1RECV_F0\"");
  timeline = measured();
  timeline.spans.pop_back();
  EXPECT_EQ(found(timeline), "rank 2, step 6, entry 7: measured nothing, the list has \"2UPDATE\"");
  timeline.spans.resize(19);
  EXPECT_EQ(found(timeline), "rank 0, step 6, entry 1: measured nothing, the list has \"0F0\"");
}

TEST(OrderCheck, NamesWhatIsExtra) {
  Timeline timeline = measured();
  timeline.spans.push_back(timeline.spans.front());
  EXPECT_EQ(found(timeline), "rank 0, step 7, entry 1: measured \"0F0\" in step 5");
  timeline.spans.back().action.kind = U;
  EXPECT_EQ(found(timeline), "rank 0, step 7, entry 1: measured \"0UPDATE0\", the list has \"0F0\"");
}

TEST(OrderCheck, FollowsAnAsynchronousListToItsOneEnd) {
  Plan asynchronous = plan();
  asynchronous.schedule = "pipedream";
  const std::vector<Action> list{{F, 0, 0, -1}, {F, 0, 1, -1}};
  OrderCheck check(BoundPlan(asynchronous), list, 0);
  EXPECT_EQ(check.next({0, 0, list[0], {}, {}}), std::nullopt);
  EXPECT_EQ(check.end(1), "rank 0, step 1, entry 2: measured nothing, the list has \"0F1\"");
  EXPECT_EQ(check.next({0, 1, list[1], {}, {}}), std::nullopt);
  EXPECT_EQ(check.end(1), std::nullopt);
  EXPECT_EQ(check.next({0, 1, list[0], {}, {}}), "rank 0: measured \"0F0\" after the end of its list");
}

TEST(OrderCheck, NamesASpanOfAnotherStep) {
  Timeline timeline = measured();
  timeline.spans[0].step = 5;
  EXPECT_EQ(found(timeline), "rank 0, step 5, entry 1: measured \"0F0\" in step 6");
}

}  // namespace

}  // namespace stagecraft
