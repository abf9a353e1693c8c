#include "executor/run/binding/check.h"

#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "costmodel/index.h"
#include "executor/run/binding/bound_model.h"
#include "tests/support/models/planned_models.h"

namespace stagecraft::run {
namespace {

using stagecraft::testing::cut_plan;
using stagecraft::testing::planned_model;
using stagecraft::testing::PlannedModel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

at::Tensor values(std::vector<float> numbers) { return at::tensor(numbers); }

TEST(CompareTensors, CountsValuesThatDifferAndNamesTheWorst) {
  Check check;
  compare_tensors({{"a", 0, values({1, 2, 4}), values({1, 2, 4})},
                   {"b", 0, values({1, 2, 4}), values({1, 2, 5})},
                   {"c", 1, values({3, 2}), values({2, 2})}},
                  check);
  EXPECT_EQ(check.values, 8);
  EXPECT_EQ(check.different, 2);
  EXPECT_DOUBLE_EQ(check.largest_error, 0.5);  // 1 of 2 in c, 1 of 5 in b
  EXPECT_EQ(check.worst, "c");
  EXPECT_FALSE(is_close(check));
}

TEST(CompareTensors, TakesNoiseForZeroBesideTheLayersOtherTensors) {
  // A unit in the last place of 2 is 2^-23 * 2 = 2.4e-7: the bias may differ by sixteen units, 3.81e-6.
  const auto close = [](float noise) {
    Check check;
    compare_tensors({{"weight", 3, values({2, 1}), values({2, 1})}, {"bias", 3, values({noise}), values({0})}}, check);
    return is_close(check);
  };
  EXPECT_TRUE(close(1e-13F));
  EXPECT_TRUE(close(3.8e-6F));
  EXPECT_FALSE(close(3.9e-6F));
  Check alone;  // in a separate layer there is no other scale
  compare_tensors({{"weight", 3, values({2, 1}), values({2, 1})}, {"bias", 4, values({2e-13F}), values({1e-13F})}},
                  alone);
  EXPECT_FALSE(is_close(alone));
}

TEST(CompareTensors, TakesWhatManyRoundingErrorsLeaveOfASumForZero) {
  // 2^-12 of the layer's largest value, 4, is 0.00098.
  const auto compare = [](float found, float expected) {
    Check check;
    compare_tensors({{"weight", 3, values({4, 1}), values({4, 1})}, {"bias", 3, values({found}), values({expected})}},
                    check);
    return check;
  };
  for (const auto& [found, expected] : {std::pair(9e-4F, -3e-4F), {1e-5F, 5e-4F}}) {
    const Check check = compare(found, expected);
    EXPECT_TRUE(is_close(check));
    EXPECT_EQ(check.different, 1);
    EXPECT_EQ(check.cancelled, 1);
    EXPECT_THAT(check_text(check), HasSubstr("1 values and 0 losses differ (within rounding); 1 of these values are "
                                             "what rounding leaves of sums that are 0"));
  }
  EXPECT_FALSE(is_close(compare(1.1e-3F, 9e-4F)));
  EXPECT_FALSE(is_close(compare(0, 9e-4F))) << "a gradient that was lost";
  EXPECT_FALSE(is_close(compare(9e-4F, 0)));
}

TEST(CompareTensors, TakesTheLargestValueOfAllForScaleBesideOtherKernels) {
  Check check;
  check.other_kernels = true;
  check.tolerance = kOtherKernelsTolerance;
  compare_tensors({{"large", 0, values({5}), values({5})}, {"small", 1, values({2e-3F}), values({1e-3F})}}, check);
  EXPECT_NEAR(check.largest_error, 1e-3 / 5, 1e-9);
  EXPECT_TRUE(is_close(check));
}

TEST(CompareTensors, NeverTreatsNaNAsClose) {
  Check check;
  compare_tensors({{"a", 0, values({NAN}), values({1})}, {"b", 0, values({3}), values({1})}}, check);
  EXPECT_TRUE(std::isnan(check.largest_error));
  EXPECT_EQ(check.worst, "a");
  EXPECT_FALSE(is_close(check));
  Check both;
  add(both, check);
  Check small;
  small.largest_error = 1e-9;
  add(both, small);
  EXPECT_TRUE(std::isnan(both.largest_error));
  EXPECT_EQ(both.worst, "a");
}

TEST(CompareTensors, NeverTreatsAMissingGradientAsZero) {
  for (const bool is_found : {false, true}) {
    const at::Tensor zeros = at::zeros({3});
    Check check;
    compare_tensors({{"a", 0, values({1}), values({1})},
                     {"b", 0, is_found ? zeros : at::Tensor(), is_found ? at::Tensor() : zeros},
                     {"c", 0, {}, {}}},
                    check);
    EXPECT_EQ(check.values, 1 + 3);
    EXPECT_EQ(check.different, 3);
    EXPECT_EQ(check.worst, is_found ? "b, which should not exist" : "b, which is missing");
    EXPECT_FALSE(is_close(check));
  }
}

TEST(CompareTensors, TakesOtherTypesAndLayouts) {
  Check check;
  compare_tensors({{"count", 0, at::full({}, 3, at::kLong), at::full({}, 3, at::kLong)},
                   {"flag", 0, at::zeros({2}, at::kBool), at::zeros({2}, at::kBool)},
                   {"transposed", 0, values({1, 2, 3, 4}).view({2, 2}).t(), values({1, 3, 2, 4}).view({2, 2})},
                   {"empty", 0, at::zeros({0}), at::zeros({0})}},
                  check);
  EXPECT_EQ(check.values, 7);
  EXPECT_EQ(check.different, 0);
}

TEST(CheckText, SaysWhatDiffersByHowMuchWhereAndWhy) {
  Check check;
  check.values = 12;
  check.losses = 3;
  EXPECT_EQ(check_text(check), "compared with a single process: 12 gradient values and 3 losses, all bit-equal");
  check.different = 2;
  check.largest_error = 3e-7;
  check.worst = "gradient of \"fc.bias\" in step 2";
  check.reasons = {"stages 0 and 1 share parameter \"wte\"", "the sun shines"};
  EXPECT_EQ(check_text(check),
            "compared with a single process: 12 gradient values and 3 losses, 2 values and 0 losses differ, by at most "
            "3e-07 of their tensor's scale: gradient of \"fc.bias\" in step 2 (within rounding); the last bits may "
            "differ: stages 0 and 1 share parameter \"wte\", and the sun shines");
  check.with = "r.safetensors";
  check.largest_error = 0.5;
  check.losses_different = 1;
  check.largest_loss_error = 0.25;
  check.reasons.clear();
  EXPECT_EQ(check_text(check),
            "compared with r.safetensors: 12 values and 3 losses, 2 values and 1 losses differ, by at most 0.5 of "
            "their tensor's scale: gradient of \"fc.bias\" in step 2, losses by at most 0.25 (WRONG)");
}

TEST(OtherOrders, AreThoseOfReplicasTiesAndLayersOutOfOrder) {
  const PlannedModel gpt = planned_model(
      "gpt", {{"layers", "2"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "8"}}, 2);
  const int half = to_int(gpt.model.layers.size()) / 2;
  const auto reasons = [&](const Plan& plan) {
    const BoundPlan bound(plan);
    return other_orders(bind_model(bound, gpt.model));
  };
  EXPECT_THAT(reasons(cut_plan(gpt, {}, {1}, "1f1b", 4)), IsEmpty());
  EXPECT_THAT(reasons(cut_plan(gpt, {half}, {1, 1}, "1f1b", 1)), IsEmpty());
  EXPECT_THAT(reasons(cut_plan(gpt, {half}, {1, 1}, "1f1b", 4)),
              ElementsAre(HasSubstr("stages 0 and 1 share parameter \"")));
  EXPECT_THAT(reasons(cut_plan(gpt, {half}, {1, 2}, "1f1b", 4)),
              ElementsAre("each replica of stage 1 sums its own microbatches first", HasSubstr("share parameter")));
}

}  // namespace
}  // namespace stagecraft::run
