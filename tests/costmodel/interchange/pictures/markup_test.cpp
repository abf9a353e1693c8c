#include "costmodel/interchange/pictures/markup.h"

#include <gtest/gtest.h>

namespace stagecraft::interchange {
namespace {

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
}  // namespace stagecraft::interchange
