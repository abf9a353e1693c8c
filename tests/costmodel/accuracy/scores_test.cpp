#include "costmodel/accuracy/scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <stdexcept>

// Expected numbers by hand.

namespace stagecraft {
namespace {

Scored run(double predicted, double measured, int group = 0) {
  return {.predicted = Seconds(predicted), .low = {}, .high = {}, .measured = Seconds(measured), .group = group};
}

TEST(Quantile, IsLinearBetweenNeighbours) {
  // Places 0 to 3 of four values: 0.9 lies at 2.7.
  EXPECT_NEAR(quantile({4, 1, 3, 2}, 0.9), 3.7, 1e-12);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 0), 1);
  EXPECT_EQ(quantile({4, 1, 3, 2}, 1), 4);
  EXPECT_EQ(quantile({7}, 0.5), 7);
  EXPECT_THROW((void)quantile({}, 0.5), std::invalid_argument);
  EXPECT_THROW((void)quantile({1}, 1.5), std::invalid_argument);
}

TEST(ErrorScores, OfFourRuns) {
  // Errors 0.1, -0.2, 0.3, 0; sizes 0, 0.1, 0.2, 0.3; the 90th percentile lies 0.7 of the way from 0.2 to 0.3.
  const ErrorScores e = error_scores(std::vector{run(1.1, 1), run(0.8, 1), run(2.6, 2), run(5, 5)});
  EXPECT_EQ(e.n, 4U);
  EXPECT_NEAR(e.median, 0.15, 1e-12);
  EXPECT_NEAR(e.mean, 0.15, 1e-12);
  EXPECT_NEAR(e.p90, 0.27, 1e-12);
  EXPECT_NEAR(e.largest, 0.3, 1e-12);
  EXPECT_NEAR(e.bias, 0.05, 1e-12);
  EXPECT_EQ(error_scores({}), ErrorScores{});
}

TEST(OrderScores, CountsPairsInsideGroups) {
  // Group 0: predicted 1 < 2 < 3, measured 4, 3, 5: one of three pairs is wrong; the predicted best takes 4, the
  // best 3. Group 1: one pair, right, no regret. The single run of group 2 does not count.
  const OrderScores o =
      order_scores(std::vector{run(1, 4), run(2, 3), run(3, 5), run(1, 2, 1), run(2, 4, 1), run(9, 1, 2)});
  EXPECT_EQ(o.pairs, 4U);
  EXPECT_EQ(o.right, 3U);
  EXPECT_NEAR(o.tau.value(), 0.5, 1e-12);
  EXPECT_NEAR(o.mean_regret.value(), 1.0 / 6, 1e-12);
  EXPECT_NEAR(o.largest_regret.value(), 1.0 / 3, 1e-12);
}

TEST(OrderScores, TiesAreNoPairs) {
  const OrderScores o = order_scores(std::vector{run(1, 2), run(1, 3), run(2, 3)});
  EXPECT_EQ(o.pairs, 1U);  // of the first and the last
  EXPECT_EQ(o.right, 1U);
  EXPECT_FALSE(order_scores({}).tau.has_value());
}

TEST(OrderScores, LeavesOutPairsWithinTheNoise) {
  // Measured 4, 5 and 8: ratios 1.25, 2 and 1.6. Predicted 2, 1 and 3: the first pair is wrong, the others right. A
  // pair counts above 1 + noise: a ratio of 1.25 is not above 1.25.
  const std::vector runs{run(2, 4), run(1, 5), run(3, 8)};
  EXPECT_NEAR(order_scores(runs, 0.24).tau.value(), 1.0 / 3, 1e-12);
  const OrderScores o = order_scores(runs, 0.25);
  EXPECT_EQ(o.pairs, 2U);
  EXPECT_EQ(o.right, 2U);
  EXPECT_EQ(o.tau, 1.0);
  EXPECT_NEAR(o.largest_regret.value(), 0.25, 1e-12);  // 5 / 4 - 1, as without noise
  EXPECT_FALSE(order_scores(runs, 1).tau.has_value());
}

TEST(OrderScores, RefusesNoiseOutsideZeroToOne) {
  EXPECT_THROW((void)order_scores({}, -0.1), std::invalid_argument);
  EXPECT_THROW((void)order_scores({}, std::numeric_limits<double>::quiet_NaN()), std::invalid_argument);
  EXPECT_THROW((void)order_scores({}, std::numeric_limits<double>::infinity()), std::invalid_argument);
}

TEST(CoverageScores, CountsRunsWithAnInterval) {
  Scored inside = run(1, 1);
  inside.low = 0.9_s;
  inside.high = 1.1_s;  // half-width 0.2 / 2 = 0.1
  Scored outside = run(2, 4);
  outside.low = 1_s;
  outside.high = 3_s;  // half-width 0.5
  const CoverageScores c = coverage_scores(std::vector{inside, outside, run(1, 1)});
  EXPECT_EQ(c.n, 2U);
  EXPECT_NEAR(c.inside, 0.5, 1e-12);
  EXPECT_NEAR(c.half_width, 0.3, 1e-12);
  EXPECT_EQ(coverage_scores({}), CoverageScores{});
}

TEST(ConformalHalfWidth, TakesTheRankAboveTheShare) {
  std::vector<double> residuals;
  for (int i = 1; i <= 19; ++i) residuals.push_back(i % 2 == 0 ? i : -i);
  EXPECT_EQ(conformal_half_width(residuals, 0.9), 18);  // ceil(20 * 0.9)
}

TEST(ConformalHalfWidth, StretchesTheLargestOfFew) {
  EXPECT_NEAR(conformal_half_width({1, -2, 0.5, 1.5}, 0.9), 2 * std::sqrt(5.0 / 4), 1e-12);  // rank 5 of 4
  EXPECT_THROW((void)conformal_half_width({}, 0.9), std::invalid_argument);
}

}  // namespace
}  // namespace stagecraft
