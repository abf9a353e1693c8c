#include "costmodel/format/files/utf8.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace stagecraft::format
