#include "executor/channel/tensor_memory.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

namespace stagecraft::channel {
namespace {

using Strides = std::vector<std::int64_t>;

at::Tensor counted(at::IntArrayRef shape) { return at::arange(24, at::kFloat).view(shape); }

/// Sends `tensor` as a channel does.
at::Tensor sent(const at::Tensor& tensor) {
  const at::Tensor memory = memory_of(tensor, tensor.strides()).clone();
  EXPECT_TRUE(memory.is_contiguous());
  return from_memory(memory, tensor.strides());
}

TEST(TensorMemory, KeepsStridesWithoutGaps) {
  for (const at::Tensor& tensor :
       {counted({2, 3, 4}), counted({2, 3, 4}).transpose(1, 2), counted({24, 1}).t(),
        counted({2, 3, 2, 2}).contiguous(at::MemoryFormat::ChannelsLast), counted({4, 6}).narrow(0, 1, 2).t()}) {
    EXPECT_TRUE(packed(tensor).is_same(tensor));
    const at::Tensor got = sent(tensor);
    EXPECT_EQ(got.strides(), tensor.strides());
    EXPECT_TRUE(at::equal(got, tensor));
  }
}

TEST(TensorMemory, ClosesGapsAndKeepsTheOrderOfDimensions) {
  // Columns 1 and 2 of [4, 6], transposed: [2, 4] with strides 1 and 6, then 1 and 2.
  const at::Tensor part = counted({4, 6}).narrow(1, 1, 2).t();
  EXPECT_FALSE(is_packed(part));
  const at::Tensor closed = packed(part);
  EXPECT_TRUE(is_packed(closed));
  EXPECT_EQ(closed.strides().vec(), Strides({1, 2}));
  EXPECT_TRUE(at::equal(closed, part));
  EXPECT_TRUE(at::equal(sent(closed), part));
}

TEST(TensorMemory, KeepsRepeatedDimensions) {
  const at::Tensor repeated = counted({4, 6}).t().unsqueeze(1).expand({6, 3, 4});
  EXPECT_FALSE(is_packed(repeated)) << "there is memory for 24 of 72 values";
  const at::Tensor whole = packed(repeated);
  EXPECT_TRUE(is_packed(whole));
  EXPECT_EQ(whole.strides().vec(), Strides({1, 0, 6}));
  const at::Tensor got = sent(whole);
  EXPECT_EQ(got.strides().vec(), Strides({1, 0, 6}));
  EXPECT_TRUE(at::equal(got, repeated));
  EXPECT_EQ(packed(at::ones({}).expand({2, 3})).strides().vec(), Strides({0, 0}));
}

TEST(TensorMemory, BringsATensorWithOtherStridesInTheAnnouncedOnes) {
  const at::Tensor values = counted({4, 6});
  const at::Tensor got = from_memory(memory_of(values, Strides{1, 4}), Strides{1, 4});
  EXPECT_EQ(got.strides().vec(), Strides({1, 4}));
  EXPECT_TRUE(at::equal(got, values));
  // Announced as repeated, but the values are not: the dimension of stride 0 then comes first.
  const at::Tensor other = from_memory(memory_of(values, Strides{1, 0}), Strides{1, 0});
  EXPECT_EQ(other.strides().vec(), Strides({1, 4}));
  EXPECT_TRUE(at::equal(other, values));
}

TEST(TensorMemory, TakesTensorsWithoutValuesOrDimensions) {
  EXPECT_TRUE(at::equal(sent(packed(at::ones({}))), at::ones({})));
  EXPECT_EQ(sent(packed(at::ones({3, 0, 2}).transpose(0, 2))).sizes().vec(), Strides({2, 0, 3}));
}

}  // namespace
}  // namespace stagecraft::channel
