#include "costmodel/text/number.h"

#include <gtest/gtest.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <system_error>

namespace stagecraft {
namespace {

TEST(NumberIn, TakesDecimalDigitsAndNothingElse) {
  EXPECT_EQ(number_in<int>("-12"), -12);
  EXPECT_EQ(number_in<int>("010"), 10);
  EXPECT_EQ(number_in<int>("-0"), 0);
  EXPECT_EQ(number_in<double>("1e-3"), 0.001);
  EXPECT_EQ(number_in<double>("-.5"), -0.5);
  for (const char* text : {"", "-", " 1", "1 ", "+1", "0x10", "1e3", "1.0", "one", "1,000"})
    EXPECT_EQ(number_in<int>(text), std::nullopt) << text;
  for (const char* text : {"", "-", ".", " 1", "1 ", "+1", "0x10", "1e", "one", "1,5", "1.5.2"})
    EXPECT_EQ(number_in<double>(text), std::nullopt) << text;
}

TEST(NumberIn, IsAbsentOutOfRange) {
  EXPECT_EQ(number_in<int>("2147483647"), std::numeric_limits<int>::max());
  EXPECT_EQ(number_in<int>("2147483648"), std::nullopt);
  EXPECT_EQ(number_in<int>("-2147483648"), std::numeric_limits<int>::min());
  EXPECT_EQ(number_in<int>("-2147483649"), std::nullopt);
  EXPECT_EQ(number_in<std::uint64_t>("18446744073709551615"), std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(number_in<std::uint64_t>("-1"), std::nullopt);
  EXPECT_EQ(number_in<std::uint64_t>("-0"), std::nullopt);
  for (const char* text : {"1e999", "-1e999", "inf", "-inf", "infinity", "nan", "-nan"})
    EXPECT_EQ(number_in<double>(text), std::nullopt) << text;
  EXPECT_EQ(number_in<float>("1e39"), std::nullopt);
  EXPECT_EQ(number_in<long double>("1e39"), 1e39L);
}

TEST(NumberIn, ReadsWhatToStringAndToCharsWrite) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto whole = static_cast<std::int64_t>(random());
    EXPECT_EQ(number_in<std::int64_t>(std::to_string(whole)), whole) << "seed " << seed;
    const double real = std::ldexp(static_cast<double>(whole), static_cast<int>(random() % 200) - 100);
    char text[32];
    const auto [end, error] = std::to_chars(text, text + sizeof text, real);
    ASSERT_EQ(error, std::errc());
    EXPECT_EQ(number_in<double>(std::string_view(text, end)), real) << "seed " << seed;
  }
}

TEST(TakeNumber, RemovesTheNumberAtTheFront) {
  std::string_view text = "12F-3.5 x";
  EXPECT_EQ(take_number<int>(text), 12);
  EXPECT_EQ(text, "F-3.5 x");
  EXPECT_EQ(take_number<int>(text), std::nullopt);
  EXPECT_EQ(text, "F-3.5 x");
  text.remove_prefix(1);
  EXPECT_EQ(take_number<double>(text), -3.5);
  EXPECT_EQ(text, " x");
  text = "99999999999 1";
  EXPECT_EQ(take_number<int>(text), std::nullopt);
  EXPECT_EQ(text, "99999999999 1");
  text = "";
  EXPECT_EQ(take_number<int>(text), std::nullopt);
}

}  // namespace
}  // namespace stagecraft
