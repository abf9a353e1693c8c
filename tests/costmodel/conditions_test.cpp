#include "costmodel/conditions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace stagecraft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

YardstickTimes times(const std::string& work, double median) {
  const Seconds t(median);
  return {work, t, t, t, t, t, 2};
}

TEST(IsCrowded, OnlyWhereOthersLeaveTooFewProcessors) {
  EXPECT_FALSE(is_crowded({.ours = 2, .others = 0.05, .count = 2}));  // no other programs
  EXPECT_TRUE(is_crowded({.ours = 1.4, .others = 0.6, .count = 2}));
  EXPECT_FALSE(is_crowded({.ours = 2, .others = 30, .count = 64}));  // enough processors left
  EXPECT_TRUE(is_crowded({.ours = 2, .others = 61, .count = 64}));
}

TEST(CrowdedReasons, NameTheHostsThatOthersKeptBusy) {
  Conditions conditions;
  EXPECT_THAT(crowded_reasons(conditions, "the ranks"), IsEmpty());
  conditions.hosts = {{1.25, 0.75, 2}};
  const std::string reason = "other programs kept 0.8 of 2 processors busy, the ranks 1.2: measure on a quiet machine";
  EXPECT_THAT(crowded_reasons(conditions, "the ranks"), ElementsAre(reason));
  conditions.hosts.insert(conditions.hosts.begin(), {1, 0, 2});
  EXPECT_THAT(crowded_reasons(conditions, "the ranks"), ElementsAre("host 1: " + reason));
}

// The product takes 1.21 times as long, the copy as long as before: sqrt(1.21 * 1) = 1.1.
TEST(DriftBetween, IsTheGeometricMeanOfTheWorksInCommon) {
  const Yardstick earlier{"a processor", 1, {times("product", 1), times("copy", 3), times("only here", 5)}};
  const Yardstick later{"a processor", 1, {times("copy", 3), times("product", 1.21)}};
  const auto result = drift_between(earlier, later);
  ASSERT_TRUE(std::holds_alternative<Drift>(result));
  const Drift& drift = std::get<Drift>(result);
  EXPECT_NEAR(drift.factor, 1.1, 1e-12);
  EXPECT_THAT(drift.works, ElementsAre(WorkDrift{"product", 1.21}, WorkDrift{"copy", 1}));
  EXPECT_EQ(drift_text(drift), "10.0 % slower (product +21.0 %, copy +0.0 %)");
  const auto back = std::get<Drift>(drift_between(later, earlier));
  EXPECT_NEAR(back.factor * drift.factor, 1, 1e-12);
  EXPECT_EQ(drift_text(back), "9.1 % faster (copy +0.0 %, product -17.4 %)");  // 1 - 1/1.1, 1 - 1/1.21
}

TEST(DriftBetween, ComparesOnlyTheSameWorkOnTheSameDevice) {
  const Yardstick first{"a processor", 1, {times("product", 1)}};
  const auto reason = [&](const Yardstick& second) {
    return std::get<Infeasible>(drift_between(first, second)).reason;
  };
  EXPECT_EQ(reason({"another", 1, first.works}), "the yardsticks are of \"a processor\" and of \"another\"");
  EXPECT_EQ(reason({"a processor", 2, first.works}), "the yardsticks used 1 and 2 threads");
  EXPECT_EQ(reason({"a processor", 1, {times("copy", 1)}}), "the yardsticks have no work in common");
}

TEST(WidestRange, IsOfTheWorkWhoseReadingsDifferMost) {
  Yardstick yardstick{"a processor", 1, {times("product", 1), times("copy", 4)}};
  EXPECT_EQ(widest_range(yardstick).ratio, 1);
  yardstick.works[0].slowest = 1.25_s;  // 1.25 / 1
  yardstick.works[1].fastest = 3.5_s;   // 4 / 3.5 = 1.14
  EXPECT_EQ(widest_range(yardstick), (WorkDrift{"product", 1.25}));
}

YardstickTimes work(const std::string& name, double fastest, double slowest, int readings) {
  return {name, Seconds(fastest), Seconds(slowest), Seconds(fastest), Seconds(fastest), Seconds(slowest), readings};
}

// d2(2) is 2 / sqrt(pi), the mean distance of two normal values; d2(3) is 3 / sqrt(pi).
TEST(SpeedSpread, DividesTheRangeByItsMean) {
  const double root = std::sqrt(std::acos(-1.0));
  EXPECT_NEAR(speed_spread({"cpu", 1, {work("product", 1, 1.2, 2)}}), std::log(1.2) * root / 2, 1e-4);
  EXPECT_NEAR(speed_spread({"cpu", 1, {work("product", 1, 1.2, 3)}}), std::log(1.2) * root / 3, 1e-4);
  EXPECT_EQ(speed_spread({"cpu", 1, {work("product", 1, 1, 1)}}), 0);
}

TEST(SpeedSpread, IsThatOfTheWorkThatChangedMost) {
  const YardstickTimes product = work("product", 1, 1.3, 5);
  EXPECT_EQ(speed_spread({"cpu", 1, {product, work("copy", 1, 1.1, 5)}}), speed_spread({"cpu", 1, {product}}));
}

// Drawn values: on average the estimate is their deviation, whatever their number. Of 30 values the range is 4 % larger
// than that of 25, for which it is divided.
TEST(SpeedSpread, IsTheDeviationOfDrawnSpeeds) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(0, 0.1);
  for (const int readings : {2, 5, 12, 25, 30}) {
    double sum = 0;
    constexpr int kDrawn = 4000;
    for (int i = 0; i < kDrawn; ++i) {
      double fastest = std::numeric_limits<double>::infinity();
      double slowest = 0;
      for (int k = 0; k < readings; ++k) {
        const double time = std::exp(normal(random));
        fastest = std::min(fastest, time);
        slowest = std::max(slowest, time);
      }
      sum += speed_spread({"cpu", 1, {work("product", fastest, slowest, readings)}});
    }
    EXPECT_NEAR(sum / kDrawn, 0.1, readings <= 25 ? 0.003 : 0.007) << readings;
  }
}

TEST(UnsteadyText, NamesTheWorkThatChangedMost) {
  Conditions conditions;
  EXPECT_EQ(unsteady_text(conditions), "");
  conditions.yardstick = Yardstick{"cpu", 1, {work("product", 1, 1.25, 5), work("copy", 1, 1.1, 5)}};
  EXPECT_EQ(unsteady_text(conditions), "");
  conditions.yardstick->works.push_back(work("copy", 1, 1.4, 5));
  EXPECT_EQ(
      unsteady_text(conditions),
      "the device's speed changed while it was measured: the slowest copy took 1.40 times as long as the fastest");
}

}  // namespace
}  // namespace stagecraft
