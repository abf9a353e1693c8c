#include "executor/meeting/secret.h"

#include <gtest/gtest.h>

namespace stagecraft::meeting {
namespace {

TEST(Secret, AuthenticatorsAreThoseOfTheStandard) {
  // RFC 4231, test cases 1 and 2.
  EXPECT_EQ(authenticator(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(authenticator("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Secret, AuthenticatorsAreEqualOnlyIfAllOfThemIs) {
  EXPECT_TRUE(same_authenticator("00ff", "00ff"));
  EXPECT_FALSE(same_authenticator("00ff", "00fe"));
  EXPECT_FALSE(same_authenticator("00ff", "00ff00"));
  EXPECT_FALSE(same_authenticator("", "00"));
}

TEST(Secret, RandomOnesAreHexadecimalAndDiffer) {
  const std::string one = random_secret();
  EXPECT_EQ(one.size(), 64U);
  EXPECT_EQ(one.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(one, random_secret());
}

}  // namespace
}  // namespace stagecraft::meeting
