#include "costmodel/accuracy/steadiness.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace stagecraft {
namespace {

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
