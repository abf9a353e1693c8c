#include "profiler/in_flight_slowdown.h"

#include <gtest/gtest.h>

namespace stagecraft::profiler {
namespace {

TEST(InFlightSlowdown, IsTheMedianOfTheRoundsRatios) {
  // 1.5, 1.25 and, in a round that something interrupted, 4.
  EXPECT_DOUBLE_EQ(in_flight_factor_of({{2, 3}, {4, 5}, {1, 4}}), 1.5);
}

TEST(InFlightSlowdown, IsNeverASpeedup) { EXPECT_DOUBLE_EQ(in_flight_factor_of({{2, 1}, {4, 3}, {5, 4}}), 1); }

TEST(InFlightSlowdown, KnowsTheAvailableMemory) {
  // Any machine that builds this has more than 64 MiB, and less than an exbibyte.
  const auto bytes = available_memory();
  ASSERT_TRUE(bytes);
  EXPECT_GT(*bytes, Bytes(64 << 20));
  EXPECT_LT(*bytes, Bytes(std::int64_t{1} << 60));
}

}  // namespace
}  // namespace stagecraft::profiler
