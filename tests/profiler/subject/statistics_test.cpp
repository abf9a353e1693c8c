#include "profiler/subject/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numbers>
#include <random>

namespace stagecraft::profiler {
namespace {

using ::testing::ThrowsMessage;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(Summarize, GivesMedianAndMedianAbsoluteDeviation) {
  // Around 3 the distances are 2 1 0 1 97; their median is 1, regardless of the outlier.
  const Timing timing = summarize({100, 1, 4, 2, 3});
  EXPECT_EQ(timing.median, Seconds(3));
  EXPECT_EQ(timing.spread, Seconds(1));
  EXPECT_EQ(timing.count, 5);
}

TEST(Summarize, TakesTheMeanOfTheMiddleTwo) {
  // The median is (3 + 4) / 2; the distances 2.5 1.5 0.5 0.5 1.5 6.5 have a median of 1.5.
  const Timing timing = summarize({1, 2, 3, 4, 5, 10});
  EXPECT_EQ(timing.median, Seconds(3.5));
  EXPECT_EQ(timing.spread, Seconds(1.5));
}

TEST(Summarize, OmitsTheSpreadOfFewSamples) {
  EXPECT_EQ(summarize({1, 2, 3, 4}).spread, std::nullopt);
  EXPECT_EQ(summarize({7}).median, Seconds(7));
}

TEST(Summarize, RefusesNoSamples) {
  EXPECT_THAT([] { (void)summarize({}); }, ThrowsMessage<std::invalid_argument>("no samples were taken"));
}

TEST(RelativeError, IsTheFormulaByHand) {
  // Median 3, MAD 1, n = 4 + 5: the other values are symmetric around 3.
  EXPECT_NEAR(relative_error({1, 2, 2, 2, 3, 4, 4, 4, 5}), 1.96 * 1.2533 * 1.4826 * 1 / (3 * 3), 1e-15);
}

TEST(RelativeError, IsHalfTheConfidenceIntervalOfNormalSamples) {
  // The median of n normally distributed samples has a standard deviation of sigma * sqrt(pi / 2 / n).
  constexpr int kSamples = 4000, kSeed = 5;
  std::mt19937 random(kSeed);
  std::normal_distribution<double> normal(10, 2);
  std::vector<double> samples;
  for (int i = 0; i < kSamples; ++i) samples.push_back(normal(random));
  const double expected = 1.96 * 2 * std::sqrt(std::numbers::pi / 2 / kSamples) / 10;
  EXPECT_NEAR(relative_error(samples) / expected, 1, 0.06) << "seed " << kSeed;
}

TEST(RelativeError, DoesNotDependOnTheUnit) {
  EXPECT_NEAR(relative_error({1, 2, 3, 5, 8}), relative_error({1e-6, 2e-6, 3e-6, 5e-6, 8e-6}), 1e-12);
}

TEST(RelativeError, IsInfiniteForFewSamples) { EXPECT_EQ(relative_error({1, 1, 1, 1}), kInfinity); }

TEST(RelativeError, IsZeroWithoutSpreadOrTime) {
  EXPECT_EQ(relative_error({2, 2, 2, 2, 2}), 0);
  EXPECT_EQ(relative_error({0, 0, 0, 0, 9}), 0);
}

const std::vector<double> kSteady(10, 1.0);
/// Median 1, MAD 0.5: an error of 0.57.
const std::vector<double> kNoisy{0.5, 1.5, 0.5, 1.5, 1, 1, 0.5, 1.5, 0.5, 1.5};

std::vector<double> scaled(std::vector<double> samples, double factor) {
  for (double& sample : samples) sample *= factor;
  return samples;
}

TEST(ShouldStop, StopsWhenAllIsPrecise) { EXPECT_EQ(should_stop({}, kSteady, {kSteady, kSteady}, 1), Stop::Precise); }

TEST(ShouldStop, NeverStopsWithTooFew) {
  const std::vector<double> nine(9, 1.0);
  EXPECT_EQ(should_stop({.fewest = 10}, nine, {nine}, 1), Stop::No);
  EXPECT_EQ(should_stop({.fewest = 10, .least = 10, .most_seconds = 20}, nine, {nine}, 1000), Stop::No);
  EXPECT_EQ(should_stop({.fewest = 10, .least = 9, .most_seconds = 20}, nine, {nine}, 1000), Stop::Time);
}

TEST(ShouldStop, StopsWhenTimeIsUp) {
  EXPECT_EQ(should_stop({.most_seconds = 20}, kNoisy, {}, 19.9), Stop::No);
  EXPECT_EQ(should_stop({.most_seconds = 20}, kNoisy, {}, 20), Stop::Time);
}

TEST(ShouldStop, ContinuesForANoisyIteration) { EXPECT_EQ(should_stop({}, kNoisy, {kSteady}, 1), Stop::No); }

TEST(ShouldStop, ContinuesForANoisyLayerAboveItsShare) {
  EXPECT_EQ(should_stop({.layer_share = 0.01}, kSteady, {kSteady, scaled(kNoisy, 0.011)}, 1), Stop::No);
}

TEST(ShouldStop, IgnoresANoisyLayerBelowItsShare) {
  EXPECT_EQ(should_stop({.layer_share = 0.01}, kSteady, {kSteady, scaled(kNoisy, 0.009)}, 1), Stop::Precise);
}

}  // namespace
}  // namespace stagecraft::profiler
