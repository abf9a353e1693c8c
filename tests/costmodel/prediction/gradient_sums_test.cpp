#include "costmodel/prediction/gradient_sums.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;
using ::testing::IsEmpty;

TEST(GradientSums, AreOverReplicasThenOverTheHoldersOfEachSharedParameter) {
  Graph graph = chain_graph({1, 1, 1, 1}, {1, 1, 1, 1}, 0_B, 100_B);
  graph.layers[0].tied = {{"embedding", 32_B}};
  graph.layers[3].tied = {{"embedding", 32_B}, {"output", 5_B}};
  graph.layers[1].tied = graph.layers[2].tied = {{"inner", 7_B}};  // both in stage 1
  const BoundPlan bound(make_plan(graph, flat_topology(4), {{0, 1, 1, 2}, {2, 1, 1}}, {}));
  const auto sums = gradient_sums(graph, bound);
  ASSERT_EQ(sums.size(), 3u);
  ASSERT_EQ(sums[0].size(), 2u);
  EXPECT_THAT(sums[0][0].ranks, ElementsAre(0, 1));
  EXPECT_EQ(sums[0][0].bytes, 68_B);
  EXPECT_EQ(sums[0][0].tied, std::nullopt);
  EXPECT_THAT(sums[0][1].ranks, ElementsAre(0, 1, 3));
  EXPECT_EQ(sums[0][1].bytes, 32_B);
  EXPECT_EQ(sums[0][1].tied, 0);
  EXPECT_THAT(sums[1], IsEmpty()) << "one rank holds all of it";
  ASSERT_EQ(sums[2].size(), 1u);
  EXPECT_EQ(sums[2][0].ranks, sums[0][1].ranks);
  EXPECT_EQ(sums[2][0].bytes, 32_B);
  EXPECT_EQ(sums[2][0].tied, 0);
}

TEST(GradientSums, HoldAParameterOfOneReplicatedStageOnce) {
  Graph graph = chain_graph({1, 1}, {1, 1}, 0_B, 100_B);
  graph.layers[0].tied = graph.layers[1].tied = {{"embedding", 32_B}};
  const BoundPlan bound(make_plan(graph, flat_topology(2), {{0, 0}, {2}}, {}));
  const auto sums = gradient_sums(graph, bound);
  ASSERT_EQ(sums[0].size(), 2u);
  EXPECT_EQ(sums[0][0].bytes, 136_B) << "200 less 32 that is counted twice and 32 that has a sum of its own";
  EXPECT_EQ(sums[0][1].bytes, 32_B);
}

TEST(FillBuckets, TakesLayersFromTheLastUntilTheBucketIsFull) {
  const auto fill = [](const std::vector<Bytes>& layers) {
    std::vector<std::pair<Bytes, std::size_t>> out;
    for (const LayersBucket& bucket : fill_buckets(layers, 30_B)) out.emplace_back(bucket.bytes, bucket.first);
    return out;
  };
  EXPECT_THAT(fill({10_B, 0_B, 30_B, 5_B}), ElementsAre(std::pair(35_B, 2u), std::pair(10_B, 0u)));
  EXPECT_THAT(fill({0_B, 40_B}), ElementsAre(std::pair(40_B, 1u))) << "a layer without parameters completes nothing";
  EXPECT_THAT(fill({0_B, 0_B}), IsEmpty());
  EXPECT_THAT(fill({}), IsEmpty());
}

}  // namespace
}  // namespace stagecraft
