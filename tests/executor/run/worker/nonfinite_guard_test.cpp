#include "executor/run/worker/nonfinite_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft::run {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Told {
  explicit Told(stage::OnNonfinite what) {
    guard.set(what, [this](const std::string& text) { texts.push_back(text); });
  }
  NonfiniteGuard guard{3};
  std::vector<std::string> texts;
};

TEST(NonfiniteGuard, StopsUnlessItIsToldOtherwise) {
  NonfiniteGuard guard(3);
  EXPECT_FALSE(guard.skips_steps());
  // Steps count from 0 but are reported from 1.
  EXPECT_THAT([&] { guard.found(6, "the loss"); },
              ThrowsMessage<stage::NonfiniteError>(AllOf(HasSubstr("step 7"), HasSubstr("the loss"))));
  EXPECT_EQ(guard.steps(), 0);
}

TEST(NonfiniteGuard, StoppingTellsByItsErrorAlone) {
  Told told(stage::OnNonfinite::Stop);
  EXPECT_THROW(told.guard.found(0, "the loss"), stage::NonfiniteError);
  EXPECT_THAT(told.texts, ElementsAre());
}

TEST(NonfiniteGuard, WarnsOncePerStepAndCountsTheSteps) {
  Told told(stage::OnNonfinite::Warn);
  told.guard.found(0, "the loss");
  told.guard.found(0, "a gradient");
  told.guard.found(2, "a gradient");
  EXPECT_THAT(told.texts, ElementsAre(AllOf(HasSubstr("rank 3"), HasSubstr("step 1"), HasSubstr("the loss")),
                                      AllOf(HasSubstr("rank 3"), HasSubstr("step 3"), HasSubstr("a gradient"))));
  EXPECT_EQ(told.guard.steps(), 2);
  EXPECT_FALSE(told.guard.skips_steps());
}

TEST(NonfiniteGuard, CountsASkippedStepOnceAllRanksKnow) {
  Told told(stage::OnNonfinite::Skip);
  EXPECT_TRUE(told.guard.skips_steps());
  told.guard.found(4, "the loss");
  EXPECT_EQ(told.guard.steps(), 0) << "not yet skipped";
  told.guard.count_skipped();
  told.guard.count_skipped();  // found by another rank
  EXPECT_EQ(told.guard.steps(), 2);
  EXPECT_EQ(told.texts.size(), 1U);
}

TEST(NonfiniteGuard, KnowsTheStepInWhichItFoundSomething) {
  Told told(stage::OnNonfinite::Warn);
  EXPECT_FALSE(told.guard.found_in(0));
  told.guard.found(4, "the loss");
  EXPECT_TRUE(told.guard.found_in(4));
  EXPECT_FALSE(told.guard.found_in(5));
}

TEST(NonfiniteGuard, NeedsNobodyToTell) {
  NonfiniteGuard guard(0);
  guard.set(stage::OnNonfinite::Warn, nullptr);
  guard.found(0, "the loss");
  EXPECT_EQ(guard.steps(), 1);
}

}  // namespace
}  // namespace stagecraft::run
