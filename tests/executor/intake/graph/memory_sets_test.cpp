#include "executor/intake/graph/memory_sets.h"

#include <gmock/gmock.h>
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

using ::testing::ElementsAre;

TEST(ObservedValues, AreWhatTheRootsFollowFrom) {
  // 2 = f(0), 3 = g(1), 4 = h(2).
  const std::vector<NodeEffects> nodes{{{0}, {2}, {}, {}}, {{1}, {3}, {}, {}}, {{2}, {4}, {}, {}}};
  EXPECT_THAT(observed_values(nodes, {4}, 5), ElementsAre(true, false, true, false, true));
  EXPECT_THAT(observed_values(nodes, {3}, 5), ElementsAre(false, true, false, true, false));
  EXPECT_THAT(observed_values(nodes, {}, 5), ElementsAre(false, false, false, false, false));
}

TEST(ObservedValues, WriteIntoWantedMemoryObservesWhatItReads) {
  // The value of 0 is written into 1; 2 = f(1).
  const std::vector<NodeEffects> nodes{{{0, 1}, {}, {1}, {}}, {{1}, {2}, {}, {}}};
  EXPECT_THAT(observed_values(nodes, {2}, 3), ElementsAre(true, true, true));
}

TEST(ObservedValues, ViewsCountAsTheMemoryTheyAreOf) {
  // 1 is a view of 0, and 2 is written into it; the root is 0.
  const std::vector<NodeEffects> nodes{{{0}, {1}, {}, {{1, 0}}}, {{1, 2}, {}, {1}, {}}};
  EXPECT_THAT(observed_values(nodes, {0}, 4), ElementsAre(true, true, true, false));
}

TEST(ObservedValues, WhatIsOnlyWrittenIsNotRead) {
  // 2 = f(0), which also counts its calls in 1.
  const NodeEffects counting{{0, 1}, {2}, {1}, {}, {1}};
  EXPECT_THAT(observed_values(std::vector{counting}, {2}, 3), ElementsAre(true, false, true));
  EXPECT_THAT(observed_values(std::vector{counting}, {1}, 3), ElementsAre(true, true, false));
}

TEST(ObservedValues, MemoryThatStaysIsObservedByALaterRun) {
  // First 1 = f(0), then 2 is written into 0: f reads it in the next run.
  const std::vector<NodeEffects> nodes{{{0}, {1}, {}, {}}, {{0, 2}, {}, {0}, {}}};
  EXPECT_THAT(observed_values(nodes, {1}, 3), ElementsAre(true, true, true));
}

TEST(FirstOfMemory, IsTheValueThatNoNodeGives) {
  // 2 is a view of 1, and 3 a view of 2.
  const std::vector<NodeEffects> nodes{{{1}, {2}, {}, {{2, 1}}}, {{2}, {3}, {}, {{3, 2}}}};
  EXPECT_EQ(first_of_memory(nodes, 3, 4), 1);
  EXPECT_EQ(first_of_memory(nodes, 1, 4), 1);
  EXPECT_EQ(first_of_memory(nodes, 0, 4), 0);
}

TEST(FirstOfMemory, IsTheValueItselfWhereANodeMadeTheMemory) {
  const std::vector<NodeEffects> nodes{{{0}, {1}, {}, {}}, {{1}, {2}, {}, {{2, 1}}}};
  EXPECT_EQ(first_of_memory(nodes, 2, 3), 2);
}

}  // namespace

}  // namespace stagecraft::intake
