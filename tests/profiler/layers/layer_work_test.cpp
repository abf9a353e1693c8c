#include "profiler/layers/layer_work.h"

#include <ATen/ops/embedding.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <numeric>
#include <utility>

#include "executor/intake/layer_sources.h"
#include "tests/profiler/row_of_layers.h"
#include "tests/profiler/small_models.h"

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

/// The work of one iteration.
struct Counted {
  std::vector<Work> forward;
  std::vector<Work> backward;
};

Counted counted(stage::StageProgram& program, std::size_t layers, const std::vector<at::Tensor>& batch) {
  LayerWorkCounter counter(layers, program.parameters());
  stage::Flight flight = program.forward({}, batch, 0, 0, true, &counter);
  counter.begin_backward();
  (void)program.backward(std::move(flight), {});
  counter.end_backward();
  return {counter.forward(), counter.backward()};
}

/// Consecutive layers, as one stage.
struct Row {
  explicit Row(std::vector<model::LayerSpec> layers)
      : model(row_of_layers(std::move(layers))), program(model, all(), {}, {}, 1) {}
  std::vector<int> all() const {
    std::vector<int> out(model.layers.size());
    std::iota(out.begin(), out.end(), 0);
    return out;
  }
  Counted count(const at::Tensor& x) { return counted(program, model.layers.size(), {x}); }
  model::Model model;
  stage::StageProgram program;
};

model::LayerSpec sum_layer() {
  return hand_layer("sum", 0, [](const model::LayerCall& c) { return std::vector<at::Tensor>{at::sum(c.inputs[0])}; });
}

// 256 values of 4 bytes between the layers. The product reads two and writes one; each exponential reads one and
// writes one; the sum writes one value. Backward: the sum's gradient is an expanded view of one value; each exponential
// multiplies it with its result; the product multiplies with its input, whose own gradient nobody needs.
TEST(LayerWork, BelongsToTheLayerWhoseOperatorsDoIt) {
  const model::Model model = scale_exp_sum();
  stage::StageProgram program(model, {0, 1, 2}, {}, {}, 1);
  const Counted work = counted(program, 3, row_batch());
  EXPECT_EQ(work.forward[0], (Work{Flops(256), Bytes(3072), 1}));
  EXPECT_EQ(work.forward[1], (Work{Flops(512), Bytes(4096), 2}));
  EXPECT_EQ(work.forward[2], (Work{Flops(256), Bytes(1028), 1}));
  EXPECT_EQ(work.backward[2], (Work{Flops(0), Bytes(0), 0}));
  EXPECT_EQ(work.backward[1], (Work{Flops(512), Bytes(4 + 2048 + 3072), 2}));
  EXPECT_EQ(work.backward[0], (Work{Flops(256), Bytes(3072), 1}));
}

// A second backward adds its gradient to the first: 256 additions, which read two and write one.
TEST(LayerWork, CountsTheAccumulationOfAGradientForTheLayerThatHoldsTheParameter) {
  const model::Model model = scale_exp_sum();
  stage::StageProgram program(model, {0, 1, 2}, {}, {}, 1);
  (void)counted(program, 3, row_batch());
  EXPECT_EQ(counted(program, 3, row_batch()).backward[0], (Work{Flops(512), Bytes(6144), 2}));
}

// Whether or not there are gradients yet, the count is that of a later microbatch: the product and the accumulation.
TEST(CountWork, CountsALaterMicrobatchOfAStep) {
  const model::Model model = scale_exp_sum();
  Subject subject(model, {}, 1, {}, false);
  for (int i = 0; i < 2; ++i) {
    const WorkByLayer work = count_work(subject, 3, row_batch());
    EXPECT_EQ(work.forward[0], (Work{Flops(256), Bytes(3072), 1}));
    EXPECT_EQ(work.backward[0], (Work{Flops(512), Bytes(6144), 2}));
  }
}

// linear calls t and mm; only the product computes: 2 x 3 sums of 4 products. Its weight's gradient is one as large.
TEST(LayerWork, CountsTheOperatorsThatAnOperatorCallsAndNoViews) {
  Row row({hand_layer("linear", 12,
                      [](const model::LayerCall& c) {
                        return std::vector<at::Tensor>{at::linear(c.inputs[0], c.parameters[0].view({3, 4}))};
                      }),
           sum_layer()});
  const Counted work = row.count(at::ones({2, 4}));
  EXPECT_EQ(work.forward[0], (Work{Flops(48), Bytes(32 + 48 + 24), 1}));
  EXPECT_EQ(work.backward[0].flops, Flops(48));
}

// 2 heads, 3 x 3 scores of width 4: two products forward, five backward. All three inputs are the same tensor, whose
// gradients of 24 values are added twice; before that each input is multiplied with a weight.
TEST(LayerWork, CountsAttentionAsItsProducts) {
  Row row({hand_layer("scale", 24,
                      [](const model::LayerCall& c) {
                        return std::vector<at::Tensor>{at::mul(c.inputs[0], c.parameters[0].view({1, 2, 3, 4}))};
                      }),
           hand_layer("attention", 0,
                      [](const model::LayerCall& c) {
                        const at::Tensor& x = c.inputs[0];
                        return std::vector<at::Tensor>{at::scaled_dot_product_attention(x, x, x)};
                      }),
           sum_layer()});
  const Counted work = row.count(at::ones({1, 2, 3, 4}));
  EXPECT_EQ(work.forward[1].flops, Flops(2 * 18 * (4 + 4)));
  EXPECT_EQ(work.backward[1].flops, Flops(2 * 18 * 5 * 4 + 2 * 24));
}

TEST(LayerWork, CountsForAnEmbeddingBytesOnly) {
  Row row({hand_layer("embedding", 400,
                      [](const model::LayerCall& c) {
                        return std::vector<at::Tensor>{
                            at::embedding(c.parameters[0].view({100, 4}), c.inputs[0].to(at::kLong))};
                      }),
           sum_layer()});
  const Counted work = row.count(at::zeros({5}, at::kLong));
  EXPECT_EQ(work.forward[0], (Work{Flops(0), Bytes(5 * 8 + 2 * 80), 1}));
}

/// Of convolutions and fully connected layers.
double products(const model::Model& model, const std::vector<Work>& work) {
  double out = 0;
  for (std::size_t i = 0; i < work.size(); ++i) {
    const std::string& kind = model.layers[i].kind;
    if (kind == "Conv2d" || kind == "Linear") out += work[i].flops.value;
  }
  return out;
}

// ResNet-18 at 224 x 224. Multiply-adds by hand: the first convolution 112^2 * 64 * 3 * 49; the first group four of
// 56^2 * 64 * 64 * 9; each of the next three one of half as many, three of as many, and a projection of 1/18; 512 x
// 1000 at the end. Together 1,814,073,344, the 1.81 G that torchvision's table of models gives. The backward has each
// twice, but for the gradient of the image; the sum of the gradient of 1000 biases; and for the input of each of the 8
// blocks, which two branches read, one addition of their gradients: three inputs of 64 * 56^2, two of half of it, two
// of a quarter and one of an eighth.
TEST(LayerWork, OfResnet18IsTheKnownOne) {
  const double group = 56.0 * 56 * 64 * 64 * 9;
  const double entry = 112.0 * 112 * 64 * 3 * 49;
  const double multiply_adds = entry + 4 * group + 3 * (group / 2 + 3 * group + group / 18) + 512 * 1000;
  ASSERT_EQ(multiply_adds, 1814073344.0);
  model::Model model = intake::build_model("resnet18", {{"image", "224"}, {"classes", "1000"}});
  stage::StageProgram program(model, Whole::layers(model), {}, {}, 1);
  const auto batch = data::make_data_source("synthetic", model, 1)->batch(0, 0, 1, 1, program.data_inputs());
  const Counted work = counted(program, model.layers.size(), batch);
  EXPECT_EQ(products(model, work.forward), 2 * multiply_adds);
  EXPECT_EQ(products(model, work.backward),
            4 * multiply_adds - 2 * entry + 1000 + 64 * 56 * 56 * (3 + 2 / 2.0 + 2 / 4.0 + 1 / 8.0));
}

// Every layer of every built-in model moves bytes in one direction or the other, and the counter ends with the object.
TEST(LayerWork, IsCountedForEveryBuiltInModel) {
  for (const Small& small : small_models()) {
    SCOPED_TRACE(small.name);
    Whole whole(intake::build_model(small.name, small.set));
    const Counted work = counted(whole.program, whole.model.layers.size(), whole.batch);
    for (std::size_t i = 0; i < work.forward.size(); ++i) {
      SCOPED_TRACE(whole.model.layers[i].name + " " + whole.model.layers[i].kind);
      if (whole.model.layers[i].parameters.empty()) continue;
      EXPECT_GT(work.forward[i].moved, Bytes(0));
      EXPECT_GT(work.backward[i].moved, Bytes(0));
      EXPECT_GT(work.backward[i].operators, 0);
    }
  }
}

}  // namespace

}  // namespace stagecraft::profiler
