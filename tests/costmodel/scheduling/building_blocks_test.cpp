#include "costmodel/scheduling/building_blocks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace stagecraft::scheduling {
namespace {

using ::testing::ElementsAre;

std::string text(const std::vector<Action>& actions) {
  std::string out;
  for (const Action& action : actions) out += (out.empty() ? "" : " ") + action_text(action);
  return out;
}

PipelineShape random_shape(std::mt19937& random) {
  PipelineShape shape;
  shape.stages = 1 + static_cast<int>(random() % 4);
  shape.microbatches = 1 + static_cast<int>(random() % 9);
  shape.steps = 1 + static_cast<int>(random() % 3);
  for (int s = 0; s < shape.stages; ++s) shape.replicas.push_back(1 + static_cast<int>(random() % 3));
  shape.warmups = warmup_counts(shape.replicas);
  return shape;
}

TEST(ReplicasOf, IsOneWhereTheShapeSaysNone) {
  PipelineShape shape;
  shape.stages = 2;
  EXPECT_EQ(replicas_of(shape, 1), 1);
  shape.replicas = {2, 3};
  EXPECT_EQ(replicas_of(shape, 1), 3);
}

TEST(OwnOf, CountsOnThroughTheSteps) {
  PipelineShape shape;
  shape.microbatches = 3;
  shape.steps = 2;
  shape.replicas = {2};
  EXPECT_EQ(all_microbatches(shape), 6);
  EXPECT_THAT(own_of(shape, 0, 0), ElementsAre(0, 2, 4));
  EXPECT_THAT(own_of(shape, 0, 1), ElementsAre(1, 3, 5));
}

TEST(OwnOf, GivesEveryMicrobatchToOneReplicaAndTheFirstTheMost) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937 random(seed);
    const PipelineShape shape = random_shape(random);
    for (int stage = 0; stage < shape.stages; ++stage) {
      std::multiset<int> all;
      std::size_t most = 0;
      for (int r = 0; r < replicas_of(shape, stage); ++r) {
        const std::vector<int> microbatches = own_of(shape, stage, r);
        all.insert(microbatches.begin(), microbatches.end());
        most = std::max(most, microbatches.size());
      }
      EXPECT_EQ(static_cast<int>(all.size()), all_microbatches(shape)) << "seed " << seed;
      EXPECT_EQ(std::set<int>(all.begin(), all.end()).size(), all.size()) << "seed " << seed;
      EXPECT_EQ(*all.begin(), 0) << "seed " << seed;
      EXPECT_EQ(static_cast<int>(own_of(shape, stage, 0).size()), static_cast<int>(most)) << "seed " << seed;
      EXPECT_EQ(most_own(shape, stage), static_cast<int>(most)) << "seed " << seed;
    }
  }
}

TEST(OneForwardOneBackward, TakesTheWarmUpFromTheShape) {
  PipelineShape shape;
  shape.stages = 2;
  shape.microbatches = 3;
  shape.warmups = {2, 0};
  EXPECT_EQ(text(one_forward_one_backward(shape, 0, 0)), "0F0 0F1 0F2 0B0 0B1 0B2");
  EXPECT_EQ(text(one_forward_one_backward(shape, 1, 0)), "1F0 1B0 1F1 1B1 1F2 1B2");
  shape.warmups = {9, 0};  // more than there are microbatches: all forwards first
  EXPECT_EQ(text(one_forward_one_backward(shape, 0, 0)), "0F0 0F1 0F2 0B0 0B1 0B2");
}

TEST(OneForwardOneBackward, IsEmptyForAReplicaWithoutMicrobatches) {
  PipelineShape shape;
  shape.microbatches = 1;
  shape.replicas = {2};
  shape.warmups = {0};
  EXPECT_EQ(text(one_forward_one_backward(shape, 0, 1)), "");
}

// A microbatch is in flight from its forward to its backward.
TEST(OneForwardOneBackward, HoldsAsManyMicrobatchesAsWarmupAndOneSays) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937 random(seed);
    const PipelineShape shape = random_shape(random);
    for (int stage = 0; stage < shape.stages; ++stage) {
      int most = 0;
      for (int r = 0; r < replicas_of(shape, stage); ++r) {
        std::set<int> in_flight;
        std::vector<int> done;
        for (const Action& action : one_forward_one_backward(shape, stage, r)) {
          EXPECT_EQ(action.stage, stage);
          if (action.kind == ActionKind::Forward) {
            EXPECT_TRUE(in_flight.insert(action.microbatch).second) << "seed " << seed;
          } else {
            EXPECT_EQ(in_flight.erase(action.microbatch), 1u) << "seed " << seed << ": backward before its forward";
            done.push_back(action.microbatch);
          }
          most = std::max(most, static_cast<int>(in_flight.size()));
        }
        EXPECT_TRUE(in_flight.empty()) << "seed " << seed;
        EXPECT_EQ(done, own_of(shape, stage, r)) << "seed " << seed;
      }
      EXPECT_EQ(most, warmup_and_one(shape, stage)) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace stagecraft::scheduling
