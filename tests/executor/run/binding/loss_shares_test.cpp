#include "executor/run/binding/loss_shares.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "costmodel/index.h"

namespace stagecraft::run {
namespace {

using ::testing::ElementsAre;

/// Labels of each microbatch in a step, as input 1.
class Labels : public data::DataSource {
 public:
  explicit Labels(std::vector<std::vector<std::int64_t>> labels) : labels_(std::move(labels)) {}
  std::vector<at::Tensor> batch(std::int64_t, int microbatch, int microbatches, std::int64_t,
                                std::span<const int> inputs) const override {
    EXPECT_EQ(microbatches, to_int(labels_.size()));
    EXPECT_THAT(std::vector<int>(inputs.begin(), inputs.end()), ElementsAre(1));
    return {at::tensor(labels_[to_index(microbatch)])};
  }

 private:
  std::vector<std::vector<std::int64_t>> labels_;
};

/// -100 is ignored. Divides by max(labels, least).
model::Model ignoring(double least = 0) {
  model::Model model;
  const auto count = [](std::span<const at::Tensor> in) { return in[0].ne(-100).sum().to(at::kDouble); };
  model.loss_weight = {.sources = {1}, .count = count, .least = least, .added = 0};
  return model;
}

TEST(LossShares, WeighMicrobatchesByTheirLabels) {
  const Labels labels({{1, 2, 3}, {4, -100, -100}, {-100, -100, -100}, {1, -100, 2}});
  // 3, 1, 0 and 2 labels of 6: four times a half, a sixth, nothing and a third.
  EXPECT_THAT(loss_shares(ignoring(), labels, 7, 4, 3), ElementsAre(4 * 3 / 6.0, 4 * 1 / 6.0, 0, 4 * 2 / 6.0));
}

TEST(LossShares, WeighMicrobatchesByWhatTheirLossWasDividedBy) {
  const Labels labels({{1, 2, 3}, {-100, -100, -100}});
  // Without a label the loss is 0 / 1: its share is 2 * 1 / 3, that of the other 2 * 3 / 3.
  EXPECT_THAT(loss_shares(ignoring(1), labels, 0, 2, 3), ElementsAre(2, 2 / 3.0));
}

TEST(LossShares, AreExactlyOneForEquallyManyLabels) {
  const Labels labels({{1, 2, -100}, {4, -100, 0}, {-100, 3, 3}});
  EXPECT_THAT(loss_shares(ignoring(), labels, 0, 3, 3), ElementsAre(1, 1, 1));
}

TEST(LossShares, DoNotReadDataForAMeanOverSamples) {
  EXPECT_FALSE(has_loss_shares({}));
  EXPECT_THAT(loss_shares({}, Labels({}), 0, 3, 3), ElementsAre(1, 1, 1));
  EXPECT_TRUE(has_loss_shares(ignoring()));
}

TEST(LossShares, AddUpSums) {
  model::Model model;
  model.loss_kind = model::LossKind::Sum;
  EXPECT_THAT(loss_shares(model, Labels({}), 0, 3, 3), ElementsAre(3, 3, 3));
}

TEST(LossShares, LeaveTheLossOfABatchWithoutLabelsNotANumber) {
  EXPECT_THAT(loss_shares(ignoring(), Labels({{-100}, {-100}}), 0, 2, 1), ElementsAre(1, 1));
}

TEST(JointLoss, IsThatOfAllMicrobatchesTogether) {
  const Labels labels({{1, 2, 3}, {-100, -100, -100}, {4, -100, -100}});
  const model::Model weighted = ignoring();
  JointLoss joint(weighted, labels, 3);
  joint.add(2, 0, 0, 3);
  joint.add(NAN, 0, 1, 3);
  joint.add(6, 0, 2, 3);
  EXPECT_EQ(joint.value(), 3);  // (2 * 3 + 6 * 1) / 4
  const model::Model guarded = ignoring(1);
  JointLoss same(guarded, labels, 3);
  same.add(2, 0, 0, 3);
  same.add(0, 0, 1, 3);
  same.add(6, 0, 2, 3);
  EXPECT_EQ(same.value(), 3);
  model::Model sums;
  sums.loss_kind = model::LossKind::Sum;
  JointLoss sum(sums, labels, 3);
  sum.add(2, 0, 0, 2);
  sum.add(6, 0, 1, 2);
  EXPECT_EQ(sum.value(), 8);
}

}  // namespace
}  // namespace stagecraft::run
