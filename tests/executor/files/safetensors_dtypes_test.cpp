#include "executor/files/safetensors_dtypes.h"

#include <c10/core/ScalarType.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/format/safetensors_header.h"
#include "tests/support/refused.h"

namespace stagecraft::files {
namespace {

using stagecraft::testing::refused;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SafetensorsDtypes, EveryAllowedNameHasATypeAndRoundTrips) {
  for (const std::string& word : format::safetensors_dtypes())
    EXPECT_EQ(safetensors_word(safetensors_type(word)), word);
}

TEST(SafetensorsDtypes, WordsSayTheWidth) {
  // F32, I64, BF16, ...: the number is the width in bits.
  for (const std::string& word : format::safetensors_dtypes()) {
    const std::size_t digit = word.find_first_of("0123456789");
    if (digit == std::string::npos) continue;  // BOOL
    EXPECT_EQ(c10::elementSize(safetensors_type(word)) * 8, std::stoul(word.substr(digit))) << word;
  }
  EXPECT_EQ(safetensors_type("F16"), at::kHalf);
  EXPECT_EQ(safetensors_type("BF16"), at::kBFloat16);
  EXPECT_EQ(safetensors_type("U8"), at::kByte);
  EXPECT_EQ(safetensors_type("I8"), at::kChar);
}

TEST(SafetensorsDtypes, OtherTypesHaveNoWord) {
  EXPECT_EQ(safetensors_word(at::kComplexDouble), std::nullopt);
  EXPECT_EQ(safetensors_word(at::kQInt8), std::nullopt);
}

TEST(SafetensorsDtypes, UnknownWordListsTheKnown) {
  EXPECT_THAT(refused([] { return safetensors_type("f32"); }), AllOf(HasSubstr("\"f32\""), HasSubstr("F32")));
}

}  // namespace
}  // namespace stagecraft::files
