#include "costmodel/timeline.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace stagecraft {
namespace {

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

}  // namespace
}  // namespace stagecraft
