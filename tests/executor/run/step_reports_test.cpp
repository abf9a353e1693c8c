#include "executor/run/step_reports.h"

#include <gtest/gtest.h>

namespace stagecraft::run {
namespace {

TEST(StepClock, GivesTheTimesOfStepsWithoutThePausesBetweenThem) {
  double now = 0;
  const std::function<double()> clock = [&] { return now; };
  StepClock steps(clock, 5);
  now = 10;
  steps.begin();
  now = 12;
  steps.end_until(6);
  EXPECT_EQ(steps.time_of(5), Seconds(2));
  steps.pause_before(6, Seconds(1.5));  // from 12 to 13.5
  now = 14;
  steps.end_until(7);
  EXPECT_EQ(steps.time_of(5), Seconds(2));
  EXPECT_EQ(steps.time_of(6), Seconds(0.5));
}

// A rank without a microbatch of a step notices its end with that of the next one.
TEST(StepClock, EndsSeveralStepsAtOnceAndNoneTwice) {
  double now = 1;
  const std::function<double()> clock = [&] { return now; };
  StepClock steps(clock, 0);
  steps.begin();
  now = 4;
  steps.end_until(3);
  now = 9;
  steps.end_until(3);
  EXPECT_EQ(steps.time_of(0), Seconds(3));
  EXPECT_EQ(steps.time_of(1), Seconds(0));
  EXPECT_EQ(steps.time_of(2), Seconds(0));
  steps.end_until(4);
  EXPECT_EQ(steps.time_of(3), Seconds(5));
}

}  // namespace
}  // namespace stagecraft::run
