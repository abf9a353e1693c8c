#include "executor/stage/gradients/gradient_norm.h"

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/operator_count.h"

namespace stagecraft::stage {
namespace {

Parameter with_gradient(const std::string& name, int layer, double gradient) {
  at::Tensor value = at::full({4}, 1.0).set_requires_grad(true);
  value.mutable_grad() = at::full({4}, gradient);
  return {name, layer, value};
}

TEST(SquaredNorms, CountASharedParameterOnce) {
  // Squared norm of four values of 3: 36; of four values of 0.5: 1.
  const auto norms = squared_norms({with_gradient("a", 0, 3), with_gradient("b", 1, 0.5), with_gradient("a", 2, 3)});
  EXPECT_THAT(norms, ::testing::UnorderedElementsAre(::testing::Pair("a", 36), ::testing::Pair("b", 1)));
}

TEST(SquaredNorms, AreZeroWithoutAGradient) {
  EXPECT_THAT(squared_norms({{"a", 0, at::full({4}, 1.0)}}), ::testing::ElementsAre(::testing::Pair("a", 0)));
}

TEST(SquaredNorms, TakeAsManyOperatorsForManyParametersAsForOne) {
  const auto operators = [](int parameters) {
    std::vector<Parameter> all;
    for (int i = 0; i < parameters; ++i) all.push_back(with_gradient(std::to_string(i), 0, i));
    return operators_of([&] { (void)squared_norms(all); });
  };
  EXPECT_EQ(operators(20), operators(1));
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
