#include "executor/intake/graph/observed_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft::intake {
namespace {

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
