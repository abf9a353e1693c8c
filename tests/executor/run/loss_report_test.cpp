#include "executor/run/loss_report.h"

#include <gtest/gtest.h>

namespace stagecraft::run {
namespace {

TEST(LossReport, GivesTheMeanOfAStep) {
  LossReport report(/*evaluates=*/false, std::nullopt);
  EXPECT_EQ(report.add({1, 2, 6}), 3);
  EXPECT_EQ(report.add({4}), 4) << "each step on its own";
  EXPECT_FALSE(report.evaluation());
}

TEST(LossReport, WeighsEachMicrobatchOfAnEvaluationTheSame) {
  LossReport report(/*evaluates=*/true, std::nullopt);
  EXPECT_EQ(report.evaluation()->microbatches, 0);
  (void)report.add({1, 2, 6});
  (void)report.add({3});
  EXPECT_EQ(report.evaluation()->microbatches, 4);
  EXPECT_EQ(report.evaluation()->loss, 12.0 / 4) << "not the mean of the steps' means";
}

TEST(LossReport, LeavesOutMicrobatchesPastTheEndOfTheData) {
  LossReport report(/*evaluates=*/true, WholePass{.microbatches = 5, .steps = 2});
  EXPECT_EQ(report.add({1, 2, 6}), 3);
  EXPECT_EQ(report.add({4, 2, 1000}), 3) << "the third begins the next pass";
  EXPECT_EQ(report.evaluation()->microbatches, 5);
  EXPECT_EQ(report.evaluation()->loss, 15.0 / 5);
}

TEST(LossReport, TrainingContinuesPastTheEndOfTheData) {
  LossReport report(/*evaluates=*/false, WholePass{.microbatches = 2, .steps = 1});
  EXPECT_EQ(report.add({1, 2, 6}), 3);
}

}  // namespace
}  // namespace stagecraft::run
