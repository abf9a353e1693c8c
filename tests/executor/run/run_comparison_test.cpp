#include "executor/run/run_comparison.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/models/planned_models.h"

namespace stagecraft::run {
namespace {

using ::testing::ThrowsMessage;

const testing::PlannedModel& mlp() {
  static const testing::PlannedModel planned = testing::planned_model("mlp", {{"inputs", "12"}, {"width", "16"}}, 3);
  return planned;
}

/// A comparison of a run with two stages under this schedule.
void compare_under(const std::string& schedule, const RunOptions& options) {
  const BoundPlan plan(testing::cut_plan(mlp(), {3}, {1, 1}, schedule, 4));
  const BoundModel bound = bind_model(plan, mlp().model);
  RunComparison(bound, *mlp().data, options);
}

TEST(RunComparison, RefusesSchedulesWithoutGradientsOfAStep) {
  RunOptions checks;
  checks.check = true;
  RunOptions expects;
  expects.expected = "record.safetensors";
  for (const RunOptions& options : {checks, expects}) {
    for (const std::string schedule : {"forward", "pipedream", "pipedream-2bw"}) {
      EXPECT_THAT([&] { compare_under(schedule, options); },
                  ThrowsMessage<std::invalid_argument>("--check and --expect compare the gradients of a step; schedule "
                                                       "\"" +
                                                       schedule + "\" has none to compare"));
    }
  }
}

TEST(RunComparison, HasNothingToCompareUnlessAsked) {
  const BoundPlan plan(testing::cut_plan(mlp(), {3}, {1, 1}, "1f1b", 4));
  const BoundModel bound = bind_model(plan, mlp().model);
  RunComparison none(bound, *mlp().data, {});
  EXPECT_FALSE(none.active());
  EXPECT_EQ(none.reference(), nullptr);
  RunOptions options;
  options.check = true;
  RunComparison checks(bound, *mlp().data, options);
  EXPECT_TRUE(checks.active());
  EXPECT_NE(checks.reference(), nullptr);
  for (const std::string schedule : {"forward", "pipedream"}) compare_under(schedule, {});
}

}  // namespace
}  // namespace stagecraft::run
