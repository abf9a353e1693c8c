#include "executor/stage/rate_schedule.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace stagecraft::stage {
namespace {

TEST(RateFactor, RisesEvenlyOverTheWarmUp) {
  const RateSchedule schedule{.warmup = 4};
  EXPECT_EQ(rate_factor(schedule, 0), 0.25);
  EXPECT_EQ(rate_factor(schedule, 1), 0.5);
  EXPECT_EQ(rate_factor(schedule, 3), 1);
  EXPECT_EQ(rate_factor(schedule, 1000), 1);
}

TEST(RateFactor, FollowsHalfACosineToTheLastRate) {
  const RateSchedule schedule{.name = "cosine", .warmup = 2, .steps = 10, .last = 0.2};
  EXPECT_EQ(rate_factor(schedule, 0), 0.5);
  EXPECT_EQ(rate_factor(schedule, 2), 1);                                  // x = 0
  EXPECT_NEAR(rate_factor(schedule, 4), 0.2 + 0.8 * 0.85355339059, 1e-9);  // x = 1/4: (1 + cos 45 deg) / 2
  EXPECT_NEAR(rate_factor(schedule, 6), 0.6, 1e-15);                       // half way
  EXPECT_EQ(rate_factor(schedule, 10), 0.2);
  EXPECT_EQ(rate_factor(schedule, 99), 0.2);
}

TEST(RateSchedule, IsRefusedWithWhatWouldBeRight) {
  const auto refusal = [](const RateSchedule& schedule) -> std::string {
    try {
      validate(schedule);
    } catch (const std::invalid_argument& error) { return error.what(); }
    return "";
  };
  EXPECT_EQ(refusal({.name = "sine"}),
            "unknown rate schedule \"sine\", known are constant, linear, "
            "polynomial, cosine, step, exponential, one-cycle, plateau");
  EXPECT_EQ(refusal({.warmup = -1}), "the warm-up is -1 steps, must be at least 0");
  EXPECT_EQ(refusal({.last = 1.5}), "the last rate is 1.500000 of the full one, must be 0 to 1");
  EXPECT_EQ(refusal({.name = "cosine", .warmup = 5, .steps = 5}),
            "schedule cosine over 5 steps with a warm-up of 5: the run must be longer than the warm-up");
  EXPECT_EQ(refusal({.name = "cosine", .steps = 1}), "");
}

TEST(RateFactor, FallsInAStraightLineAfterTheWarmUp) {
  const RateSchedule schedule{.name = "linear", .warmup = 2, .steps = 10, .last = 0.2};
  EXPECT_EQ(rate_factor(schedule, 0), 0.5);
  EXPECT_EQ(rate_factor(schedule, 1), 1) << "the end of the warm-up";
  EXPECT_EQ(rate_factor(schedule, 2), 1);
  EXPECT_DOUBLE_EQ(rate_factor(schedule, 6), 0.6);
  EXPECT_DOUBLE_EQ(rate_factor(schedule, 10), 0.2);
  EXPECT_DOUBLE_EQ(rate_factor(schedule, 99), 0.2);
}

TEST(RateFactor, FallsWithAPower) {
  const RateSchedule schedule{.name = "polynomial", .steps = 10, .last = 0.5, .power = 2};
  EXPECT_EQ(rate_factor(schedule, 0), 1);
  EXPECT_DOUBLE_EQ(rate_factor(schedule, 5), 0.5 + 0.5 * 0.25);
  EXPECT_EQ(rate_factor(schedule, 10), 0.5);
}

TEST(RateFactor, DropsEveryNSteps) {
  const RateSchedule schedule{.name = "step", .warmup = 1, .every = 3, .gamma = 0.5};
  EXPECT_EQ(rate_factor(schedule, 3), 1);
  EXPECT_EQ(rate_factor(schedule, 4), 0.5);
  EXPECT_EQ(rate_factor(schedule, 7), 0.25);
}

TEST(RateFactor, RisesOnceAndFalls) {
  // Rises for half of 8 steps, until step 3, from 1/4; falls until step 7, to 1/20.
  const RateSchedule schedule{
      .name = "one-cycle", .steps = 8, .rise = 0.5, .first_divisor = 4, .last_divisor = 5, .anneal = "linear"};
  EXPECT_EQ(rate_factor(schedule, 0), 0.25);
  EXPECT_DOUBLE_EQ(rate_factor(schedule, 1), 0.5);
  EXPECT_EQ(rate_factor(schedule, 3), 1);
  EXPECT_DOUBLE_EQ(rate_factor(schedule, 5), (1 + 0.05) / 2);
  EXPECT_NEAR(rate_factor(schedule, 7), 0.05, 1e-15);
  EXPECT_NEAR(rate_factor(schedule, 50), 0.05, 1e-15);
}

}  // namespace
}  // namespace stagecraft::stage
