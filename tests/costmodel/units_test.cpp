#include "costmodel/units.h"

#include <gtest/gtest.h>

#include <type_traits>

namespace stagecraft {
namespace {

TEST(Units, AddSubtractNegateAndCompareWithinOneKind) {
  EXPECT_EQ(2_s + 3_s, 5_s);
  EXPECT_EQ(5_s - 3_s, 2_s);
  EXPECT_EQ(-(2_s), Seconds(-2));
  EXPECT_LT(2_s, 3_s);
  EXPECT_GE(3_B, 3_B);
  EXPECT_NE(3_B, 4_B);
  Bytes sum = 1_B;
  sum += 2_B;
  EXPECT_EQ(sum, 3_B);
  sum -= 1_B;
  EXPECT_EQ(sum, 2_B);
  EXPECT_EQ(Flops(2) + Flops(3), Flops(5));
  EXPECT_EQ(BytesPerSecond(5) - BytesPerSecond(3), BytesPerSecond(2));
  EXPECT_LT(FlopsPerSecond(2), FlopsPerSecond(3));
}

TEST(Units, BeginAtZero) {
  EXPECT_EQ(Seconds(), 0_s);
  EXPECT_EQ(Bytes(), 0_B);
}

TEST(Units, ScaleTimesByRatios) {
  EXPECT_EQ(3_s * 2.0, 6_s);
  EXPECT_EQ(2.0 * 3_s, 6_s);
  EXPECT_EQ(6_s / 2.0, 3_s);
  EXPECT_EQ(6_s / 3_s, 2.0);
}

TEST(Units, ScaleBytesByIntegersExactly) {
  EXPECT_EQ(3_B * 4, 12_B);
  EXPECT_EQ(4 * 3_B, 12_B);
  EXPECT_EQ(Bytes((std::int64_t{1} << 53) + 1) * 3, Bytes((std::int64_t{3} << 53) + 3));  // a double would lose the 3
  EXPECT_EQ(6_B / 4_B, 1.5);
}

TEST(Units, DivideRatesOfOperationsToRatios) { EXPECT_EQ(FlopsPerSecond(6) / FlopsPerSecond(4), 1.5); }

TEST(Units, DivideBytesByRateToTimeAndByTimeToRate) {
  EXPECT_EQ(12_B / BytesPerSecond(4), 3_s);
  EXPECT_EQ(12_B / 3_s, BytesPerSecond(4));
}

TEST(Units, ScaleRates) {
  EXPECT_EQ(BytesPerSecond(4) * 2.0, BytesPerSecond(8));
  EXPECT_EQ(BytesPerSecond(4) / 2.0, BytesPerSecond(2));
}

TEST(Units, DivideWorkByRateToTime) { EXPECT_EQ(Flops(12) / FlopsPerSecond(4), 3_s); }

TEST(Units, LiteralsCarryTheFactor) {
  EXPECT_EQ(1.5_s, Seconds(1.5));
  EXPECT_EQ(2_s, Seconds(2));
  EXPECT_EQ(500_ms, Seconds(0.5));
  EXPECT_EQ(0.5_ms, Seconds(0.0005));
  EXPECT_DOUBLE_EQ((7_us).value, 0.000007);
  EXPECT_DOUBLE_EQ((0.5_us).value, 0.0000005);
  EXPECT_EQ(7_B, Bytes(7));
  EXPECT_EQ(2_KiB, Bytes(2048));
  EXPECT_EQ(1_MiB, Bytes(1048576));
  EXPECT_EQ(3_GiB, Bytes(3221225472));
  EXPECT_EQ(2.5_Bps, BytesPerSecond(2.5));
  EXPECT_EQ(25_GBps, BytesPerSecond(25000000000.0));
}

template <class A, class B>
concept Addable = requires(A a, B b) { a + b; };
template <class A, class B>
concept Multipliable = requires(A a, B b) { a* b; };

TEST(Units, DoNotMixKinds) {
  static_assert(Addable<Seconds, Seconds>);
  static_assert(!Addable<Seconds, Bytes>);
  static_assert(!Addable<Seconds, double>);
  static_assert(!Multipliable<Seconds, Seconds>);
  static_assert(!std::is_convertible_v<double, Seconds>);
  static_assert(!std::is_convertible_v<Seconds, double>);
}

}  // namespace
}  // namespace stagecraft
