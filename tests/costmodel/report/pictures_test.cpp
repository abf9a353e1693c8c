#include "costmodel/report/pictures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft::report {
namespace {

/// Stage s computes for s + 1 s, updates for 1 s and needs 10 (s + 1) bytes.
Prediction four_stages(std::vector<int> first_stage_of_rank) {
  Prediction out;
  for (const int s : {0, 1, 2, 3}) {
    StagePrediction stage;
    stage.stage = s;
    stage.compute = Seconds(s + 1);
    stage.update = 1_s;
    stage.memory.total = Bytes(std::int64_t{10} * (s + 1));
    stage.memory.parts = {{MemoryPart::Parameters, stage.memory.total}};
    stage.fits = s != 3;
    out.stages.push_back(stage);
  }
  out.timeline.stage_of_rank = std::move(first_stage_of_rank);
  return out;
}

TEST(StageGroups, AreTheStagesWithOnePerDevice) {
  const auto groups = stage_groups(four_stages({0, 1, 2, 2, 3}));  // two replicas of stage 2
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[2].label, "stage 2");
  EXPECT_EQ(groups[2].sum.compute, 3_s);
}

TEST(StageGroups, AddUpTheStagesOfADevice) {
  const auto groups = stage_groups(four_stages({0, 1}));
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].label, "stages 0, 2");
  EXPECT_EQ(groups[0].sum.compute, 4_s);
  EXPECT_EQ(groups[0].sum.memory.total, 40_B);
  EXPECT_TRUE(groups[0].sum.fits);
  EXPECT_EQ(groups[1].label, "stages 1, 3");
  EXPECT_EQ(groups[1].sum.update, 2_s);
  EXPECT_EQ(groups[1].sum.memory.parts.at(MemoryPart::Parameters), 60_B);
  EXPECT_FALSE(groups[1].sum.fits);
}

TEST(StageGroups, NameAllStagesOfOneDevice) {
  const auto groups = stage_groups(four_stages({0}));
  ASSERT_EQ(groups.size(), 1U);
  EXPECT_EQ(groups[0].label, "stages 0, 1, 2, 3");
}

}  // namespace
}  // namespace stagecraft::report
