#include "executor/stage/split_backward.h"

#include <ATen/ops/_efficientzerotensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>

#include "costmodel/index.h"
#include "profiler/subject/subject.h"
#include "tests/profiler/small_models.h"

namespace stagecraft::stage {
namespace {

/// The second half of a model's layers, as a stage that receives values from the first half.
struct Tail {
  explicit Tail(const Small& small) : model(intake::build_model(small.name, small.set)) {
    const int count = to_int(model.layers.size());
    const int first = count / 2;
    std::vector<int> layers;
    std::map<std::pair<int, int>, ReceivedValue> crossing;
    for (int layer = first; layer < count; ++layer) {
      layers.push_back(layer);
      for (const model::ValueRef& value : model.layers[to_index(layer)].inputs) {
        if (value.layer >= 0 && value.layer < first) crossing[{value.layer, value.output}] = {value, true};
      }
    }
    Whole whole(model);
    const auto outputs = profiler::layer_outputs(model, whole.batch, 1, {});
    std::vector<ReceivedValue> received;
    for (const auto& [key, value] : crossing) {
      received.push_back(value);
      values.push_back(outputs[to_index(key.first)][to_index(key.second)].detach());
      received.back().gradient = values.back().is_floating_point();
    }
    program = std::make_unique<StageProgram>(model, layers, received, std::vector<model::ValueRef>{}, 1);
    const auto source = data::make_data_source("synthetic", model, 1);
    data = source->batch(0, 0, 1, 2, program->data_inputs());
  }
  Flight forward() { return program->forward(values, data, 0, 0); }
  void clear() {
    for (Parameter& parameter : program->parameters()) parameter.value.mutable_grad() = at::Tensor();
  }
  std::vector<at::Tensor> gradients() {
    std::vector<at::Tensor> out;
    for (Parameter& parameter : program->parameters())
      out.push_back(parameter.value.grad().defined() ? parameter.value.grad().clone() : at::Tensor());
    return out;
  }
  model::Model model;
  std::unique_ptr<StageProgram> program;
  std::vector<at::Tensor> values;
  std::vector<at::Tensor> data;
};

void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(found[i].defined(), expected[i].defined()) << i;
    if (found[i].defined()) { EXPECT_TRUE(at::equal(found[i], expected[i])) << i; }
  }
}

class SplitBackwardOn : public ::testing::TestWithParam<Small> {};

TEST_P(SplitBackwardOn, GivesTheBitsOfOneBackward) {
  Tail tail(GetParam());
  const std::vector<at::Tensor> input_gradients = tail.program->backward(tail.forward(), {});
  const std::vector<at::Tensor> weight_gradients = tail.gradients();

  tail.clear();
  Flight flight = tail.forward();
  auto [first, rest] = SplitBackward::of_inputs({flight.loss}, {at::Tensor()}, flight.received);
  expect_same(first, input_gradients);
  rest.of_weights();
  expect_same(tail.gradients(), weight_gradients);
}

TEST_P(SplitBackwardOn, AddsUpMicrobatchesInTheOrderOfTheirSecondParts) {
  Tail tail(GetParam());
  for (int m = 0; m < 3; ++m) (void)tail.program->backward(tail.forward(), {});
  const std::vector<at::Tensor> expected = tail.gradients();
  tail.clear();
  std::vector<Flight> flights;
  std::vector<SplitBackward> rests;
  for (int m = 0; m < 3; ++m) {
    flights.push_back(tail.forward());
    rests.push_back(SplitBackward::of_inputs({flights.back().loss}, {at::Tensor()}, flights.back().received).second);
  }
  for (SplitBackward& rest : rests) rest.of_weights();
  expect_same(tail.gradients(), expected);
}

INSTANTIATE_TEST_SUITE_P(EveryModel, SplitBackwardOn, ::testing::ValuesIn(small_models()),
                         [](const auto& tested) { return tested.param.name; });

TEST(SplitBackward, LeavesTheWeightsForLater) {
  Tail tail(small_models().front());
  Flight flight = tail.forward();
  auto [first, rest] = SplitBackward::of_inputs({flight.loss}, {at::Tensor()}, flight.received);
  for (const at::Tensor& gradient : tail.gradients()) EXPECT_FALSE(gradient.defined());
  rest.of_weights();
  for (const at::Tensor& gradient : tail.gradients()) EXPECT_TRUE(gradient.defined());
  rest.of_weights();  // computes nothing more
}

TEST(SplitBackward, DoesAllAtOnceWhereAWeightIsUsedTwice) {
  const at::Tensor x = at::ones({3}).set_requires_grad(true);
  const at::Tensor w = at::full({3}, 2.0).set_requires_grad(true);
  // y = (x w) w: dy/dx = w^2 = 4, dy/dw = 2 x w = 4.
  auto [first, rest] = SplitBackward::of_inputs({x.mul(w).mul(w)}, {at::ones({3})}, {x});
  EXPECT_TRUE(at::equal(first.at(0), at::full({3}, 4.0)));
  EXPECT_TRUE(at::equal(w.grad(), at::full({3}, 4.0)));
  rest.of_weights();
  EXPECT_TRUE(at::equal(w.grad(), at::full({3}, 4.0)));
}

TEST(SplitBackward, EntersALayerThatIsReadTwiceOnce) {
  const at::Tensor w = at::ones({1}).set_requires_grad(true);
  at::Tensor y = w.mul(1);
  for (int layer = 0; layer < 60; ++layer) y = y.add(y);  // 2^60 paths
  auto [first, rest] = SplitBackward::of_inputs({y}, {at::ones({1})}, {});
  rest.of_weights();
  EXPECT_TRUE(at::equal(w.grad(), at::full({1}, std::ldexp(1.0, 60))));
}

TEST(SplitBackward, KeepsARootThatLeadsToWeightsAlone) {
  const at::Tensor x = at::ones({3}).set_requires_grad(true);
  const at::Tensor w = at::full({3}, 2.0).set_requires_grad(true);
  const at::Tensor v = at::full({3}, 5.0).set_requires_grad(true);
  auto [first, rest] = SplitBackward::of_inputs({x.mul(w), v.mul(v.detach())}, {at::ones({3}), at::ones({3})}, {x});
  EXPECT_TRUE(at::equal(first.at(0), at::full({3}, 2.0)));
  EXPECT_FALSE(v.grad().defined());
  rest.of_weights();
  EXPECT_TRUE(at::equal(w.grad(), at::ones({3})));
  EXPECT_TRUE(at::equal(v.grad(), at::full({3}, 5.0)));
}

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
