#include "partitioner/search/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

Topology two_servers_of_four() {
  Topology out = testing::flat_topology(4);
  out.levels.push_back({"rack", 2, {BytesPerSecond(1e8), Seconds(0), {}, {}}});
  return out;
}

/// In order, the second stage would be in both servers. The two of three devices take a server each.
TEST(Placements, PutNoStageIntoTwoServersThatFitsIntoOne) {
  EXPECT_THAT(placements(two_servers_of_four(), {3, 3, 1, 1}, 1),
              Contains(ElementsAre(ElementsAre(0, 1, 2), ElementsAre(4, 5, 6), ElementsAre(3), ElementsAre(7))));
}

TEST(Placements, PutReplicasOfEqualStagesSideBySide) {
  EXPECT_THAT(placements(two_servers_of_four(), {2, 2}, 1),
              ElementsAre(ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3))));
}

TEST(Placements, PutReplicasOfARunOfEqualStagesSideBySide) {
  EXPECT_THAT(placements(two_servers_of_four(), {2, 2, 1}, 1),
              Contains(ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3), ElementsAre(4))));
}

/// Microbatches 0 and 2 of each round of four go to the first replica of the second stage.
TEST(Placements, PutReplicasOfEqualMicrobatchesSideBySide) {
  EXPECT_THAT(placements(two_servers_of_four(), {4, 2}, 1),
              Contains(ElementsAre(ElementsAre(0, 3, 1, 4), ElementsAre(2, 5))));
}

TEST(Placements, AreOtherThanInOrder) { EXPECT_THAT(placements(two_servers_of_four(), {1, 1}, 1), IsEmpty()); }

}  // namespace
}  // namespace stagecraft::partitioner
