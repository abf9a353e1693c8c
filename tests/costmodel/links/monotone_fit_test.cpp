#include "costmodel/links/monotone_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "costmodel/format/files/files.h"
#include "tests/support/places.h"

namespace stagecraft {
namespace {

using ::testing::ElementsAre;

/// Times at 1, 2, 3, ... bytes.
Curve curve_of(const std::vector<double>& seconds) {
  Curve out;
  for (const double median : seconds)
    out.points.push_back({Bytes(static_cast<std::int64_t>(out.points.size()) + 1), Seconds(median)});
  return out;
}

std::vector<double> times_of(const Curve& curve) {
  std::vector<double> out;
  for (const CurvePoint& point : curve.points) out.push_back(point.time.value);
  return out;
}

TEST(FitMonotone, LeavesACurveThatDoesNotFall) {
  const MonotoneFit fit = fit_monotone(curve_of({1, 1, 2, 5}));
  EXPECT_THAT(times_of(fit.curve), ElementsAre(1, 1, 2, 5));
  EXPECT_EQ(fit.moved, 0);
  EXPECT_EQ(moved_text(fit), "");
}

// 9 and 2 fall: the lower of both is 2. A slow first measurement beside three fast ones counts as one of four.
TEST(FitMonotone, TakesTheLowerMedianOfTimesThatFall) {
  EXPECT_THAT(times_of(fit_monotone(curve_of({1, 9, 2, 10})).curve), ElementsAre(1, 2, 2, 10));
  EXPECT_THAT(times_of(fit_monotone(curve_of({12, 1, 2, 3})).curve), ElementsAre(1, 1, 2, 3));
  EXPECT_THAT(times_of(fit_monotone(curve_of({5, 3, 4})).curve), ElementsAre(3, 3, 4));
  EXPECT_THAT(times_of(fit_monotone(curve_of({5, 4, 3})).curve), ElementsAre(4, 4, 4));
}

// 9 became 2: 2 / 9 - 1 = -77.8 %.
TEST(FitMonotone, SaysHowFarItMovedTimes) {
  const MonotoneFit fit = fit_monotone(curve_of({1, 9, 2, 10}));
  EXPECT_EQ(fit.moved, 1);
  EXPECT_DOUBLE_EQ(fit.furthest, 7.0 / 9);
  EXPECT_EQ(fit.furthest_bytes, 2_B);
  EXPECT_EQ(moved_text(fit),
            "adjusted 1 of 4 times, by up to 77.8 % (at 2 bytes), so that the curve does not decrease");
}

/// Sum of |log(fit / measured)|.
double distance(const std::vector<double>& fit, const std::vector<double>& measured) {
  double out = 0;
  for (std::size_t i = 0; i < fit.size(); ++i) out += std::abs(std::log(fit[i] / measured[i]));
  return out;
}

/// Calls visit(curve) for each curve that does not fall and has only times of `values`, ascending.
void visit_curves(const std::vector<double>& values, std::vector<double>& curve, std::size_t at, const auto& visit) {
  if (at == curve.size()) return visit(curve);
  for (const double value : values) {
    if (at > 0 && value < curve[at - 1]) continue;
    curve[at] = value;
    visit_curves(values, curve, at + 1, visit);
  }
}

// A median is one of the times, so a best curve is among those that consist of measured times.
TEST(FitMonotone, IsTheLowestOfTheBestCurves) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<double> measured(1 + random() % 6);
    for (double& median : measured) median = static_cast<double>(1 + random() % 7);
    std::vector<double> values = measured;
    std::ranges::sort(values);
    values.erase(std::ranges::unique(values).begin(), values.end());
    const std::vector<double> fit = times_of(fit_monotone(curve_of(measured)).curve);
    EXPECT_TRUE(std::ranges::is_sorted(fit)) << "seed " << seed;
    std::vector<double> other(measured.size());
    visit_curves(values, other, 0, [&](const std::vector<double>& curve) {
      const double more = distance(curve, measured) - distance(fit, measured);
      EXPECT_GE(more, -1e-12) << "seed " << seed;
      if (more > 1e-12) return;
      for (std::size_t i = 0; i < fit.size(); ++i) EXPECT_LE(fit[i], curve[i]) << "seed " << seed;
    });
  }
}

// Of a line, each inner point lies on the line through the others.
TEST(FitMonotone, HasNoResidualsOnALine) {
  EXPECT_NEAR(*fit_monotone(curve_of({3, 5, 7, 9, 11})).curve.log_spread, 0, 1e-15);
}

// 2 s where the line through 1 and 5 s has 3: log(3 / 2) is the only error, and the 90th percentile of one.
TEST(FitMonotone, ComparesInnerPointsWithTheFitToTheOthers) {
  EXPECT_NEAR(*fit_monotone(curve_of({1, 2, 5})).curve.log_spread, std::log(1.5) / 1.6448536269514722, 1e-15);
  EXPECT_FALSE(fit_monotone(curve_of({1, 2})).curve.log_spread);
  EXPECT_FALSE(fit_monotone(curve_of({1})).curve.log_spread);
  EXPECT_TRUE(fit_monotone({}).curve.points.empty());
}

// All times are 1 s except for some slow ones, which err by log(2) or log(3): of 20 inner points, rank ceil(0.9 * 20) =
// 18 is no slow one as long as there are two.
TEST(FitMonotone, TakesTheNinetiethPercentile) {
  std::vector<double> seconds(22, 1);
  EXPECT_EQ(*fit_monotone(curve_of(seconds)).curve.log_spread, 0);
  seconds[4] = seconds[10] = 2;
  EXPECT_EQ(*fit_monotone(curve_of(seconds)).curve.log_spread, 0);
  seconds[16] = 3;
  EXPECT_NEAR(*fit_monotone(curve_of(seconds)).curve.log_spread, std::log(2) / 1.6448536269514722, 1e-15);
}

// Echo's all-reduce of 128 ranks took 1242 us for 1 KiB, by start-up, and 97.2 us for 4 KiB.
TEST(FitMonotone, IsNotMovedByAStartUp) {
  const auto document = nlohmann::json::parse(
      format::read_text(source_folder() + "/tests/golden/collectives/echo_a100_40gb_all_reduce.json"));
  Curve curve;
  for (const auto& table : document["tables"]) {
    if (table["ranks"] != 128) continue;
    for (const auto& point : table["points"]) {
      const Bytes bytes(point["message_bytes"].get<std::int64_t>());
      curve.points.push_back({bytes, Seconds(point["time_s"].get<double>())});
    }
  }
  ASSERT_EQ(curve.points.size(), 12U);
  const MonotoneFit fit = fit_monotone(curve);
  EXPECT_GT(curve.points[0].time, 10 * curve.points[1].time);
  EXPECT_EQ(fit.curve.points[0].time, curve.points[1].time);
  EXPECT_EQ(fit.curve.points[1].time, curve.points[1].time);
}

}  // namespace
}  // namespace stagecraft
