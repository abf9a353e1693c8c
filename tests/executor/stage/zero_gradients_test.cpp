#include "executor/stage/zero_gradients.h"

#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace stagecraft::stage {
namespace {

TEST(MaterializeGradient, GivesMemoryToAZeroTensor) {
  const at::Tensor parameter = at::ones({2, 3}).requires_grad_(true);
  parameter.mutable_grad() = at::_efficientzerotensor({2, 3}, at::TensorOptions(at::kFloat));
  ASSERT_TRUE(parameter.grad()._is_zerotensor());
  materialize_gradient(parameter);
  EXPECT_FALSE(parameter.grad()._is_zerotensor());
  parameter.mutable_grad().add_(1);  // as the next microbatch would
  EXPECT_TRUE(parameter.grad().eq(1).all().item<bool>());
}

TEST(MaterializeGradient, LeavesOtherGradientsInTheirMemory) {
  const at::Tensor parameter = at::ones({2}).requires_grad_(true);
  materialize_gradient(parameter);
  EXPECT_FALSE(parameter.grad().defined());
  const at::Tensor gradient = at::full({2}, 3.0F);
  parameter.mutable_grad() = gradient;
  materialize_gradient(parameter);
  EXPECT_EQ(parameter.grad().const_data_ptr(), gradient.const_data_ptr());
}

}  // namespace
}  // namespace stagecraft::stage
