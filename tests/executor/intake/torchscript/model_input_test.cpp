#include "executor/intake/torchscript/model_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/refused.h"

namespace stagecraft::intake {
namespace {

using stagecraft::testing::refused;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ParseModelInput, ReadsTypeAndShapeOfOneSample) {
  const model::ModelInput image = parse_model_input("x", "float32[3,224,224]");
  EXPECT_EQ(image.name, "x");
  EXPECT_EQ(image.dtype, "float32");
  EXPECT_THAT(image.shape, ElementsAre(3, 224, 224));
  EXPECT_EQ(image.batch_axis, 0);
  EXPECT_THAT(parse_model_input("y", "int64[]").shape, IsEmpty());
}

TEST(ParseModelInput, ReadsTheBatchAxis) {
  EXPECT_EQ(parse_model_input("x", "float32[3,5]:batch_axis=1").batch_axis, 1);
  EXPECT_EQ(parse_model_input("x", "float32[3,5]:batch_axis=2").batch_axis, 2) << "behind the last";
  EXPECT_EQ(parse_model_input("x", "bool[4]:batch_axis=none").batch_axis, std::nullopt);
}

TEST(ParseModelInput, QuotesAnInvalidInput) {
  for (const auto& [text, found] :
       std::vector<std::pair<std::string, std::string>>{{"", "sizes"},
                                                        {"float32", "sizes"},
                                                        {"]float32[", "sizes"},
                                                        {"float[3]", "\"float\""},
                                                        {"float32[3,]", "comma"},
                                                        {"float32[,3]", "\"\""},
                                                        {"float32[0]", "\"0\""},
                                                        {"float32[-3]", "\"-3\""},
                                                        {"float32[3x]", "\"3x\""},
                                                        {"float32[2147483649]", "\"2147483649\""},
                                                        {"float32[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "sizes"},
                                                        {"float32[3]x", "\"x\""},
                                                        {"float32[3]:batch_axis=", "batch axis"},
                                                        {"float32[3]:batch_axis=2", "batch axis \"2\""},
                                                        {"float32[3]:batch_axis=-1", "batch axis \"-1\""}}) {
    EXPECT_THAT(
        refused([&, text = text] { return parse_model_input("tokens", text); }),
        AllOf(HasSubstr("\"tokens\""), HasSubstr('"' + text + '"'), HasSubstr(found), HasSubstr("float32[3,224,224]")))
        << text;
  }
}

}  // namespace
}  // namespace stagecraft::intake
