#include "profiler/layers/operator_work.h"

#include <gtest/gtest.h>

#include <numeric>

namespace stagecraft::profiler {
namespace {

using Shape = std::vector<std::int64_t>;

CountedTensor floats(const Shape& shape) {
  return {shape, Bytes(4 * std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>())), true};
}
CountedTensor indices(const Shape& shape) {
  return {shape, Bytes(8 * std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>())), false};
}
CountedArgument tensor(const Shape& shape) { return {{floats(shape)}, {}}; }
CountedArgument integers(const Shape& values) { return {{}, values}; }
CountedArgument absent() { return {}; }

double flops_of(const OperatorCall& call) { return work_of(call).flops.value; }

// Three rows of five sums of four products: 60 multiply-adds. Read 5 + 12 + 20 values, written 15, 4 bytes each.
TEST(OperatorWork, CountsAMultiplyAddAsTwoAndABiasNot) {
  const Work work = work_of({"aten::addmm", {tensor({5}), tensor({3, 4}), tensor({4, 5})}, {tensor({3, 5})}});
  EXPECT_EQ(work.flops, Flops(120));
  EXPECT_EQ(work.moved, Bytes(208));
  EXPECT_EQ(work.operators, 1);
}

TEST(OperatorWork, CountsProductsOfBatchesAndVectors) {
  EXPECT_EQ(flops_of({"aten::bmm", {tensor({2, 3, 4}), tensor({2, 4, 5})}, {tensor({2, 3, 5})}}), 2 * 2 * 3 * 4 * 5);
  EXPECT_EQ(flops_of({"aten::mm", {tensor({3, 4}), tensor({4, 1})}, {tensor({3, 1})}}), 24);
  EXPECT_EQ(flops_of({"aten::mv", {tensor({3, 4}), tensor({4})}, {tensor({3})}}), 24);
  EXPECT_EQ(flops_of({"aten::baddbmm", {tensor({2, 3, 5}), tensor({2, 3, 4}), tensor({2, 4, 5})}, {tensor({2, 3, 5})}}),
            240);
}

OperatorCall convolution(const Shape& input, const Shape& weight, const Shape& output, bool transposed) {
  return {"aten::convolution",
          {tensor(input), tensor(weight), absent(), integers({2, 2}), integers({1, 1}), integers({1, 1}),
           integers({transposed ? 1 : 0}), integers({0, 0}), integers({1})},
          {tensor(output)}};
}

// Two groups, stride 2: each of the 2 * 4 * 4 * 4 results sums over 3 channels of 3 x 3.
TEST(OperatorWork, CountsAConvolutionByItsResultsAndOneWindow) {
  EXPECT_EQ(flops_of(convolution({2, 6, 8, 8}, {4, 3, 3, 3}, {2, 4, 4, 4}, false)), 2 * 128 * 27);
}

// Transposed: each of the 4 * 4 * 4 inputs is spread over 3 channels of 2 x 2.
TEST(OperatorWork, CountsATransposedConvolutionByItsInputs) {
  EXPECT_EQ(flops_of(convolution({1, 4, 4, 4}, {4, 3, 2, 2}, {1, 3, 8, 8}, true)), 2 * 64 * 12);
}

// Each gradient that is asked for takes as many multiply-adds as the forward; that of the bias sums 128 values.
TEST(OperatorWork, CountsOnlyTheGradientsThatAConvolutionGives) {
  OperatorCall call{
      "aten::convolution_backward",
      {tensor({2, 4, 4, 4}), tensor({2, 6, 8, 8}), tensor({4, 3, 3, 3}), integers({4}), integers({2, 2}),
       integers({1, 1}), integers({1, 1}), integers({0}), integers({0, 0}), integers({2}), integers({1, 1, 1})},
      {tensor({2, 6, 8, 8}), tensor({4, 3, 3, 3}), tensor({4})}};
  EXPECT_EQ(flops_of(call), 2 * 6912 + 128);
  call.results[0] = absent();
  EXPECT_EQ(flops_of(call), 6912 + 128);
  call.results[2] = absent();
  EXPECT_EQ(flops_of(call), 6912);
}

// 1 x 2 heads, 3 queries, 5 keys of width 4, values of width 6: 30 scores. The forward sums over 4 for each and spreads
// over 6; the backward computes the scores again and four more products: three with width 4, two with width 6.
TEST(OperatorWork, CountsFusedAttentionAsItsProducts) {
  const std::vector<CountedArgument> qkv{tensor({1, 2, 3, 4}), tensor({1, 2, 5, 4}), tensor({1, 2, 5, 6})};
  EXPECT_EQ(flops_of({"aten::_scaled_dot_product_flash_attention_for_cpu", qkv, {tensor({1, 2, 3, 6})}}),
            2 * 30 * (4 + 6));
  std::vector<CountedArgument> backward{tensor({1, 2, 3, 6})};
  backward.insert(backward.end(), qkv.begin(), qkv.end());
  EXPECT_EQ(flops_of({"aten::_scaled_dot_product_efficient_attention_backward", backward, qkv}),
            2 * 30 * (3 * 4 + 2 * 6));
}

// A sequence of 7 steps for 2 samples of width 4 into 3 hidden values: 14 products with matrices of 12 x 4 and 12 x 3.
TEST(OperatorWork, CountsARecurrentLayerByTheMatricesThatEachStepUses) {
  const OperatorCall call{
      "aten::mkldnn_rnn_layer",
      {tensor({7, 2, 4}), tensor({12, 4}), tensor({12, 3}), tensor({12}), tensor({12}), tensor({2, 3}), tensor({2, 3})},
      {tensor({7, 2, 3})}};
  EXPECT_EQ(flops_of(call), 2 * 14 * (48 + 36));
}

TEST(OperatorWork, CountsNormsSoftmaxReductionsAndPooling) {
  EXPECT_EQ(flops_of({"aten::native_layer_norm", {tensor({2, 5}), integers({5})}, {tensor({2, 5})}}), 70);
  EXPECT_EQ(flops_of({"aten::native_batch_norm_backward", {tensor({2, 5})}, {tensor({2, 5})}}), 130);
  EXPECT_EQ(flops_of({"aten::_softmax", {tensor({2, 5})}, {tensor({2, 5})}}), 50);
  EXPECT_EQ(flops_of({"aten::_log_softmax_backward_data", {tensor({2, 5}), tensor({2, 5})}, {tensor({2, 5})}}), 40);
  EXPECT_EQ(flops_of({"aten::sum", {tensor({2, 5})}, {tensor({})}}), 10);
  EXPECT_EQ(flops_of({"aten::max_pool2d_with_indices",
                      {tensor({1, 2, 4, 4}), integers({2, 2})},
                      {tensor({1, 2, 2, 2}), {{indices({1, 2, 2, 2})}, {}}}}),
            8 * 4);
  EXPECT_EQ(flops_of({"aten::avg_pool2d", {tensor({1, 2, 6, 6}), integers({3})}, {tensor({1, 2, 2, 2})}}), 8 * 9);
}

// Ten rows of 8 out of 1000: read and written 320 bytes each, and the indices.
TEST(OperatorWork, CountsOfALookUpTheRowsThatItReturns) {
  const Work work = work_of({"aten::embedding", {tensor({1000, 8}), {{indices({10})}, {}}}, {tensor({10, 8})}});
  EXPECT_EQ(work.flops, Flops(0));
  EXPECT_EQ(work.moved, Bytes(80 + 2 * 320));
}

TEST(OperatorWork, CountsNothingForCopiesAndFillsButTheirBytes) {
  const Work copy = work_of({"aten::copy_", {tensor({6}), tensor({6})}, {tensor({6})}});
  EXPECT_EQ(copy, (Work{Flops(0), Bytes(48), 1}));
  EXPECT_EQ(work_of({"aten::zero_", {tensor({6})}, {tensor({6})}}), (Work{Flops(0), Bytes(24), 1}));
  EXPECT_EQ(work_of({"aten::cat", {{{floats({2}), floats({3})}, {}}}, {tensor({5})}}), (Work{Flops(0), Bytes(40), 1}));
}

TEST(OperatorWork, CountsOneForEachFloatingResultOfAnyOtherOperator) {
  EXPECT_EQ(work_of({"aten::tanh", {tensor({6})}, {tensor({6})}}), (Work{Flops(6), Bytes(48), 1}));
  EXPECT_EQ(flops_of({"aten::gt", {tensor({6})}, {{{{{6}, Bytes(6), false}}, {}}}}), 0);
}

TEST(OperatorWork, KnowsWhichOperatorsOnlyAllocate) {
  EXPECT_TRUE(moves_nothing("aten::empty"));
  EXPECT_FALSE(moves_nothing("aten::zeros"));
  EXPECT_TRUE(has_formula("aten::addmm"));
  EXPECT_FALSE(has_formula("aten::linear"));
}

}  // namespace
}  // namespace stagecraft::profiler
