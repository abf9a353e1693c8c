#include "executor/device/shape_kernels.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

namespace stagecraft::device {
namespace {

/// Makes the tensors of one case, on a processor or without memory.
class Tensors {
 public:
  explicit Tensors(c10::DeviceType device) : device_(device) {}
  /// With a gradient.
  at::Tensor floats(at::IntArrayRef shape) {
    leaves_.push_back(at::ones(shape, at::TensorOptions().device(device_)).requires_grad_());
    return leaves_.back();
  }
  at::Tensor plain(at::IntArrayRef shape, at::ScalarType type = at::kFloat) const {
    return at::ones(shape, at::TensorOptions().dtype(type).device(device_));
  }
  [[nodiscard]] const std::vector<at::Tensor>& leaves() const { return leaves_; }

 private:
  c10::DeviceType device_;
  std::vector<at::Tensor> leaves_;
};

struct Case {
  std::string name;
  std::function<at::Tensor(Tensors&)> run;
};

std::vector<Case> cases() {
  return {
      {"convolution",
       [](Tensors& t) {
         return at::conv2d(t.floats({2, 4, 9, 8}), t.floats({6, 2, 3, 3}), t.floats({6}), 2, 1, 2, 2);
       }},
      {"convolution_without_bias", [](Tensors& t) { return at::conv1d(t.floats({2, 4, 9}), t.floats({6, 4, 3})); }},
      {"transposed_convolution",
       [](Tensors& t) {
         return at::conv_transpose2d(t.floats({2, 4, 5, 5}), t.floats({4, 3, 3, 3}), t.floats({3}), 2, 1, 1);
       }},
      {"batch_norm",
       [](Tensors& t) {
         return at::batch_norm(t.floats({2, 4, 3, 3}), t.floats({4}), t.floats({4}), t.plain({4}), t.plain({4}), true,
                               0.1, 1e-5, false);
       }},
      {"batch_norm_in_evaluation",
       [](Tensors& t) {
         return at::batch_norm(t.floats({2, 4, 3, 3}), t.floats({4}), t.floats({4}), t.plain({4}), t.plain({4}), false,
                               0.1, 1e-5, false);
       }},
      {"batch_norm_without_weights",
       [](Tensors& t) {
         return at::batch_norm(t.floats({2, 4, 3}), {}, {}, t.plain({4}), t.plain({4}), true, 0.1, 1e-5, false);
       }},
      {"layer_norm",
       [](Tensors& t) { return at::layer_norm(t.floats({2, 5, 3, 4}), {3, 4}, t.floats({3, 4}), t.floats({3, 4})); }},
      {"layer_norm_without_weights", [](Tensors& t) { return at::layer_norm(t.floats({2, 5, 4}), {4}); }},
      {"group_norm", [](Tensors& t) { return at::group_norm(t.floats({2, 6, 5}), 3, t.floats({6}), t.floats({6})); }},
      {"embedding", [](Tensors& t) { return at::embedding(t.floats({7, 3}), t.plain({2, 4}, at::kLong)); }},
      {"index_select", [](Tensors& t) { return at::index_select(t.floats({2, 5, 3}), -2, t.plain({4}, at::kLong)); }},
      {"where",
       [](Tensors& t) {
         return at::where(t.plain({4, 1}, at::kBool), t.floats({3}), t.plain({2, 1, 1}, at::kDouble));
       }},
      {"relu", [](Tensors& t) { return at::relu(t.floats({2, 3})); }},
      {"hardswish", [](Tensors& t) { return at::hardswish(t.floats({2, 3})); }},
      {"abs", [](Tensors& t) { return at::abs(t.floats({2, 3})); }},
      {"logical_and", [](Tensors& t) { return at::logical_and(t.plain({2, 1}, at::kBool), t.plain({3}, at::kBool)); }},
      {"logical_not", [](Tensors& t) { return at::logical_not(t.plain({2, 3})); }},
      {"flip", [](Tensors& t) { return at::flip(t.floats({2, 3}), {1}); }},
      {"roll", [](Tensors& t) { return at::roll(t.floats({2, 3}), {1}, {0}); }},
      {"variance",
       [](Tensors& t) { return at::var(t.floats({2, 3, 4}), at::OptionalIntArrayRef({0, -1}), true, true); }},
      {"deviation",
       [](Tensors& t) { return at::std(t.floats({2, 3, 4}), at::OptionalIntArrayRef({1}), false, false); }},
      {"variance_of_all", [](Tensors& t) { return at::var(t.floats({2, 3}), true); }},
      {"nll_loss2d", [](Tensors& t) { return at::nll_loss2d(t.floats({2, 3, 4, 5}), t.plain({2, 4, 5}, at::kLong)); }},
      {"nll_loss2d_of_each_pixel",
       [](Tensors& t) {
         return at::nll_loss2d(t.floats({2, 3, 4, 5}), t.plain({2, 4, 5}, at::kLong), {}, at::Reduction::None);
       }},
      {"mse_loss", [](Tensors& t) { return at::mse_loss(t.floats({2, 3}), t.plain({2, 3})); }},
      {"adaptive_average_pool", [](Tensors& t) { return at::adaptive_avg_pool2d(t.floats({2, 3, 8, 6}), {4, 2}); }},
      {"attention",
       [](Tensors& t) {
         return at::scaled_dot_product_attention(t.floats({2, 4, 6, 8}), t.floats({2, 4, 5, 8}),
                                                 t.floats({2, 4, 5, 8}));
       }},
      {"attention_with_a_mask",
       [](Tensors& t) {
         return at::scaled_dot_product_attention(t.floats({2, 4, 6, 8}), t.floats({2, 4, 5, 8}), t.floats({2, 4, 5, 8}),
                                                 t.plain({6, 5}, at::kBool));
       }},
      {"attention_without_heads",
       [](Tensors& t) {
         return at::scaled_dot_product_attention(t.floats({2, 6, 8}), t.floats({2, 5, 8}), t.floats({2, 5, 8}));
       }},
  };
}

/// Shape and type of the result and of the gradient of each leaf.
std::vector<std::string> shapes(const Case& tested, c10::DeviceType device) {
  Tensors tensors(device);
  std::vector<at::Tensor> found{tested.run(tensors)};
  if (found[0].requires_grad()) {
    const auto gradients = torch::autograd::grad({found[0]}, tensors.leaves(), {at::ones_like(found[0])});
    found.insert(found.end(), gradients.begin(), gradients.end());
  }
  std::vector<std::string> out;
  for (const at::Tensor& tensor : found) {
    EXPECT_EQ(tensor.device().type(), device);
    out.push_back(c10::str(tensor.sizes(), " ", tensor.scalar_type()));
  }
  return out;
}

class ShapeKernelOf : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override { register_shape_kernels(); }
};

TEST_P(ShapeKernelOf, GivesTheShapesOfAProcessor) {
  EXPECT_EQ(shapes(GetParam(), c10::kMeta), shapes(GetParam(), c10::kCPU));
}

INSTANTIATE_TEST_SUITE_P(EveryOperator, ShapeKernelOf, ::testing::ValuesIn(cases()),
                         [](const auto& tested) { return tested.param.name; });

TEST(ShapeKernels, RefuseAWholeRecurrentLayer) {
  register_shape_kernels();
  register_shape_kernels();  // has no effect
  Tensors t(c10::kMeta);
  // One layer of width 3 on inputs of width 2: 4 gates.
  const std::vector<at::Tensor> parameters{t.floats({12, 2}), t.floats({12, 3})};
  const std::vector<at::Tensor> states{t.plain({1, 5, 3}), t.plain({1, 5, 3})};
  const auto run = [&] { (void)at::lstm(t.plain({4, 5, 2}), states, parameters, false, 1, 0, true, false, false); };
  EXPECT_THAT(run, ::testing::Throws<c10::Error>());
}

}  // namespace
}  // namespace stagecraft::device
