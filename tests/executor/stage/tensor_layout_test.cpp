#include "executor/stage/tensor_layout.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace stagecraft::stage {
namespace {

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
