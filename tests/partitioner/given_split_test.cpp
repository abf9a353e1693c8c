#include "partitioner/given_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/chains.h"
#include "tests/support/refused.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Layers of 3, 6, 9 and 12 s, forward plus backward.
const Graph kGraph = testing::chain_graph({1, 2, 3, 4}, {2, 4, 6, 8});

Partition halves() { return {{0, 0, 1, 1}, {1, 1}}; }

TEST(SplitCandidate, TakesTheSlowestStageForItsSteadyState) {
  const Candidate found = split_candidate(kGraph, {"l2"}, {});
  EXPECT_THAT(found.partition.stage_of_layer, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(found.partition.replicas, ElementsAre(1, 1));
  EXPECT_EQ(found.steady_state, 21_s);  // 9 + 12, after 3 + 6
  EXPECT_THAT(found.devices, IsEmpty());
  EXPECT_THAT(found.warmups, IsEmpty());
  EXPECT_EQ(split_candidate(kGraph, {}, {}).steady_state, 30_s);
}

TEST(SplitCandidate, DividesAStageByItsReplicas) {
  EXPECT_EQ(split_candidate(kGraph, {"l2"}, {1, 2}).steady_state, 10.5_s);
  EXPECT_EQ(split_candidate(kGraph, {"l2"}, {1, 3}).steady_state, 9_s);  // now the first stage is the slower
}

TEST(SplitCandidate, CountsNoReplicasWithoutAMicrobatch) {
  EXPECT_EQ(split_candidate(kGraph, {"l2"}, {1, 7}, 2).steady_state, 10.5_s);
  EXPECT_EQ(split_candidate(kGraph, {"l2"}, {1, 7}, 2).partition.replicas[1], 7);
  EXPECT_EQ(split_candidate(kGraph, {"l2"}, {1, 7}, 1).steady_state, 21_s);
}

TEST(SplitCandidate, ListsTheLayersForAnUnknownOne) {
  EXPECT_THAT(testing::refused([] { return split_candidate(kGraph, {"l9"}, {}); }),
              AllOf(HasSubstr("\"l9\""), HasSubstr("l0, l1, l2, l3")));
}

TEST(SplitCandidate, WantsReplicasForEveryStage) {
  EXPECT_THAT(testing::refused([] { return split_candidate(kGraph, {"l2"}, {2}); }),
              AllOf(HasSubstr("replicas"), HasSubstr("1"), HasSubstr("2 stages")));
}

TEST(GivenCandidate, KeepsDevicesAndWarmUps) {
  const Candidate found = given_candidate(kGraph, {{0, 0, 1, 1}, {2, 1}}, {{4, 1}, {0}}, {3, 0}, {});
  EXPECT_THAT(found.devices, ElementsAre(ElementsAre(4, 1), ElementsAre(0)));
  EXPECT_THAT(found.warmups, ElementsAre(3, 0));
  EXPECT_EQ(found.steady_state, 21_s);
}

TEST(GivenCandidate, TakesReplicasForThoseOfThePartitionButNotBesideDevices) {
  EXPECT_THAT(given_candidate(kGraph, halves(), {}, {}, {3, 1}).partition.replicas, ElementsAre(3, 1));
  EXPECT_THAT(testing::refused([] { return given_candidate(kGraph, halves(), {{0}, {1}}, {}, {3, 1}); }),
              HasSubstr("replicas"));
}

TEST(GivenCandidate, LeavesOutInputs) {
  Graph graph = kGraph;
  graph.layers[0].kind = kInputKind;
  EXPECT_EQ(given_candidate(graph, {{-1, 0, 0, 0}, {1}}, {}, {}, {}).steady_state, 27_s);  // 30 - 3 for the input
}

}  // namespace
}  // namespace stagecraft::partitioner
