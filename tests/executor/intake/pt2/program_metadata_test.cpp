#include "executor/intake/pt2/program_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/files/pt2_text.h"

namespace stagecraft::intake {
namespace {

using stagecraft::testing::replaced;
using stagecraft::testing::tensor_meta;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// The result of `read` for the JSON `text` under the key "v" of model.pt2.
template <class Read>
auto from(const std::string& text, const Read& read) {
  const format::Json document = format::parse_document(R"({"v": )" + text + "}", "model.pt2");
  format::Fields fields(format::Cursor(document, "model.pt2"));
  return read(fields.required("v"));
}

/// The message of the FormatError that it throws instead.
template <class Read>
std::string error(const std::string& text, const Read& read) {
  try {
    (void)from(text, read);
  } catch (const FormatError& e) { return e.what(); }
  return "no error";
}

TEST(ReadChoice, GivesTheOnlyMember) {
  EXPECT_EQ(from(R"({"as_int": 4})", read_choice).key, "as_int");
  for (const char* text : {"{}", R"({"a": 1, "b": 2})", "[1]", "4"})
    EXPECT_THAT(error(text, read_choice), AllOf(HasSubstr("model.pt2: /v: "), HasSubstr("one key"))) << text;
}

TEST(ReadDtype, KnowsTorchExportsCodes) {
  EXPECT_EQ(from("7", read_dtype), at::kFloat);
  EXPECT_EQ(from("5", read_dtype), at::kLong);
  EXPECT_EQ(from("12", read_dtype), at::kBool);
  EXPECT_EQ(from("13", read_dtype), at::kBFloat16);
  for (const char* code : {"0", "14", "-1", "7000000000"})
    EXPECT_THAT(error(code, read_dtype), AllOf(HasSubstr("/v: "), HasSubstr(code))) << code;
  EXPECT_THAT(error("7.0", read_dtype), HasSubstr("7.0"));
  EXPECT_THAT(error("\"float\"", read_dtype), HasSubstr("\"float\""));
}

TEST(ReadLayout, TakesStridedAlone) {
  EXPECT_EQ(from("7", read_layout), c10::Layout::Strided);
  EXPECT_THAT(error("1", read_layout), AllOf(HasSubstr("code 1"), HasSubstr("strided")));
}

TEST(ReadMemoryFormat, KnowsTorchExportsCodes) {
  EXPECT_EQ(from("1", read_memory_format), c10::MemoryFormat::Contiguous);
  EXPECT_EQ(from("2", read_memory_format), c10::MemoryFormat::ChannelsLast);
  EXPECT_EQ(from("4", read_memory_format), c10::MemoryFormat::Preserve);
  EXPECT_THAT(error("5", read_memory_format), HasSubstr("code 5"));
}

TEST(ReadDevice, IsAKindAndMaybeANumber) {
  EXPECT_EQ(from(R"({"type": "cpu", "index": null})", read_device), c10::Device(c10::kCPU));
  EXPECT_EQ(from(R"({"type": "cuda", "index": 3})", read_device), c10::Device(c10::kCUDA, 3));
  EXPECT_THAT(error(R"({"type": "tpu", "index": 0})", read_device),
              AllOf(HasSubstr("/v/type: "), HasSubstr("\"tpu\""), HasSubstr("cpu, cuda, meta")));
  EXPECT_THAT(error(R"({"type": "cuda", "index": 128})", read_device),
              AllOf(HasSubstr("/v/index: "), HasSubstr("128")));
  EXPECT_THAT(error(R"({"type": "cpu", "indx": 0})", read_device), HasSubstr("\"indx\""));
}

TEST(ReadFloat, KnowsWhatJsonHasNoNumberFor) {
  EXPECT_EQ(from("2.5", read_float), 2.5);
  EXPECT_EQ(from("-3", read_float), -3);
  EXPECT_EQ(from("\"Infinity\"", read_float), std::numeric_limits<double>::infinity());
  EXPECT_EQ(from("\"-Infinity\"", read_float), -std::numeric_limits<double>::infinity());
  EXPECT_TRUE(std::isnan(from("\"NaN\"", read_float)));
  for (const char* text : {"\"nan\"", "\"2.5\"", "null", "true"})
    EXPECT_THAT(error(text, read_float), AllOf(HasSubstr("/v: "), HasSubstr(text))) << text;
}

TEST(ReadInt, HasSixtyFourBits) {
  EXPECT_EQ(from("9223372036854775807", read_int), std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(from("-9223372036854775808", read_int), std::numeric_limits<std::int64_t>::min());
  for (const char* text : {"9223372036854775808", "1.0", "\"1\""})
    EXPECT_THAT(error(text, read_int), AllOf(HasSubstr("/v: "), HasSubstr(text))) << text;
}

TEST(ReadSize, IsANumberOrAnExpression) {
  EXPECT_EQ(from(R"({"as_int": 4})", read_size), SizeExpression(4));
  const SizeExpression size =
      from(R"-({"as_expr": {"expr_str": "Mul(Integer(8), Symbol('s77', integer=True))", "hint": {"as_int": 16}}})-",
           read_size);
  EXPECT_EQ(evaluate(size, {{"s77", 5}}), 40);
  EXPECT_THAT(error(R"({"as_float": 4.0})", read_size), HasSubstr("\"as_float\""));
  const std::string logarithm = error(R"-({"as_expr": {"expr_str": "Log(Integer(8))"}})-", read_size);
  EXPECT_THAT(logarithm, AllOf(HasSubstr("/v/as_expr/expr_str: "), HasSubstr("Log")));
}

const std::string kMeta = tensor_meta(R"([{"as_int": 2}, {"as_int": 3}])", R"([{"as_int": 3}, {"as_int": 1}])");

TEST(ReadTensorMeta, HasShapeStridesAndType) {
  const TensorMeta meta = from(kMeta, read_tensor_meta);
  EXPECT_EQ(meta.dtype, at::kFloat);
  EXPECT_EQ(meta.sizes, (std::vector<SizeExpression>{2, 3}));
  EXPECT_EQ(meta.strides, (std::vector<SizeExpression>{3, 1}));
  EXPECT_EQ(meta.storage_offset, SizeExpression(0));
  EXPECT_TRUE(meta.device.is_cpu());
  EXPECT_FALSE(meta.requires_grad);
}

TEST(ReadTensorMeta, NamesWhatNoTensorHas) {
  const auto changed = [](const std::string& what, const std::string& to) {
    return error(replaced(kMeta, what, to), read_tensor_meta);
  };
  EXPECT_THAT(changed(R"("sizes": [{"as_int": 2})", R"("sizes": [{"as_int": -2})"),
              AllOf(HasSubstr("/v/sizes/0: "), HasSubstr("-2")));
  EXPECT_THAT(changed(R"("strides": [{"as_int": 3})", R"("strides": [{"as_int": -3})"),
              AllOf(HasSubstr("/v/strides/0: "), HasSubstr("-3")));
  EXPECT_THAT(changed(R"("storage_offset": {"as_int": 0})", R"("storage_offset": {"as_int": -1})"),
              AllOf(HasSubstr("/v/storage_offset: "), HasSubstr("-1")));
  EXPECT_THAT(changed(R"([{"as_int": 3}, {"as_int": 1}])", R"([{"as_int": 3}])"),
              AllOf(HasSubstr("2 sizes"), HasSubstr("1 strides")));
  EXPECT_THAT(changed(R"("layout": 7)", R"("layout": 1)"), HasSubstr("/v/layout: "));
  EXPECT_THAT(changed(R"("layout": 7)", R"("layout": 7, "pinned": true)"), HasSubstr("\"pinned\""));
  EXPECT_THAT(changed(R"("requires_grad": false, )", ""), HasSubstr("\"requires_grad\""));
}

TEST(ReadTensorMeta, CountsValuesInSixtyFourBits) {
  // 2^62 * 2 exceeds the largest 64-bit integer by one; with a size of 0 there are no values.
  const std::string large = R"([{"as_int": 4611686018427387904}, {"as_int": 2}])";
  EXPECT_THAT(error(replaced(kMeta, R"([{"as_int": 2}, {"as_int": 3}])", large), read_tensor_meta),
              AllOf(HasSubstr("/v/sizes: "), HasSubstr("64 bits")));
  const std::string none = R"([{"as_int": 4611686018427387904}, {"as_int": 0}])";
  EXPECT_EQ(error(replaced(kMeta, R"([{"as_int": 2}, {"as_int": 3}])", none), read_tensor_meta), "no error");
}

}  // namespace
}  // namespace stagecraft::intake
