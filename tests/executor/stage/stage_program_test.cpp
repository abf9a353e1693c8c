#include "executor/stage/stage_program.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "executor/model/model.h"
#include "tests/support/models/closure_layers.h"

namespace stagecraft::stage {
namespace {

/// The second layer computes the loss from sgn of the first layer's output and sgn of a weight.
model::Model signs() {
  model::Model model;
  const model::ValueRef x = model::append(model, model::ModelInput{"x", "float32", {3}});
  const model::ValueRef hidden = testing::closure_relu(model, "first", x);
  model::append(model, {.name = "loss",
                        .kind = "Signs",
                        .inputs = {hidden},
                        .parameters = {model::ones("weight", {3})},
                        .forward = [](const model::LayerCall& call) -> std::vector<at::Tensor> {
                          return {call.inputs[0].sgn().sum().add(call.parameters[0].sgn().sum())};
                        }});
  return model;
}

TEST(StageProgram, GivesMemoryToZeroGradientsThatHaveNone) {
  const model::Model model = signs();
  // Autograd returns a zero tensor here; otherwise this test would prove nothing.
  at::Tensor leaf = at::ones({2, 3}).requires_grad_(true);
  leaf.sgn().sum().backward();
  ASSERT_TRUE(leaf.grad()._is_zerotensor());

  for (const bool recomputes : {false, true}) {
    for (const bool parts : {false, true}) {
      StageProgram program(model, {1}, {{.value = {.layer = 0}}}, {}, 1);
      if (recomputes) program.recompute_every(0);
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        Flight flight = program.forward({at::ones({2, 3})}, {}, 0, microbatch);
        SplitBackward rest;
        const std::vector<at::Tensor> gradients =
            parts ? program.backward_of_inputs(std::move(flight), {}, rest) : program.backward(std::move(flight), {});
        if (parts) rest.of_weights();
        ASSERT_EQ(gradients.size(), 1U);
        EXPECT_FALSE(gradients[0]._is_zerotensor());
        EXPECT_NE(gradients[0].const_data_ptr(), nullptr);
        EXPECT_TRUE(at::equal(gradients[0], at::zeros({2, 3})));
        const at::Tensor& gradient = program.parameters().front().value.grad();
        EXPECT_FALSE(gradient._is_zerotensor()) << "microbatch " << microbatch;
        EXPECT_TRUE(at::equal(gradient, at::zeros({3})));
      }
    }
  }
}

TEST(StageProgram, AddsUpGradientsInTheirTypeAndReadsParametersOfOneDimensionInFloat32) {
  model::Model model;
  const model::ValueRef x = model::append(model, model::ModelInput{"x", "float32", {2}});
  at::ScalarType read = at::kHalf;
  testing::closure_layer(model, "loss", x, {model::ones("weight", {1, 2}), model::ones("scale", {2})},
                         [&read](const model::LayerCall& call) {
                           read = call.parameters[1].scalar_type();
                           return call.inputs[0].mul(call.parameters[0]).mul(call.parameters[1]).sum();
                         });
  // Gradients of 256, 1 and 1 by x: bfloat16 has 8 bits, so 256 + 1 is 256 again.
  for (const auto& [gradients, sum] : {std::pair(StateType::Float32, 258.0F), {StateType::Bfloat16, 256.0F}}) {
    for (const bool parts : {false, true}) {
      const StateTypes types{.parameters = StateType::Bfloat16, .gradients = gradients};
      StageProgram program(model, {0}, {}, {}, 1, {.compute = at::kBFloat16, .types = types});
      for (const float value : {256.0F, 1.0F, 1.0F}) {
        Flight flight = program.forward({}, {at::full({1, 2}, value)}, 0, 0);
        SplitBackward rest;
        (void)(parts ? program.backward_of_inputs(std::move(flight), {}, rest)
                     : program.backward(std::move(flight), {}));
        rest.of_weights();
      }
      EXPECT_EQ(read, at::kFloat);
      for (const Parameter& parameter : program.parameters()) {
        EXPECT_EQ(parameter.value.scalar_type(), at::kBFloat16);
        EXPECT_EQ(c10::toString(parameter.value.grad().scalar_type()), c10::toString(gradient_type(parameter.value)));
        EXPECT_TRUE(at::equal(parameter.value.grad().to(at::kFloat), at::full(parameter.value.sizes(), sum)))
            << parameter.name << ' ' << parameter.value.grad();
      }
    }
  }
}

TEST(StageProgram, LeavesGradientsInTheLayoutOfTheBackward) {
  model::Model model;
  const model::ValueRef hidden =
      testing::closure_relu(model, "first", model::append(model, model::ModelInput{"x", "float32", {3}}));
  model::append(model, {.name = "loss",
                        .kind = "Sum",
                        .inputs = {hidden},
                        .parameters = {},
                        .forward = [](const model::LayerCall& call) -> std::vector<at::Tensor> {
                          return {call.inputs[0].sum()};
                        }});
  StageProgram program(model, {1}, {{.value = {.layer = 0}}}, {}, 1);
  const auto gradients = program.backward(program.forward({at::ones({2, 3})}, {}, 0, 0), {});
  EXPECT_EQ(gradients[0].strides(), at::IntArrayRef({0, 0})) << "one value, repeated by the backward of the sum";
  EXPECT_TRUE(at::equal(gradients[0], at::ones({2, 3})));
}

TEST(StageProgram, CopiesForARecomputeWhatAForwardMayWriteAndNothingElse) {
  model::Model model;
  const model::ValueRef x = model::append(model, model::ModelInput{"x", "float32", {3}});
  std::vector<std::set<const void*>> seen(3);  // by buffer: its addresses when the layer ran
  model::ParameterSpec moving = model::zeros("moving", {3}), written = model::zeros("written", {3}),
                       frozen = model::ones("frozen", {3});
  moving.trainable = written.trainable = frozen.trainable = false;
  moving.decay = 0.5;
  written.written = true;
  model::append(model, {.name = "loss",
                        .kind = "Scale",
                        .inputs = {x},
                        .parameters = {model::ones("weight", {3}), moving, written, frozen},
                        .forward = [&seen](const model::LayerCall& call) -> std::vector<at::Tensor> {
                          for (std::size_t i = 0; i < seen.size(); ++i)
                            seen[i].insert(call.buffers[i].const_data_ptr());
                          call.buffers[0].mul_(0.5).add_(1);
                          call.buffers[1].add_(1);
                          return {call.inputs[0].mul(call.parameters[0]).mul(call.buffers[2]).sum()};
                        }});
  StageProgram program(model, {0}, {}, {}, 1);
  program.recompute_every(0);
  (void)program.backward(program.forward({}, {at::ones({2, 3})}, 0, 0), {});
  EXPECT_EQ(seen[0].size(), 2U);
  EXPECT_EQ(seen[1].size(), 2U);
  EXPECT_EQ(seen[2].size(), 1U);
  const std::vector<Parameter> buffers = program.buffers();
  EXPECT_TRUE(at::equal(buffers[0].value, at::ones({3}))) << "moved once";
  EXPECT_TRUE(at::equal(buffers[1].value, at::ones({3}))) << "written once";
}

TEST(StageProgram, RecomputesWithTheBuffersThatTheForwardOfTheMicrobatchRead) {
  model::Model model;
  const model::ValueRef x = model::append(model, model::ModelInput{"x", "float32", {3}});
  model::ParameterSpec calls = model::zeros("calls", {});
  calls.trainable = false;
  calls.written = true;
  const auto counted = [&](const std::string& name, model::ValueRef input) {
    calls.name = name + ".calls";
    return model::append(model, {.name = name,
                                 .kind = "Counted",
                                 .inputs = {input},
                                 .parameters = {calls, model::ones(name + ".weight", {3})},
                                 .forward = [](const model::LayerCall& call) -> std::vector<at::Tensor> {
                                   call.buffers[0].add_(1);
                                   return {call.inputs[0].mul(call.parameters[0]).mul(call.buffers[0].clone())};
                                 }});
  };
  const model::ValueRef hidden = counted("second", counted("first", x));
  model::append(model, {.name = "loss",
                        .kind = "Sum",
                        .inputs = {hidden},
                        .parameters = {},
                        .forward = [](const model::LayerCall& call) -> std::vector<at::Tensor> {
                          return {call.inputs[0].sum()};
                        }});
  for (const int every : {0, 1, 2}) {
    for (const bool parts : {false, true}) {
      StageProgram program(model, {0, 1, 2}, {}, {}, 1);
      program.recompute_every(every);
      std::vector<Flight> flights;
      for (int microbatch = 0; microbatch < 3; ++microbatch)
        flights.push_back(program.forward({}, {at::ones({2, 3})}, 0, microbatch));
      for (Flight& flight : flights) {
        SplitBackward rest;
        (void)(parts ? program.backward_of_inputs(std::move(flight), {}, rest)
                     : program.backward(std::move(flight), {}));
        if (parts) rest.of_weights();
      }
      // Microbatch m computes sum(x * w1 * (m + 1) * w2 * (m + 1)) over two rows: 2 * (1 + 4 + 9) for each weight.
      for (const Parameter& parameter : program.parameters())
        EXPECT_TRUE(at::equal(parameter.value.grad(), at::full({3}, 28.F))) << parameter.name << parameter.value.grad();
      for (const Parameter& buffer : program.buffers()) EXPECT_EQ(buffer.value.item<float>(), 3) << buffer.name;
    }
  }
}

at::Tensor numbered(const std::vector<std::int64_t>& shape) {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) count *= size;
  return at::arange(count, at::kFloat).view(shape);
}

/// A tensor with a random shape and a random memory order of its axes.
at::Tensor permuted(std::mt19937& random) {
  std::vector<std::int64_t> shape(1 + random() % 4), order(shape.size());
  for (std::int64_t& size : shape) size = 1 + static_cast<std::int64_t>(random() % 4);
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  std::ranges::shuffle(order, random);
  return numbered(shape).permute(order);
}

TEST(LaidOutLike, CopiesIntoTheOtherLayout) {
  const at::Tensor like = at::ones({3, 2}).t();
  const at::Tensor tensor = numbered({2, 3});
  const at::Tensor out = laid_out_like(tensor, like);
  EXPECT_EQ(out.strides(), at::IntArrayRef({1, 2}));
  EXPECT_TRUE(at::equal(out, tensor));
  // Column-major in memory: 0, 3, then 1, 4, then 2, 5.
  EXPECT_EQ(out.const_data_ptr<float>()[1], 3);
}

TEST(LaidOutLike, GivesTheTensorItselfWhereNothingIsToBeDone) {
  const at::Tensor tensor = numbered({2, 3});
  EXPECT_TRUE(laid_out_like(tensor, at::ones({2, 3})).is_same(tensor));
  const at::Tensor overlapping = at::ones({1, 3}).expand({2, 3});
  EXPECT_TRUE(laid_out_like(tensor, overlapping).is_same(tensor));
  const at::Tensor gaps = at::ones({2, 6}).slice(1, 0, 6, 2);
  EXPECT_TRUE(laid_out_like(tensor, gaps).is_same(tensor));
}

TEST(LaidOutLike, KeepsTypeAndValuesForAnyPermutation) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const at::Tensor like = permuted(random);
    const at::Tensor tensor = numbered(like.sizes().vec()).to(at::kDouble);
    const at::Tensor out = laid_out_like(tensor, like);
    EXPECT_EQ(out.strides(), like.strides());
    EXPECT_EQ(out.scalar_type(), at::kDouble);
    EXPECT_TRUE(at::equal(out, tensor));
  }
}

TEST(ViewLaidOutLike, CutsAFlatBufferWithoutOverlapsOrGaps) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const std::vector<at::Tensor> likes{permuted(random), permuted(random), permuted(random)};
    const std::int64_t count = likes[0].numel() + likes[1].numel() + likes[2].numel();
    const at::Tensor flat = at::ones({count + 5}).narrow(0, 5, count);  // itself a view, which begins at value 5
    std::int64_t offset = 0;
    for (const at::Tensor& like : likes) {
      const at::Tensor view = view_laid_out_like(flat, offset, like);
      EXPECT_EQ(view.sizes(), like.sizes());
      EXPECT_EQ(view.strides(), like.strides());
      view.add_(1);
      offset += like.numel();
    }
    EXPECT_TRUE(flat.eq(2).all().item<bool>()) << "each value belongs to one view";
  }
}

TEST(ViewLaidOutLike, IsContiguousWhereTheOtherHasGaps) {
  const at::Tensor flat = numbered({10});
  const at::Tensor view = view_laid_out_like(flat, 4, at::ones({2, 6}).slice(1, 0, 6, 2));
  EXPECT_TRUE(view.is_contiguous());
  EXPECT_TRUE(at::equal(view, numbered({10}).narrow(0, 4, 6).view({2, 3})));
  view.fill_(0);
  EXPECT_EQ(flat[3].item<float>(), 3);
  EXPECT_EQ(flat[4].item<float>(), 0);
}

TEST(Dense, KeepsALayoutAndCopiesOverlapsAndGaps) {
  const at::Tensor transposed = numbered({3, 2}).t();
  EXPECT_TRUE(dense(transposed).is_same(transposed));
  const at::Tensor gaps = numbered({2, 6}).slice(1, 0, 6, 2);
  const at::Tensor overlapping = numbered({1, 3}).expand({2, 3});
  for (const at::Tensor& tensor : {gaps, overlapping}) {
    EXPECT_TRUE(dense(tensor).is_contiguous());
    EXPECT_TRUE(at::equal(dense(tensor), tensor));
  }
}

}  // namespace

}  // namespace stagecraft::stage
