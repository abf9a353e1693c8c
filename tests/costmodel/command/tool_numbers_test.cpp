#include "costmodel/command/tool_numbers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <random>

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// The result of `validator` for a text: why it refuses the text, or what it stores.
struct Verdict {
  std::string refusal;
  std::string stored;
};
Verdict verdict(const CLI::Validator& validator, const std::string& text) {
  Verdict out{"", text};
  out.refusal = validator(out.stored);
  return out;
}

TEST(ShownNumber, QuotesWhatDoesNotLookLikeANumber) {
  EXPECT_EQ(shown_number("-1.5e9"), "-1.5e9");
  EXPECT_EQ(shown_number(""), "\"\"");
  EXPECT_EQ(shown_number("ten"), "\"ten\"");
  EXPECT_EQ(shown_number("1 2"), "\"1 2\"");
}

TEST(NumberText, OmitsTrailingZeros) {
  EXPECT_EQ(number_text(0.001), "0.001");
  EXPECT_EQ(number_text(1'000'000), "1000000");
  EXPECT_EQ(number_text(1e30), "1e+30");
  EXPECT_EQ(number_text(-0.5), "-0.5");
}

TEST(NumberText, KeepsFifteenDigits) {
  for (unsigned seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(seed);
    const double value =
        std::ldexp(static_cast<double>(random() % 1'000'000'000), static_cast<int>(random() % 200) - 100);
    EXPECT_NEAR(std::strtod(number_text(value).c_str(), nullptr), value, 5e-15 * value) << "seed " << seed;
  }
}

TEST(Integer, StoresTheNumberThatWasChecked) {
  const Verdict found = verdict(integer(1, 20), "010");
  EXPECT_EQ(found.refusal, "");
  EXPECT_EQ(found.stored, "10");  // cannot be read as octal
}

TEST(Integer, TakesWhatIsInItsRangeAndNamesWhatIsNot) {
  for (int low = -3; low <= 3; ++low) {
    for (int high = low; high <= 3; ++high) {
      const CLI::Validator range = integer(low, high);
      for (int value = -5; value <= 5; ++value) {
        const std::string refusal = verdict(range, std::to_string(value)).refusal;
        if (low <= value && value <= high) {
          EXPECT_EQ(refusal, "") << low << ".." << high;
        } else {
          EXPECT_THAT(refusal, AllOf(StartsWith(std::to_string(value)), HasSubstr(std::to_string(low)),
                                     HasSubstr(std::to_string(high))));
        }
      }
    }
  }
}

TEST(Integer, NamesTheMaximumOnlyIfItIsExceeded) {
  EXPECT_THAT(verdict(integer(1), "0").refusal, AllOf(StartsWith("0 "), HasSubstr("1 or more")));
  EXPECT_THAT(verdict(integer(1), "2147483648").refusal, AllOf(StartsWith("2147483648 "), HasSubstr("2147483647")));
  EXPECT_THAT(verdict(integer(1), "-2147483649").refusal, HasSubstr("1 or more"));
  EXPECT_THAT(verdict(integer(1, 4, "the topology has 4"), "5").refusal, ::testing::EndsWith(", the topology has 4"));
  EXPECT_THAT(verdict(integer<std::uint64_t>(0), "-1").refusal, StartsWith("-1 "));
}

TEST(NumberFrom, IncludesBothEnds) {
  const CLI::Validator range = number_from(0.5, 2);
  for (const char* text : {"0.5", "2", "1e0"}) EXPECT_EQ(verdict(range, text).refusal, "") << text;
  for (const char* text : {"0.49", "2.01", "nan", "inf", "1e999"})
    EXPECT_THAT(verdict(range, text).refusal, AllOf(HasSubstr(text), HasSubstr("0.5"), HasSubstr("2"))) << text;
}

TEST(NumberAbove, ExcludesItsBoundAndInfinity) {
  const CLI::Validator above = number_above(0);
  EXPECT_EQ(verdict(above, "1e-300").refusal, "");
  for (const char* text : {"0", "-1", "inf", "nan", "", "x"})
    EXPECT_THAT(verdict(above, text).refusal, HasSubstr("above 0")) << text;
}

}  // namespace
}  // namespace stagecraft
