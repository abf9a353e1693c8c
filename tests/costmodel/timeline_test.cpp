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

}  // namespace
}  // namespace stagecraft
