#include "costmodel/links/curve_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "costmodel/format/files/files.h"
#include "tests/support/places.h"

namespace stagecraft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// `time_of(bytes)` from 8 to 2^30 bytes in steps of sqrt(2), times exp of seeded noise.
template <class F>
std::vector<FitPoint> sampled(F time_of, double noise, std::mt19937_64& random) {
  std::normal_distribution<double> error;
  std::vector<FitPoint> out;
  for (int step = 6; step <= 60; ++step) {
    const Bytes bytes(std::llround(std::exp2(step / 2.0)));
    out.push_back(
        {bytes, Seconds(time_of(static_cast<double>(bytes.value)) * std::exp(noise > 0 ? noise * error(random) : 0))});
  }
  return out;
}

/// A latency, and slopes that change at 2^14 and 2^22 bytes by as much as between a library's protocols.
double truth(int segments, double bytes) {
  const double first = 8e-6 + 4e-10 * std::min(bytes, 16384.0);
  if (segments == 1) return 8e-6 + 4e-10 * bytes;
  const double second = 2e-9 * (std::min(bytes, 4194304.0) - 16384);
  if (segments == 2) return first + std::max(0.0, 2e-9 * (bytes - 16384));
  return first + std::max(0.0, second) + std::max(0.0, 1e-10 * (bytes - 4194304));
}

/// What fit_curve minimises if no spread is known.
double log_error(const CurveFit& fit, const std::vector<FitPoint>& points) {
  double sum = 0;
  for (const FitPoint& p : points) sum += std::pow(std::log(time(fit, p.bytes) / p.time), 2);
  return sum;
}

TEST(FitCurve, GivesTheLineOfTwoPoints) {
  const CurveFit fit = fit_curve({{1_B, 3_s}, {2_B, 5_s}});
  ASSERT_EQ(fit.segments.size(), 1U);
  EXPECT_EQ(fit.segments[0].first, 0_B);
  EXPECT_NEAR(fit.segments[0].latency.value, 1, 1e-9);
  EXPECT_NEAR(fit.segments[0].seconds_per_byte, 2, 1e-9);
  EXPECT_NEAR(time(fit, 10_B).value, 21, 1e-8);
  EXPECT_EQ(fit.held_out, std::nullopt);
}

TEST(FitCurve, FindsTheSegmentsOfExactTimes) {
  std::mt19937_64 random(1);
  for (int segments = 1; segments <= 3; ++segments) {
    const CurveFit fit = fit_curve(sampled([segments](double b) { return truth(segments, b); }, 0, random));
    ASSERT_EQ(fit.segments.size(), static_cast<std::size_t>(segments));
    EXPECT_NEAR(fit.segments[0].latency.value, 8e-6, 1e-12);
    EXPECT_NEAR(fit.segments[0].seconds_per_byte, 4e-10, 1e-14);
    if (segments == 1) continue;
    // 8e-6 + 16384 * 4e-10 = latency + 16384 * 2e-9.
    EXPECT_EQ(fit.segments[1].first, 16_KiB);
    EXPECT_NEAR(fit.segments[1].seconds_per_byte, 2e-9, 1e-13);
    EXPECT_NEAR(fit.segments[1].latency.value, 8e-6 - 16384 * 1.6e-9, 1e-10);
    if (segments == 2) continue;
    EXPECT_EQ(fit.segments[2].first, 4_MiB);
    EXPECT_NEAR(fit.segments[2].seconds_per_byte, 1e-10, 1e-14);
  }
}

TEST(FitCurve, KeepsWithinTheGoalUnderNoise) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    std::mt19937_64 random(seed);
    for (int segments = 1; segments <= 3; ++segments) {
      const auto exact = [segments](double b) { return truth(segments, b); };
      const CurveFit fit = fit_curve(sampled(exact, 0.02, random));
      ASSERT_TRUE(fit.held_out.has_value());
      EXPECT_GE(fit.segments.size(), static_cast<std::size_t>(segments)) << "seed " << seed;
      EXPECT_LE(fit.held_out->median, 0.03) << "seed " << seed << ", " << segments << " segments";
      EXPECT_LE(fit.held_out->p95, 0.10) << "seed " << seed << ", " << segments << " segments";
      for (const FitPoint& p : sampled(exact, 0, random)) {
        EXPECT_NEAR(time(fit, p.bytes) / p.time, 1, 0.06) << "seed " << seed << " at " << p.bytes.value;
      }
    }
  }
}

TEST(FitCurve, MeetsAtTheBreaksAndNeverFalls) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    std::mt19937_64 random(seed);
    const CurveFit fit = fit_curve(sampled([](double b) { return 1e-6 + 1e-9 * b; }, 1.0, random));
    EXPECT_GE(fit.segments.front().latency, 0_s);
    for (std::size_t s = 0; s < fit.segments.size(); ++s) {
      const FitSegment& segment = fit.segments[s];
      EXPECT_GE(segment.seconds_per_byte, 0) << "seed " << seed;
      if (s == 0) continue;
      const double at = static_cast<double>(segment.first.value);
      const double before = fit.segments[s - 1].latency.value + fit.segments[s - 1].seconds_per_byte * at;
      EXPECT_NEAR((segment.latency.value + segment.seconds_per_byte * at) / before, 1, 1e-9) << "seed " << seed;
    }
  }
}

TEST(FitCurve, GivesAPositiveTimeForWildOnes) {
  EXPECT_GT(time(fit_curve({{0_B, 100_s}, {1_B, 1_s}, {2_B, 10_s}}), 0_B), 0_s);
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> wild(0, 5);
    std::vector<FitPoint> points;
    for (std::int64_t b = 0; b < 3 + static_cast<std::int64_t>(seed % 10); ++b) {
      points.push_back({Bytes(b * b * b), Seconds(std::exp(wild(random)))});
    }
    const CurveFit fit = fit_curve(points);
    for (const FitPoint& p : points) {
      EXPECT_GT(time(fit, p.bytes), 0_s) << "seed " << seed;
      EXPECT_TRUE(std::isfinite(time(fit, p.bytes).value)) << "seed " << seed;
    }
  }
}

TEST(FitCurve, TakesTheGeometricMeanOfFallingTimes) {
  // The best non-decreasing fit is a constant c; the sum of log(c / t)^2 is smallest if log c is the mean of log t.
  const CurveFit fit = fit_curve({{1_B, 3_s}, {2_B, 2_s}, {4_B, 1_s}});
  ASSERT_EQ(fit.segments.size(), 1U);
  EXPECT_EQ(fit.segments[0].seconds_per_byte, 0);
  EXPECT_NEAR(fit.segments[0].latency.value, std::cbrt(6.0), 1e-3);
}

TEST(FitCurve, IsNotWorseThanNeighbouringLines) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    std::mt19937_64 random(seed);
    const auto points = sampled([](double b) { return truth(3, b); }, 0.1, random);
    const CurveFit fit = fit_curve(points);
    const double least = log_error(fit, points);
    std::normal_distribution<double> change(0, 0.02);
    for (int i = 0; i < 100; ++i) {
      CurveFit other = fit;
      double latency = other.segments[0].latency.value * std::exp(change(random));
      for (std::size_t s = 0; s < other.segments.size(); ++s) {
        FitSegment& segment = other.segments[s];
        segment.seconds_per_byte *= std::exp(change(random));
        if (s > 0) {
          latency += (other.segments[s - 1].seconds_per_byte - segment.seconds_per_byte) *
                     static_cast<double>(segment.first.value);
        }
        segment.latency = Seconds(latency);
      }
      EXPECT_GE(log_error(other, points), least * (1 - 1e-4)) << "seed " << seed;
    }
  }
}

TEST(FitCurve, GivesLittleWeightToAPointWithALargeSpread) {
  // The line t = b; the point at 4 bytes is off by a factor of 3 and has a large spread.
  const std::vector<FitPoint> said{{1_B, 1_s, 0.01_s}, {2_B, 2_s, 0.02_s}, {4_B, 12_s, 12_s}, {8_B, 8_s, 0.08_s}};
  EXPECT_NEAR(time(fit_curve(said), 4_B).value, 4, 0.02);
  std::vector<FitPoint> not_said = said;
  not_said[0].spread = 0_s;  // one unknown spread: all points weigh the same
  EXPECT_GT(time(fit_curve(not_said), 4_B).value, 4.5);
}

TEST(FitCurve, HoldsOutEverySecondPoint) {
  // The points at 1, 4 and 16 bytes are kept and lie on t = b; 2 bytes are measured as 2.5 s and fitted as 2: off by
  // 1/5; 8 bytes fit.
  const CurveFit fit = fit_curve({{1_B, 1_s}, {2_B, 2.5_s}, {4_B, 4_s}, {8_B, 8_s}, {16_B, 16_s}});
  ASSERT_TRUE(fit.held_out.has_value());
  EXPECT_EQ(fit.held_out->points, 2);
  EXPECT_NEAR(fit.held_out->median, 0.1, 1e-9);
  EXPECT_NEAR(fit.held_out->p95, 0.2, 1e-9);
  EXPECT_NEAR(fit.held_out->worst, 0.2, 1e-9);
  EXPECT_EQ(fit.held_out->worst_bytes, 2_B);
}

TEST(FitCurve, ChoosesTheLeastBic) {
  std::mt19937_64 random(3);
  const CurveFit fit = fit_curve(sampled([](double b) { return truth(2, b); }, 0.01, random));
  ASSERT_EQ(fit.bic.size(), 3U);
  EXPECT_EQ(std::min_element(fit.bic.begin(), fit.bic.end()) - fit.bic.begin() + 1,
            static_cast<std::ptrdiff_t>(fit.segments.size()));
}

TEST(FitCurve, NamesBadPoints) {
  const auto refused = [](std::vector<FitPoint> points, const char* message) {
    EXPECT_THAT([&] { (void)fit_curve(points); }, ThrowsMessage<std::invalid_argument>(HasSubstr(message)));
  };
  refused({{1_B, 1_s}}, "a fit of 1 points, must be at least 2");
  refused({{2_B, 1_s}, {2_B, 2_s}}, "the point of 2 bytes: bytes do not ascend from 0");
  refused({{Bytes(-1), 1_s}, {2_B, 2_s}}, "the point of -1 bytes: bytes do not ascend from 0");
  refused({{1_B, 0_s}, {2_B, 2_s}}, "the point of 1 bytes: the time is not positive");
  refused({{1_B, Seconds(std::numeric_limits<double>::infinity())}, {2_B, 2_s}}, "the time is not positive");
  refused({{1_B, 1_s, Seconds(-1)}, {2_B, 2_s}}, "the point of 1 bytes: the spread is negative");
}

/// The points of one table of tests/golden/collectives.
std::vector<FitPoint> real_curve(const std::string& file, int ranks) {
  const auto document = nlohmann::json::parse(format::read_text(source_folder() + "/tests/golden/collectives/" + file));
  std::vector<FitPoint> out;
  for (const auto& table : document["tables"]) {
    if (table["ranks"] != ranks) continue;
    for (const auto& point : table["points"]) {
      const double time = point.value("in_place_time_s", point["time_s"].get<double>());
      out.push_back({Bytes(point["message_bytes"].get<std::int64_t>()), Seconds(time)});
    }
  }
  return out;
}

TEST(FitCurve, FitsADenseMeasuredAllReduceWithinTheGoal) {
  const CurveFit fit = fit_curve(real_curve("vtrain_a100_all_reduce.json", 8));
  ASSERT_TRUE(fit.held_out.has_value());
  EXPECT_EQ(fit.held_out->points, 256);
  EXPECT_LE(fit.held_out->median, 0.03);
  EXPECT_LE(fit.held_out->p95, 0.10);
}

TEST(FitCurve, NeedsMoreThanALineForMeasuredAllReduces) {
  for (const int ranks : {2, 4, 8, 16}) {
    const auto points = real_curve("echo_a100_40gb_all_reduce.json", ranks);
    const CurveFit fit = fit_curve(points);
    EXPECT_GE(fit.segments.size(), 2U) << ranks << " ranks";
    for (const FitPoint& p : points) EXPECT_NEAR(time(fit, p.bytes) / p.time, 1, 0.3) << ranks << " " << p.bytes.value;
  }
}

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
