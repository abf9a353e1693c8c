#include "costmodel/format/escaping.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <random>

namespace stagecraft::format {
namespace {

TEST(Utf8, ReplacesOnlyTheBytesThatAreWrong) {
  const std::string wrong = "\xef\xbf\xbd";  // U+FFFD
  EXPECT_EQ(valid_utf8("plain, \xc3\xbc, \xe2\x82\xac, \xf0\x9f\x98\x80"),
            "plain, \xc3\xbc, \xe2\x82\xac, \xf0\x9f\x98\x80");
  EXPECT_EQ(valid_utf8("\xff"
                       "a"),
            wrong + "a");
  EXPECT_EQ(valid_utf8("a\xe2\x82"), "a" + wrong + wrong);  // incomplete
  EXPECT_EQ(valid_utf8("\xc3("
                       "\xc3\xbc"),
            wrong +
                "("
                "\xc3\xbc");
  EXPECT_EQ(valid_utf8("\xed\xa0\x80"), wrong + wrong + wrong);  // a surrogate
  EXPECT_EQ(valid_utf8("\xc0\x80"), wrong + wrong);              // overlong
}

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

TEST(MarkupText, WritesMarkupAsEntities) {
  EXPECT_EQ(markup_text("a<b>&\"c\""), "a&lt;b&gt;&amp;&quot;c&quot;");
  EXPECT_EQ(markup_text("&amp;"), "&amp;amp;");
  EXPECT_EQ(markup_text(""), "");
}

TEST(MarkupText, LeavesBackslashesAndQuotesOfOneStroke) { EXPECT_EQ(markup_text("\\N's \\\\"), "\\N's \\\\"); }

TEST(MarkupText, WritesControlCharactersAsSpaces) {
  EXPECT_EQ(markup_text(std::string_view("\0a\x01\n\t\x1F~\x7F", 8)), " a    ~ ");
}

TEST(MarkupText, ReplacesBytesThatAreNotUtf8) {
  EXPECT_EQ(markup_text("a\xFF"), "a\xEF\xBF\xBD");
  EXPECT_EQ(markup_text("\xC3\xA9"), "\xC3\xA9");  // e with an acute accent
}

TEST(MarkupText, CutsAfterWholeCharacters) {
  EXPECT_EQ(markup_text("abc", 3), "abc");
  EXPECT_EQ(markup_text("abcd", 3), "abc...");
  EXPECT_EQ(markup_text("<<<<", 3), "&lt;&lt;&lt;...");
  EXPECT_EQ(markup_text("\xC3\xA9\xC3\xA9\xC3\xA9", 2), "\xC3\xA9\xC3\xA9...");
  EXPECT_EQ(markup_text("\xC3\xA9\xC3\xA9", 2), "\xC3\xA9\xC3\xA9");
}

}  // namespace

}  // namespace stagecraft::format
