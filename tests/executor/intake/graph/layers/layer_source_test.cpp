#include "executor/intake/graph/layers/layer_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/support/refused.h"

namespace stagecraft::intake {
namespace {

using stagecraft::testing::refused;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

TEST(ImportSettings, TakeTheKnownNamesAndAnyInputOrRange) {
  EXPECT_NO_THROW(check_import_settings({{"layers", "op"},
                                         {"loss", "mse"},
                                         {"loss_output", "1"},
                                         {"samples", "4"},
                                         {"range.tokens", "0..5"},
                                         {"input.x", "float32[3]"}}));
  EXPECT_NO_THROW(check_import_settings({}));
}

TEST(ImportSettings, ListTheKnownNamesForAnotherOne) {
  for (const char* key : {"layer", "width", "Range.x", "ranges.x"}) {
    EXPECT_THAT(refused([&] { check_import_settings({{key, "1"}}); }),
                AllOf(HasSubstr('"' + std::string(key) + '"'), HasSubstr("layers, loss, loss_output"),
                      HasSubstr("range.NAME")));
  }
}

TEST(ImportSettings, FallBackToWhatIsMeantWithoutThem) {
  EXPECT_EQ(setting({{"layers", "op"}}, "layers", "auto"), "op");
  EXPECT_EQ(setting({{"layers", "op"}}, "loss", "none"), "none");
  EXPECT_EQ(setting({{"loss", ""}}, "loss", "none"), "") << "set to nothing is set";
}

TEST(InputRanges, AreReadByInput) {
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min(), kMost = -(kLeast + 1);
  EXPECT_THAT(input_ranges({{"range.tokens", "0..50257"},
                            {"range.a.b", "-3..-1"},
                            {"range.all", "-9223372036854775808..9223372036854775807"},
                            {"layers", "auto"}}),
              ElementsAre(Pair("a.b", Pair(-3, -1)), Pair("all", Pair(kLeast, kMost)), Pair("tokens", Pair(0, 50257))));
  EXPECT_TRUE(input_ranges({{"layers", "auto"}}).empty());
}

TEST(InputRanges, NameAnInvalidRange) {
  for (const char* text : {"", "5", "0..", "..5", "5..5", "6..5", "0..5x", "x0..5", " 0..5", "0...5", "0..1.5",
                           "0..9223372036854775808"}) {
    EXPECT_THAT(refused([&] { return input_ranges({{"range.tokens", text}}); }),
                AllOf(HasSubstr("range.tokens"), HasSubstr('"' + std::string(text) + '"'), HasSubstr("FROM..TO")))
        << text;
  }
}

}  // namespace
}  // namespace stagecraft::intake
