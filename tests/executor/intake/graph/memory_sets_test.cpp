#include "executor/intake/graph/memory_sets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

using Aliases = std::vector<std::pair<int, int>>;

TEST(MemorySets, BeginApart) {
  MemorySets sets(3);
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) EXPECT_EQ(sets.of(a) == sets.of(b), a == b);
  }
}

TEST(MemorySets, JoinIsTransitive) {
  MemorySets sets(5);
  sets.join(Aliases{{1, 0}, {2, 1}});
  EXPECT_EQ(sets.of(2), sets.of(0));
  sets.join(Aliases{{4, 3}});
  EXPECT_NE(sets.of(4), sets.of(0));
  sets.join(Aliases{{4, 2}});
  EXPECT_EQ(sets.of(3), sets.of(0));
}

TEST(MemorySets, JoiningTwiceOrWithItselfChangesNothing) {
  MemorySets sets(2);
  sets.join(Aliases{{1, 0}, {1, 0}, {0, 1}, {0, 0}});
  EXPECT_EQ(sets.of(0), sets.of(1));
}

TEST(MemorySets, EqualTheComponentsOfRandomGraphs) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    constexpr int kValues = 20;
    MemorySets sets(kValues);
    std::vector<int> component(kValues);  // by brute force: every join relabels one of the two
    for (int v = 0; v < kValues; ++v) component[to_index(v)] = v;
    for (int i = 0; i < 15; ++i) {
      const auto a = random() % kValues, b = random() % kValues;
      sets.join(Aliases{{to_int(a), to_int(b)}});
      std::ranges::replace(component, int(component[a]), int(component[b]));
    }
    for (std::size_t a = 0; a < kValues; ++a) {
      for (std::size_t b = 0; b < kValues; ++b)
        EXPECT_EQ(sets.of(to_int(a)) == sets.of(to_int(b)), component[a] == component[b]);
    }
  }
}

}  // namespace
}  // namespace stagecraft::intake
