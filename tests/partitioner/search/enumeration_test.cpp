#include "partitioner/search/enumeration.h"

#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace stagecraft::partitioner {
namespace {

/// What is asked doubles from 3 s up to 12 s, which is not too short. Then, between 6 and 12 s, the middle.
TEST(LeastTime, DoublesUntilATimeIsPossibleThenHalvesTheRest) {
  std::vector<double> asked;
  const Seconds found = least_time(Seconds(3), kForever, 0.2, 0.5, [&](Seconds time) {
    asked.push_back(time.value);
    return time < Seconds(10);
  });
  // 6 yes, 12 no; 9 yes, 10.5 no: 9 * 1.2 > 10.5.
  EXPECT_EQ(asked, (std::vector<double>{6, 12, 9, 10.5}));
  EXPECT_EQ(found, Seconds(9));
}

/// Between 10 and 30 s, a tenth of the way: 12 s; then between 12 and 30 s, 13.8 s.
TEST(LeastTime, AsksNearTheLowEndIfCautious) {
  std::vector<double> asked;
  (void)least_time(Seconds(10), Seconds(30), 0.05, 0.1, [&](Seconds time) -> std::optional<bool> {
    asked.push_back(time.value);
    if (asked.size() == 2) return std::nullopt;
    return true;
  });
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_DOUBLE_EQ(asked[0], 12);
  EXPECT_DOUBLE_EQ(asked[1], 13.8);
}

/// More than a factor 4 apart, at the geometric mean, however cautious.
TEST(LeastTime, TakesTheGeometricMeanOfTimesThatAreFarApart) {
  double asked = 0;
  (void)least_time(Seconds(1), Seconds(100), 0.05, 0.1, [&](Seconds time) -> std::optional<bool> {
    asked = time.value;
    return std::nullopt;
  });
  EXPECT_DOUBLE_EQ(asked, 10);
}

TEST(LeastTime, EndsWithWhatIsKnownWhenTimeIsUp) {
  int calls = 0;
  const Seconds found = least_time(Seconds(1), Seconds(2), 1e-9, 0.5, [&](Seconds) -> std::optional<bool> {
    if (++calls == 3) return std::nullopt;
    return true;
  });
  EXPECT_EQ(found, Seconds(1.75));  // 1.5, 1.75
}

TEST(LeastTime, KnowsNothingFromZero) {
  EXPECT_EQ(least_time(Seconds(0), kForever, 1e-3, 0.5, [](Seconds) { return true; }), Seconds(0));
}

TEST(LeastTime, IsWithinThePrecisionOfTheThreshold) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto unit = [&] { return static_cast<double>(random() % 1000 + 1) / 1000; };
    const Seconds low(unit());
    const Seconds threshold = low * (1 + 50 * unit());
    const Seconds found =
        least_time(low, kForever, 1e-3, 0.1 + 0.8 * unit(), [&](Seconds time) { return time < threshold; });
    EXPECT_LE(found, threshold);
    EXPECT_GE(found * (1 + 1e-3), threshold);
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
