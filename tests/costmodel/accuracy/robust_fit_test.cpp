#include "costmodel/accuracy/robust_fit.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <stdexcept>

// Expected numbers by hand.

namespace stagecraft {
namespace {

TEST(RobustFactors, ShrinksHalfWayIfNoiseAndPriorAreEqual) {
  // Predicted 1, measured e^0.04: least (0.04 - x)^2 / 0.05^2 + x^2 / 0.05^2 has x = 0.02.
  const auto f =
      robust_factors(std::vector<FitRow>{{0, {1}, std::exp(0.04)}}, std::vector<FactorPrior>{{0.05}}, {.noise = 0.05});
  EXPECT_NEAR(std::log(f.at(0)), 0.02, 1e-9);
}

TEST(RobustFactors, PullOfAnOutlierIsBounded) {
  // Beyond 1.345 noise the pull is 1.345 / 0.05 whatever the size: x / 0.05^2 = 1.345 / 0.05, x = 1.345 * 0.05.
  for (const double size : {0.5, 1.0, 3.0}) {
    const auto f = robust_factors(std::vector<FitRow>{{0, {1}, std::exp(size)}}, std::vector<FactorPrior>{{0.05}},
                                  {.noise = 0.05});
    EXPECT_NEAR(std::log(f.at(0)), 1.345 * 0.05, 1e-6) << size;
  }
}

TEST(RobustFactors, KeepsAFactorThatNoRowDependsOn) {
  const auto f = robust_factors(std::vector<FitRow>{{0, {1, 0}, 1.5}}, std::vector<FactorPrior>{{0.1}, {0.1}});
  EXPECT_EQ(f.at(1), 1.0);
  EXPECT_EQ(robust_factors({}, std::vector<FactorPrior>{{0.1}}), std::vector<double>{1.0});
}

TEST(RobustFactors, DistinguishesMechanismsAndIgnoresABadRow) {
  // 60 rows of two mechanisms in random proportions, times 1.1 and 3, every tenth doubled by other work.
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  std::uniform_real_distribution<double> amount(0.1, 1);
  std::vector<FitRow> rows;
  for (int i = 0; i < 60; ++i) {
    FitRow row{0.05, {amount(random), amount(random)}, 0};
    row.measured = (row.fixed + 1.1 * row.parts[0] + 3 * row.parts[1]) * (i % 10 == 0 ? 2 : 1);
    rows.push_back(row);
  }
  const auto f = robust_factors(rows, std::vector<FactorPrior>{{1}, {1}});
  EXPECT_NEAR(f.at(0), 1.1, 0.05) << "seed " << kSeed;
  EXPECT_NEAR(f.at(1), 3, 0.1) << "seed " << kSeed;
}

TEST(RobustFactors, RefusesBadRows) {
  const std::vector<FactorPrior> prior{{0.1}};
  EXPECT_THROW((void)robust_factors(std::vector<FitRow>{{0, {1, 2}, 1}}, prior), std::invalid_argument);
  EXPECT_THROW((void)robust_factors(std::vector<FitRow>{{0, {0}, 1}}, prior), std::invalid_argument);
  EXPECT_THROW((void)robust_factors(std::vector<FitRow>{{0, {-1}, 1}}, prior), std::invalid_argument);
  EXPECT_THROW((void)robust_factors(std::vector<FitRow>{{0, {1}, 0}}, prior), std::invalid_argument);
  EXPECT_THROW((void)robust_factors({}, std::vector<FactorPrior>{{0}}), std::invalid_argument);
}

TEST(Fitted, IsTheSum) { EXPECT_EQ(fitted({1, {2, 3}, 1}, std::vector<double>{10, 100}), 321); }

}  // namespace
}  // namespace stagecraft
