#include "costmodel/interchange/convert/description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace stagecraft::interchange {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string failure(const std::string& text) {
  try {
    return "read as " + description_text(parse_description(text));
  } catch (const std::invalid_argument& e) { return e.what(); }
}

TEST(ParseDescription, ReadsValuesByPositionAndByName) {
  const Description read = parse_description("Conv2d(3, 64, kernel_size=(7, 7), eps=1e-05, bias=False, mode='zeros')");
  EXPECT_EQ(read.kind, "Conv2d");
  EXPECT_THAT(read.arguments,
              ElementsAre(Argument{"", "3"}, Argument{"", "64"}, Argument{"kernel_size", "(7, 7)"},
                          Argument{"eps", "1e-05"}, Argument{"bias", "False"}, Argument{"mode", "\"zeros\""}));
  EXPECT_TRUE(read.children.empty());
  EXPECT_EQ(whole_number(read.arguments[1]), 64);
  EXPECT_EQ(whole_number(read.arguments[3]), std::nullopt);
}

TEST(ParseDescription, ReadsBareWordsAsTrueAndKindsWithoutBrackets) {
  EXPECT_THAT(parse_description("ReLU(inplace)").arguments, ElementsAre(Argument{"inplace", "True"}));
  EXPECT_EQ(parse_description("hidden"), (Description{"hidden", {}, {}}));
  EXPECT_EQ(parse_description(" Identity( ) "), (Description{"Identity", {}, {}}));
  EXPECT_THAT(parse_description("LayerNorm((512,), None, -2)").arguments,
              ElementsAre(Argument{"", "(512,)"}, Argument{"", "None"}, Argument{"", "-2"}));
}

TEST(ParseDescription, ReadsModulesWithinModules) {
  const Description read = parse_description(
      "A(  (rnn): LSTM(8, 4)  (attn): B(    (q): Linear(in_features=4, bias=False)    (dropout): Dropout(p=0)  ))");
  ASSERT_EQ(read.children.size(), 2U);
  EXPECT_EQ(read.children[0].name, "rnn");
  EXPECT_EQ(read.children[0].module, parse_description("LSTM(8, 4)"));
  ASSERT_EQ(read.children[1].module.children.size(), 2U);
  EXPECT_EQ(read.children[1].module.children[1].module, (Description{"Dropout", {{"p", "0"}}, {}}));
  EXPECT_EQ(description_text(read),
            "A((rnn): LSTM(8, 4)  (attn): B((q): Linear(in_features=4, bias=False)  (dropout): Dropout(p=0)))");
  EXPECT_EQ(parse_description(description_text(read)), read);
}

TEST(ParseDescription, NamesThePlaceOfWhatItCannotRead) {
  EXPECT_EQ(failure(""), "\"\": at character 1: found the end, expected a kind of layer");
  EXPECT_EQ(failure("Conv2d(3, 64"), "\"Conv2d(3, 64\": at character 13: found the end, expected \",\"");
  EXPECT_EQ(failure("Add + 1"), "\"Add + 1\": at character 5: found \"+\", expected the end");
  EXPECT_EQ(
      failure("Linear(in=nan)"),
      "\"Linear(in=nan)\": at character 11: found \"n\", expected a number, a string, a tuple, True, False or None");
  EXPECT_EQ(
      failure("Linear(-inf)"),
      "\"Linear(-inf)\": at character 8: found \"-\", expected a finite number, at most 2^63 if it is an integer");
  EXPECT_THAT(failure("Linear(1e999)"), HasSubstr("expected a finite number"));
  EXPECT_THAT(failure("Linear(p=1, p=2)"), HasSubstr("expected each argument once, \"p\" appears twice"));
  EXPECT_THAT(failure("Linear(p=1, 2)"), HasSubstr("expected values without names before those with names"));
  EXPECT_EQ(failure("Linear(\x01)"),
            "\"Linear(?)\": at character 8: found byte 1, expected a finite number, at most 2^63 if it is an integer");
}

TEST(ParseDescription, TakesNoProgram) {
  for (const char* text : {"Linear(__import__('os').system('true'))", "Linear(f(1))", "Linear(1); import os",
                           "Linear(mode='a\\'; b')", "Linear(mode=\"a'b\")", "Linear(x=[1])", "Linear({})",
                           "Linear(1 if True else 2)", "Linear(lambda: 0)", "Linear(*a)", "Linear(1\n+2)"}) {
    EXPECT_THAT(failure(text), HasSubstr("at character")) << text;
  }
}

TEST(ParseDescription, IsBoundedInDepthAndBytes) {
  EXPECT_THAT(failure(std::string(100000, '(')), HasSubstr("100000 bytes, expected at most 65536"));
  std::string deep;
  for (int i = 0; i < 17; ++i) deep += "A((a): ";
  EXPECT_THAT(failure(deep), HasSubstr("expected at most 16 levels"));
  EXPECT_THAT(failure("A(" + std::string(60000, '(')), HasSubstr("expected at most 16 levels"));
}

}  // namespace
}  // namespace stagecraft::interchange
