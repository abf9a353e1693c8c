#include "executor/device/dtype.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/refused.h"

namespace stagecraft::device {
namespace {

using stagecraft::testing::refused;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Dtype, NamesRoundTrip) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong, at::kInt, at::kShort,
                                    at::kChar, at::kByte, at::kBool}) {
    EXPECT_EQ(dtype_of(dtype_name(type)), type) << dtype_name(type);
    EXPECT_EQ(dtype_text(type), dtype_name(type));
  }
}

TEST(Dtype, NamesAreThoseOfNumpyAndPyTorch) {
  EXPECT_EQ(dtype_name(at::kFloat), "float32");
  EXPECT_EQ(dtype_name(at::kChar), "int8");
  EXPECT_EQ(dtype_name(at::kByte), "uint8");
  EXPECT_EQ(dtype_of("bfloat16"), at::kBFloat16);
  EXPECT_EQ(dtype_of("int64"), at::kLong);
  EXPECT_EQ(dtype_of("complex64"), at::kComplexFloat);
}

TEST(Dtype, OthersHaveNoWordInFilesButOneInMessages) {
  EXPECT_THAT(refused([] { return dtype_name(at::kComplexHalf); }), HasSubstr("ComplexHalf"));
  EXPECT_EQ(dtype_text(at::kComplexHalf), "ComplexHalf");
}

TEST(Dtype, UnknownWordListsTheKnown) {
  EXPECT_THAT(refused([] { return dtype_of("float"); }),
              AllOf(HasSubstr("\"float\""), HasSubstr("float32, float64, float16")));
}

TEST(ComputeType, IsFloat32WhereAPlanSaysNothing) {
  EXPECT_EQ(compute_type(""), at::kFloat);
  EXPECT_EQ(compute_type("float32"), at::kFloat);
  EXPECT_EQ(compute_type("bfloat16"), at::kBFloat16);
  EXPECT_EQ(compute_type("float16"), at::kHalf);
}

TEST(ComputeType, RefusesTypesThatNoPlanComputesIn) {
  for (const char* dtype : {"float64", "int64", "half"}) {
    EXPECT_THAT(refused([&] { return compute_type(dtype); }),
                AllOf(HasSubstr('"' + std::string(dtype) + '"'), HasSubstr("bfloat16")));
  }
}

}  // namespace
}  // namespace stagecraft::device
