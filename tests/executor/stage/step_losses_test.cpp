#include "executor/stage/step_losses.h"

#include <ATen/ops/scalar_tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stagecraft::stage {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

at::Tensor loss(double value) { return at::scalar_tensor(value, at::TensorOptions(at::kFloat)); }

TEST(StepLosses, GivesThoseOfAStepByMicrobatch) {
  StepLosses losses{c10::Device(c10::kCPU)};
  losses.add(0, 3, loss(1.5));  // in the order of computation
  losses.add(0, 1, loss(2.5));
  losses.end_step(0);
  EXPECT_THAT(losses.take(0), ElementsAre(Pair(1, 2.5), Pair(3, 1.5)));
}

TEST(StepLosses, GivesThemOnce) {
  StepLosses losses{c10::Device(c10::kCPU)};
  losses.add(0, 0, loss(1));
  losses.end_step(0);
  EXPECT_EQ(losses.take(0).size(), 1U);
  EXPECT_THAT(losses.take(0), IsEmpty());
}

TEST(StepLosses, KeepsStepsThatRunIntoEachOtherApart) {
  StepLosses losses{c10::Device(c10::kCPU)};
  losses.add(0, 0, loss(1));
  losses.add(1, 2, loss(3));
  losses.add(0, 1, loss(2));
  losses.end_step(0);
  EXPECT_THAT(losses.take(0), ElementsAre(Pair(0, 1), Pair(1, 2)));
  losses.end_step(1);
  EXPECT_THAT(losses.take(1), ElementsAre(Pair(2, 3)));
}

TEST(StepLosses, AreNoneWhereAnotherRankHasTheLoss) {
  StepLosses losses{c10::Device(c10::kCPU)};
  losses.end_step(0);
  EXPECT_THAT(losses.take(0), IsEmpty());
}

TEST(StepLosses, HoldTheValueNotTheGraph) {
  StepLosses losses{c10::Device(c10::kCPU)};
  at::Tensor value = loss(2).requires_grad_(true);
  losses.add(0, 0, value);
  value.mutable_data_ptr<float>()[0] = 5;
  losses.end_step(0);
  EXPECT_EQ(losses.take(0).at(0), 2);
}

}  // namespace
}  // namespace stagecraft::stage
