#include "executor/intake/graph/program/typed_call.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <utility>

#include "costmodel/index.h"

namespace stagecraft::intake {
namespace {

using ::testing::ThrowsMessage;
using Form = ArgumentPush::Form;
using Values = std::vector<c10::IValue>;

/// Different numbers between -1 and 1.
at::Tensor numbers(const std::vector<std::int64_t>& sizes) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return at::arange(count, at::kFloat).sin().view(sizes);
}

/// A frame whose slots hold the tensors among `values`, and the arguments that find them all.
std::pair<Frame, std::vector<ArgumentPush>> call_of(const Values& values) {
  std::pair<Frame, std::vector<ArgumentPush>> out;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      out.second.push_back({Form::Slot, {}, {{to_int(out.first.slots.size()), 0}}});
      out.first.slots.push_back(value);
    } else {
      out.second.push_back({Form::Constant, value, {}});
    }
  }
  return out;
}

std::vector<at::Tensor> tensors_of(const c10::IValue& result) {
  return result.isTensor() ? std::vector<at::Tensor>{result.toTensor()} : result.toTensorVector();
}

/// What the operator gives from a stack.
std::vector<at::Tensor> boxed(const c10::OperatorName& name, Values stack) {
  c10::Dispatcher::singleton().findSchema(name).value().callBoxed(stack);
  return tensors_of(stack.at(0));
}

using Sizes = std::vector<std::int64_t>;

struct Sample {
  const char* name;
  const char* overload;
  Values arguments;
};

TEST(TypedCall, GivesWhatTheStackGives) {
  const at::Tensor x = numbers({2, 3, 4});
  const at::Tensor y = x.cos();
  const at::Tensor row = numbers({4});
  const at::Tensor square = numbers({4, 4});
  const at::Tensor heads = numbers({2, 2, 3, 4});
  const at::Tensor indices = at::arange(3, at::kLong);
  const c10::IValue none;
  const c10::IValue one = std::int64_t{1};
  const c10::IValue two = std::int64_t{2};
  const c10::IValue last = std::int64_t{-1};
  const std::vector<Sample> samples{
      {"add", "Tensor", {x, y, c10::Scalar(2)}},
      {"chunk", "", {x, two, last}},
      {"contiguous", "", {x.transpose(0, 1), static_cast<std::int64_t>(at::MemoryFormat::Contiguous)}},
      {"cross_entropy_loss", "", {numbers({3, 4}), indices, none, one, std::int64_t{-100}, 0.1}},
      {"embedding", "", {square, indices, last, false, false}},
      {"expand", "", {x, Sizes{2, 2, 3, 4}, false}},
      {"flatten", "using_ints", {x, one, last}},
      {"gelu", "", {x, "tanh"}},
      {"layer_norm", "", {x, Sizes{4}, row, none, 1e-5, false}},
      {"linear", "", {x, square, row}},
      {"linear", "", {x, square, none}},
      {"matmul", "", {x, square}},
      {"mul", "Scalar", {x, c10::Scalar(0.5)}},
      {"mul", "Tensor", {x, y}},
      {"permute", "", {x, Sizes{2, 0, 1}}},
      {"relu", "", {x}},
      {"reshape", "", {x.transpose(0, 1), Sizes{6, 4}}},
      {"scaled_dot_product_attention", "", {heads, heads, heads, none, 0.0, true, none, false}},
      {"select", "int", {x, one, two}},
      {"slice", "Tensor", {x, one, one, none, one}},
      {"softmax", "int", {x, last, none}},
      {"split", "sizes", {x, Sizes{1, 3}, last}},
      {"tanh", "", {x}},
      {"transpose", "int", {x, one, two}},
      {"unflatten", "int", {x, two, Sizes{2, 2}}},
      {"unsqueeze", "", {x, one}},
      {"view", "", {x, Sizes{6, 4}}},
  };
  for (const Sample& sample : samples) {
    const c10::OperatorName name{"aten::" + std::string(sample.name), sample.overload};
    const std::vector<at::Tensor> expected = boxed(name, sample.arguments);
    auto [frame, arguments] = call_of(sample.arguments);
    std::vector<int> results;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      results.push_back(to_int(frame.slots.size()));
      frame.slots.emplace_back();
    }
    const auto call = typed_call(name, arguments, results, "place");
    ASSERT_TRUE(call) << name;
    (*call)(frame);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const at::Tensor& found = frame.slots[to_index(results[i])].toTensor();
      EXPECT_TRUE(found.equal(expected[i])) << name;
      EXPECT_EQ(found.strides(), expected[i].strides()) << name;
    }
  }
}

TEST(TypedCall, TakesNumbersFromTheFrame) {
  Frame frame;
  frame.slots = {at::arange(6), std::int64_t{3}, {}, {}};
  const ArgumentPush x{Form::Slot, {}, {{0, 0}}};
  const ArgumentPush three{Form::Slot, {}, {{1, 0}}};
  const ArgumentPush zero{Form::Constant, std::int64_t{0}, {}};
  const ArgumentPush one{Form::Constant, std::int64_t{1}, {}};
  typed_call({"aten::view", ""}, {x, {Form::Ints, {}, {{-1, 2}, {1, 0}}}}, {2}, "place").value()(frame);
  EXPECT_EQ(frame.slots[2].toTensor().sizes(), (std::vector<std::int64_t>{2, 3}));
  typed_call({"aten::slice", "Tensor"}, {x, zero, three, {}, one}, {3}, "place").value()(frame);
  EXPECT_TRUE(frame.slots[3].toTensor().equal(at::arange(3, 6)));
}

TEST(TypedCall, LeavesOtherOperatorsAndArgumentsToTheStack) {
  EXPECT_FALSE(typed_call({"aten::sin", ""}, {{Form::Slot, {}, {{0, 0}}}}, {1}, "place"));
  EXPECT_FALSE(
      typed_call({"aten::mul", "Tensor"}, {{Form::Slot, {}, {{0, 0}}}, {Form::Wrapped, {}, {{1, 0}}}}, {2}, "place"));
}

TEST(TypedCall, NamesThePlaceOfAListOfAnotherLength) {
  auto made = call_of({at::ones({2, 4}), std::int64_t{2}, std::int64_t{-1}});
  const NodeCall call = typed_call({"aten::chunk", ""}, made.second, {-1, -1, -1}, "m.pt2: node \"n\"").value();
  EXPECT_THAT([&] { call(made.first); },
              ThrowsMessage<std::runtime_error>("m.pt2: node \"n\": gave 2 tensors, expected 3"));
}

}  // namespace
}  // namespace stagecraft::intake
