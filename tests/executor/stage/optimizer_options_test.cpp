#include "executor/stage/optimizer_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace stagecraft::stage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::vector<std::string> kNames{"0.conv.weight", "0.conv.bias", "0.norm.weight", "head.weight"};

TEST(ParameterGroups, AreReadAndWritten) {
  const ParameterGroup group = parse_group("(?:bias|norm):weight_decay=0,lr=1e-3,lr-factor=0.5");
  EXPECT_EQ(group.pattern, "(?:bias|norm)");
  EXPECT_EQ(group.weight_decay, 0);
  EXPECT_EQ(group.learning_rate, 1e-3);
  EXPECT_EQ(group.rate_factor, 0.5);
  EXPECT_EQ(group_text(group), "(?:bias|norm):weight-decay=0,learning-rate=0.001,learning-rate-factor=0.5");
  EXPECT_FALSE(parse_group("bias:lr-factor=0").weight_decay);
}

TEST(ParameterGroups, SayWhatIsWrong) {
  const auto refused = [](const std::string& text, const std::string& why) {
    EXPECT_THAT([&] { (void)parse_group(text); }, ThrowsMessage<std::invalid_argument>(HasSubstr(why))) << text;
  };
  for (const char* text : {"bias", ":weight-decay=0", "bias:", ""}) refused(text, "expected PATTERN:SETTING=VALUE");
  refused("bias:momentum=0",
          "unknown setting \"momentum\", known are weight-decay, learning-rate, learning-rate-factor");
  refused("bias:weight-decay", "weight-decay is \"\", must be a number from 0 to 1e6");
  refused("bias:weight-decay=-1", "weight-decay is \"-1\"");
  refused("bias:lr=nan", "learning-rate is \"nan\"");
  refused("bias:lr=1,learning-rate=2", "learning-rate is set twice");
  refused("(bias:lr=1", "\"(bias\" is not a regular expression");
}

TEST(ParameterGroups, HaveTheParametersThatNoEarlierOneHas) {
  const std::vector<ParameterGroup> groups{parse_group("bias|norm:lr=1"), parse_group("^0\\.:lr=1")};
  EXPECT_THAT(groups_of(groups, kNames), ElementsAre(1, 0, 0, 2));
  EXPECT_NO_THROW(check_groups(groups, kNames));
  EXPECT_THAT([&] { check_groups({parse_group("Bias:lr=1")}, kNames); },
              ThrowsMessage<std::invalid_argument>("group \"Bias\" matches no parameter; the model has 0.conv.bias, "
                                                   "0.conv.weight, 0.norm.weight, head.weight"));
  EXPECT_THAT([&] { check_groups({parse_group("conv:lr=1"), parse_group("bias:lr=1")}, kNames); },
              ThrowsMessage<std::invalid_argument>(HasSubstr("earlier groups have all that match")));
}

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
