#include "executor/stage/gradients/norms.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>
#include <vector>

#include "costmodel/index.h"
#include "executor/channel/channel_local.h"

namespace stagecraft::stage {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

Parameter with_gradient(const std::string& name, int layer, double gradient) {
  at::Tensor value = at::full({4}, 1.0).set_requires_grad(true);
  value.mutable_grad() = at::full({4}, gradient);
  return {name, layer, value};
}

TEST(SquaredNorms, CountASharedParameterOnce) {
  // Squared norm of four values of 3: 36; of four values of 0.5: 1.
  const auto norms = squared_norms({with_gradient("a", 0, 3), with_gradient("b", 1, 0.5), with_gradient("a", 2, 3)});
  EXPECT_THAT(norms, UnorderedElementsAre(Pair("a", 36), Pair("b", 1)));
}

TEST(SquaredNorms, AreZeroWithoutAGradient) {
  EXPECT_THAT(squared_norms({{"a", 0, at::full({4}, 1.0)}}), ElementsAre(Pair("a", 0)));
}

TEST(SquaredBlocks, HaveTheSquaresOf1024ValuesEachFromTheParametersBeginning) {
  // 1024 ones, 1024 twos and 3 threes, in the memory of a transposed parameter.
  at::Tensor gradient = at::ones({2051});
  gradient.narrow(0, 1024, 1024).fill_(2);
  gradient.narrow(0, 2048, 3).fill_(3);
  at::Tensor transposed = at::ones({293, 7}).t();  // 2051 = 7 * 293
  transposed.mutable_grad() = gradient.view({293, 7}).t();
  at::Tensor other_layout = at::ones({293, 7}).t();
  other_layout.mutable_grad() = gradient.view({293, 7}).t().contiguous();
  EXPECT_THAT(squared_blocks({{"a", 0, transposed}, {"b", 0, other_layout}, {"none", 0, at::ones({1025})}}),
              UnorderedElementsAre(Pair("a", ElementsAre(1024, 4096, 27)), Pair("b", ElementsAre(1024, 4096, 27)),
                                   Pair("none", ElementsAre(0, 0))));
}

TEST(SquaredBlocks, AreThoseOfOtherRanksAfterAGather) {
  // Two parameters of 2051 and 10 values: rank 0 updates two blocks of the first, rank 1 the rest, in two sums.
  const std::vector<HeldParameter> held{{"a", 0, Bytes(4 * 2051)}, {"b", 0, Bytes(40)}};
  const GradientSum first{{0, 1}, Bytes(40), {}, {1}, 0, {Bytes(0), Bytes(40)}};
  const GradientSum second{{0, 1}, Bytes(4 * 2051), {}, {0}, 0, {Bytes(4 * 2048), Bytes(12)}};
  const auto channels = channel::make_local_channels(2, std::chrono::seconds(20));
  std::vector<std::jthread> ranks;
  for (const int rank : {0, 1}) {
    ranks.emplace_back([&, rank] {
      SquaredBlocks blocks =
          rank == 0 ? SquaredBlocks{{"a", {1, 2}}, {"b", {}}} : SquaredBlocks{{"a", {3}}, {"b", {4}}};
      gather_squared_blocks(*channels[to_index(rank)], {&first, &second}, held, blocks);
      EXPECT_THAT(blocks, UnorderedElementsAre(Pair("a", ElementsAre(1, 2, 3)), Pair("b", ElementsAre(4))));
      EXPECT_THAT(squared_norms(blocks), UnorderedElementsAre(Pair("a", 6), Pair("b", 4)));
    });
  }
}

TEST(SquaredNorms, AreExactInDouble) {
  std::mt19937 random(1);
  std::vector<float> values(5000);
  for (float& value : values) value = static_cast<float>(random() % 2001) - 1000;
  values.push_back(1e19F);  // its square is no float
  double sum = 0;           // of integers, so in any order the same, but for the last
  for (std::size_t i = 0; i + 1 < values.size(); ++i) sum += static_cast<double>(values[i]) * values[i];
  at::Tensor value = at::ones({to_int(values.size())});
  value.mutable_grad() = at::from_blob(values.data(), {to_int(values.size())}, at::kFloat).clone();
  const double large = static_cast<double>(1e19F) * static_cast<double>(1e19F);
  EXPECT_NEAR(squared_norms({{"a", 0, value}}).at("a") / (large + sum), 1, 1e-15);
  value.mutable_grad()[to_int(values.size()) - 1] = 0;
  EXPECT_EQ(squared_norms({{"a", 0, value}}).at("a"), sum);
}

TEST(GradientNorm, IsThatOfTheMean) {
  EXPECT_EQ(gradient_norm({{"a", 64}, {"b", 36}}, 5), 2);
  EXPECT_EQ(gradient_norm({}, 5), 0);
}

TEST(ClipDivisor, BringsTheMeanGradientsNormDownToTheLimit) {
  // Gradients summed over 5 microbatches with norm 10: the mean has norm 2.
  EXPECT_EQ(clip_divisor({{"a", 64}, {"b", 36}}, 5, 0.5), 4);
  EXPECT_EQ(clip_divisor({{"a", 64}, {"b", 36}}, 5, 2), 1);
  EXPECT_EQ(clip_divisor({{"a", 64}, {"b", 36}}, 5, 100), 1);
  EXPECT_EQ(clip_divisor({}, 5, 1), 1);
}

}  // namespace

}  // namespace stagecraft::stage
