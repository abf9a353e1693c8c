#include "executor/stage/gradients/finite.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace stagecraft::stage {
namespace {

using ::testing::ThrowsMessage;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(AllFinite, FindsOneValueAnywhere) {
  for (const float bad : {kInfinity, -kInfinity, std::nanf("")}) {
    for (const std::int64_t place : {0, 7, 30}) {
      at::Tensor values = at::full({31}, std::numeric_limits<float>::max());
      EXPECT_TRUE(all_finite(values));
      values[place] = bad;
      EXPECT_FALSE(all_finite(values)) << place;
      EXPECT_FALSE(all_finite(values.to(at::kDouble))) << place;
      EXPECT_FALSE(all_finite(values.to(at::kBFloat16))) << place;
    }
  }
  EXPECT_TRUE(all_finite(at::full({3}, -std::numeric_limits<float>::denorm_min())));
  EXPECT_TRUE(all_finite(at::ones({3}, at::kLong)));
  EXPECT_TRUE(all_finite(at::ones({0})));
}

TEST(AllFinite, LooksAtTheValuesOfAViewAlone) {
  const at::Tensor whole = at::full({4, 4}, kInfinity);
  at::Tensor part = whole.narrow(1, 1, 2);
  part.fill_(1);
  EXPECT_TRUE(all_finite(part));
  EXPECT_FALSE(all_finite(whole.t()));
}

TEST(OnNonfinite, IsNamed) {
  EXPECT_EQ(parse_on_nonfinite("stop"), OnNonfinite::Stop);
  EXPECT_EQ(parse_on_nonfinite("warn"), OnNonfinite::Warn);
  EXPECT_EQ(parse_on_nonfinite("skip"), OnNonfinite::Skip);
  EXPECT_THAT([] { (void)parse_on_nonfinite("ignore"); },
              ThrowsMessage<std::invalid_argument>("unknown action \"ignore\", known are stop, warn, skip"));
}

/// A parameter with this gradient, or with none if it is undefined.
Parameter parameter(const std::string& name, const at::Tensor& gradient) {
  at::Tensor value = at::ones({2}).requires_grad_(true);
  value.mutable_grad() = gradient;
  return {name, 0, value};
}

TEST(NonfiniteGradient, NamesTheFirstParameter) {
  const Parameter good = parameter("good", at::ones({2})), none = parameter("none", {});
  const Parameter bad = parameter("bad", at::full({2}, kInfinity)), worse = parameter("worse", at::full({2}, NAN));
  EXPECT_EQ(nonfinite_gradient({none, good}), std::nullopt);
  EXPECT_EQ(nonfinite_gradient({none, good, bad, worse}), "bad");
  EXPECT_EQ(nonfinite_gradient({worse, bad}), "worse");
  EXPECT_EQ(nonfinite_gradient({}), std::nullopt);
}

TEST(NonfiniteFlag, IsAboveZeroIfAnyGradientIsNotFinite) {
  const Parameter good = parameter("good", at::full({2}, std::numeric_limits<float>::max()));
  const Parameter none = parameter("none", {});
  EXPECT_FALSE(nonfinite_flag({none}).defined());
  const at::Tensor zero = nonfinite_flag({none, good});
  EXPECT_EQ(zero.dim(), 0);
  EXPECT_EQ(zero.item<float>(), 0);
  for (const float value : {kInfinity, -kInfinity, std::nanf("")})
    EXPECT_GT(nonfinite_flag({good, parameter("bad", at::full({2}, value))}).item<float>(), 0);
}

TEST(NonfiniteFlag, ChangesNoGradient) {
  const Parameter parameters[] = {parameter("a", at::full({2}, 1.1F)), parameter("b", at::full({2}, kInfinity))};
  (void)nonfinite_flag({parameters[0], parameters[1]});
  EXPECT_TRUE(parameters[0].value.grad().eq(1.1F).all().item<bool>());
  EXPECT_TRUE(parameters[1].value.grad().eq(kInfinity).all().item<bool>());
}

}  // namespace
}  // namespace stagecraft::stage
