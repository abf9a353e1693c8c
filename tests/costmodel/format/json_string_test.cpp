#include "costmodel/format/json_string.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "costmodel/format/files/utf8.h"

namespace stagecraft::format {
namespace {

TEST(JsonString, EscapesWhatWouldEndItsString) {
  EXPECT_EQ(json_string(""), "\"\"");
  EXPECT_EQ(json_string("a\"b\\c\n"), R"("a\"b\\c\n")");
  EXPECT_EQ(json_string(std::string_view("\0", 1)), R"("\u0000")");
}

TEST(JsonString, PutsTheReplacementCharacterForABrokenByte) { EXPECT_EQ(json_string("a\xff"), "\"a\xef\xbf\xbd\""); }

TEST(JsonString, RoundTripsAnyBytes) {
  const std::uint32_t seed = 7;
  std::mt19937 random(seed);
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (auto n = random() % 12; n > 0; --n)
      text += random() % 3 ? static_cast<char>(random() % 256) : "\"\\\n\x01"[random() % 4];
    EXPECT_TRUE(is_utf8(valid_utf8(text))) << "seed " << seed;
    EXPECT_EQ(nlohmann::json::parse(json_string(text)), valid_utf8(text)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace stagecraft::format
