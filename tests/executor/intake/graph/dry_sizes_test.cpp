#include "executor/intake/graph/dry_sizes.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <array>

namespace stagecraft::intake {
namespace {

/// Runs of 2, 3, 2 and 5 samples.
const DryRuns kRuns{{2, 3, 2, 5}};

/// The expression as text; "" if there is none.
std::string line_through(const std::vector<std::int64_t>& found) {
  const std::optional<SizeExpression> line = affine(kRuns, found);
  return line ? to_string(*line) : "";
}

TEST(Affine, FindsTheLineThroughAllRuns) {
  EXPECT_EQ(line_through({7, 7, 7, 7}), "7");
  EXPECT_EQ(line_through({2, 3, 2, 5}), "batch");
  // 4b - 1 at 2, 3, 2 and 5.
  const std::optional<SizeExpression> line = affine(kRuns, std::array<std::int64_t, 4>{7, 11, 7, 19});
  ASSERT_TRUE(line);
  for (const std::int64_t batch : {0, 1, 6}) EXPECT_EQ(evaluate(*line, {{kBatch, batch}}), 4 * batch - 1);
  // 3 - b falls.
  const std::optional<SizeExpression> falling = affine(kRuns, std::array<std::int64_t, 4>{1, 0, 1, -2});
  ASSERT_TRUE(falling);
  EXPECT_EQ(evaluate(*falling, {{kBatch, 10}}), -7);
}

TEST(Affine, FindsNoneIfSizesDependOnTheDataOrOtherwise) {
  EXPECT_EQ(line_through({4, 9, 4, 25}), "") << "a square";
  EXPECT_EQ(line_through({2, 3, 1, 5}), "") << "two runs of 2 samples differ";
  EXPECT_EQ(line_through({1, 1, 1, 2}), "") << "half of it, rounded down";
  EXPECT_FALSE(affine({{2, 4}}, std::array<std::int64_t, 2>{0, 1})) << "a slope of a half";
  EXPECT_EQ(line_through({2, 3, 2}), "") << "a run is missing";
  EXPECT_EQ(line_through({}), "");
}

TEST(MetaOf, DescribesTheSizesOfTensorsByTheBatch) {
  std::vector<at::Tensor> found;
  for (const std::int64_t samples : kRuns.samples) found.push_back(at::empty({3, 2 * samples}, at::kLong));
  const std::optional<TensorMeta> meta = meta_of(kRuns, found);
  ASSERT_TRUE(meta);
  EXPECT_EQ(meta->dtype, at::kLong);
  ASSERT_EQ(meta->sizes.size(), 2U);
  EXPECT_EQ(constant_value(meta->sizes[0]), 3);
  EXPECT_EQ(evaluate(meta->sizes[1], {{kBatch, 7}}), 14);
  EXPECT_EQ(evaluate(meta->strides[0], {{kBatch, 7}}), 14) << "a row";
  EXPECT_EQ(constant_value(meta->strides[1]), 1);
  EXPECT_EQ(constant_value(meta->storage_offset), 0);
}

TEST(MetaOf, DescribesViewsByWhereTheyBegin) {
  std::vector<at::Tensor> found;
  for (const std::int64_t samples : kRuns.samples)
    found.push_back(at::empty({samples + 1, 4}, at::kFloat).narrow(0, samples, 1));
  const std::optional<TensorMeta> meta = meta_of(kRuns, found);
  ASSERT_TRUE(meta);
  EXPECT_EQ(constant_value(meta->sizes[0]), 1);
  EXPECT_EQ(evaluate(meta->storage_offset, {{kBatch, 10}}), 40) << "row 10 of rows of 4";
}

TEST(MetaOf, FindsNoneForTensorsThatHaveNothingInCommon) {
  const auto of = [](const at::Tensor& second) {
    const std::vector<at::Tensor> found{at::empty({2, 4}), second};
    return meta_of({{2, 3}}, found).has_value();
  };
  EXPECT_TRUE(of(at::empty({3, 4})));
  EXPECT_FALSE(of(at::empty({3, 4}, at::kLong))) << "another type";
  EXPECT_FALSE(of(at::empty({12}))) << "another number of axes";
  EXPECT_FALSE(of(at::Tensor())) << "undefined";
  EXPECT_FALSE(of(at::empty({3, 4}).to_sparse())) << "sparse";
  const std::vector<at::Tensor> squares{at::empty({4}), at::empty({9}), at::empty({4}), at::empty({25})};
  EXPECT_FALSE(meta_of(kRuns, squares)) << "a size that is not a line";
}

}  // namespace
}  // namespace stagecraft::intake
