#include "profiler/links/links_processing.h"

#include <gtest/gtest.h>

namespace stagecraft::profiler {
namespace {

Curve curve(const std::vector<double>& seconds) {
  Curve out;
  for (const double time : seconds) out.points.push_back({Bytes(std::int64_t{1} << out.points.size()), Seconds(time)});
  return out;
}

TEST(WithoutFalls, KeepsWhatRises) {
  EXPECT_EQ(without_falls(curve({1, 2, 2, 5}).points, {1, 1, 1, 1}), curve({1, 2, 2, 5}));
  EXPECT_EQ(without_falls({}, {}), Curve{});
}

TEST(WithoutFalls, TakesTheMeanOfWhatFalls) {
  EXPECT_EQ(without_falls(curve({1, 4, 2, 5}).points, {1, 1, 1, 1}), curve({1, 3, 3, 5}));
  // Weights: (3 * 4 + 1 * 8) / 4.
  EXPECT_EQ(without_falls(curve({8, 4}).points, {1, 3}), curve({5, 5}));
  // 8 and 2 make 5, which may follow 5; 6 and 2 make 4, which may not: (7 + 6 + 2) / 3.
  EXPECT_EQ(without_falls(curve({5, 8, 2}).points, {1, 1, 1}), curve({5, 5, 5}));
  EXPECT_EQ(without_falls(curve({7, 6, 2}).points, {1, 1, 1}), curve({5, 5, 5}));
  EXPECT_EQ(without_falls(curve({9, 6, 3}).points, {1, 1, 1}), curve({6, 6, 6}));
}

}  // namespace
}  // namespace stagecraft::profiler
