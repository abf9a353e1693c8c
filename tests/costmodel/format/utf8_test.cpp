#include "costmodel/format/utf8.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "costmodel/format/json_string.h"

namespace stagecraft::format {
namespace {

TEST(Utf8, ReplacesOnlyTheBytesThatAreWrong) {
  const std::string wrong = "\xef\xbf\xbd";  // U+FFFD
  EXPECT_EQ(valid_utf8("plain, \xc3\xbc, \xe2\x82\xac, \xf0\x9f\x98\x80"),
            "plain, \xc3\xbc, \xe2\x82\xac, \xf0\x9f\x98\x80");
  EXPECT_EQ(valid_utf8("\xff"
                       "a"),
            wrong + "a");
  EXPECT_EQ(valid_utf8("a\xe2\x82"), "a" + wrong + wrong);  // ends early
  EXPECT_EQ(valid_utf8("\xc3("
                       "\xc3\xbc"),
            wrong +
                "("
                "\xc3\xbc");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), wrong + wrong + wrong);  // a surrogate
  EXPECT_EQ(valid_utf8("\xc0\x80"), wrong + wrong);              // overlong
}

TEST(JsonString, ComesBackFromAnyBytes) {
  const std::uint32_t seed = 7;
  std::mt19937 random(seed);
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (std::uint32_t n = random() % 12; n > 0; --n)
      text += random() % 3 ? static_cast<char>(random() % 256) : "\"\\\n\x01"[random() % 4];
    EXPECT_TRUE(is_utf8(valid_utf8(text))) << "seed " << seed;
    EXPECT_EQ(nlohmann::json::parse(json_string(text)), valid_utf8(text)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace stagecraft::format
