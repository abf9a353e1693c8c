#include "costmodel/text/units_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(ParseBytes, ReadsPlainAndExponentNumbers) {
  EXPECT_EQ(parse_bytes("0"), Bytes(0));
  EXPECT_EQ(parse_bytes("16000000000"), Bytes(16'000'000'000));
  EXPECT_EQ(parse_bytes("16e9"), Bytes(16'000'000'000));
  EXPECT_EQ(parse_bytes("1152921504606846975"), Bytes((std::int64_t{1} << 60) - 1));
}

TEST(ParseBytes, ReadsDecimalAndBinarySuffixesInAnyCase) {
  EXPECT_EQ(parse_bytes("7B"), Bytes(7));
  EXPECT_EQ(parse_bytes("2kB"), Bytes(2'000));
  EXPECT_EQ(parse_bytes("512MB"), Bytes(512'000'000));
  EXPECT_EQ(parse_bytes("3gb"), Bytes(3'000'000'000));
  EXPECT_EQ(parse_bytes("1TB"), Bytes(1'000'000'000'000));
  EXPECT_EQ(parse_bytes("2KiB"), Bytes(2'048));
  EXPECT_EQ(parse_bytes("1MiB"), Bytes(1'048'576));
  EXPECT_EQ(parse_bytes("16GiB"), Bytes(17'179'869'184));
  EXPECT_EQ(parse_bytes("1.5 GiB"), Bytes(1'610'612'736));
  EXPECT_EQ(parse_bytes("0.3kib"), Bytes(307));  // 307.2
}

TEST(ParseBytes, SaysWhatWasFoundAndWhatIsWanted) {
  for (const char* text : {"", "GiB", "many", "1XB", "1 GiB of it", "nan", "inf", "0x10"}) {
    EXPECT_THAT([&] { (void)parse_bytes(text); },
                ThrowsMessage<std::invalid_argument>(
                    HasSubstr("found \"" + std::string(text) + "\", expected a byte count such as")));
  }
  EXPECT_THAT([] { (void)parse_bytes("-1"); }, ThrowsMessage<std::invalid_argument>(HasSubstr("is negative")));
  EXPECT_THAT([] { (void)parse_bytes("1.5"); }, ThrowsMessage<std::invalid_argument>(HasSubstr("is not an integer")));
  EXPECT_THAT([] { (void)parse_bytes("2e18"); }, ThrowsMessage<std::invalid_argument>(HasSubstr("more than 2^60")));
  EXPECT_THAT([] { (void)parse_bytes("1e99999"); }, ThrowsMessage<std::invalid_argument>(HasSubstr("out of range")));
}

TEST(FormatBytes, ShowsThreeDigitsOfTheFittingUnit) {
  EXPECT_EQ(format_bytes(0_B), "0 B");
  EXPECT_EQ(format_bytes(1023_B), "1023 B");
  EXPECT_EQ(format_bytes(1_KiB), "1.00 KiB");
  EXPECT_EQ(format_bytes(1536_MiB), "1.50 GiB");
  EXPECT_EQ(format_bytes(100_MiB), "100 MiB");
  EXPECT_EQ(format_bytes(Bytes(1'048'575)), "1.00 MiB");  // not "1024 KiB"
  EXPECT_EQ(format_bytes(-(12_KiB)), "-12.0 KiB");
}

TEST(FormatRate, ShowsThreeDigitsOfTheFittingUnit) {
  EXPECT_EQ(format_rate(FlopsPerSecond(85.21e12)), "85.2 TFLOP/s");
  EXPECT_EQ(format_rate(FlopsPerSecond(640e9)), "640 GFLOP/s");
  EXPECT_EQ(format_rate(FlopsPerSecond(0)), "0.00 FLOP/s");
}

TEST(FormatSeconds, ShowsThreeDigitsOfTheFittingUnit) {
  EXPECT_EQ(format_seconds(0_s), "0 s");
  EXPECT_EQ(format_seconds(-4e-12 * 1_s), "0 s");  // not "-0.00 ns"
  EXPECT_EQ(format_seconds(6e-12 * 1_s), "0.01 ns");
  EXPECT_EQ(format_seconds(3e-9 * 1_s), "3.00 ns");
  EXPECT_EQ(format_seconds(250_us), "250 us");
  EXPECT_EQ(format_seconds(12.3_ms), "12.3 ms");
  EXPECT_EQ(format_seconds(999.9_ms), "1.00 s");  // not "1000 ms"
  EXPECT_EQ(format_seconds(1.5_s), "1.50 s");
  EXPECT_EQ(format_seconds(4321_s), "4321 s");
  EXPECT_EQ(format_seconds(-(2_ms)), "-2.00 ms");
}

TEST(DurationText, HasTwoUnits) {
  for (const auto& [seconds, text] : std::vector<std::pair<double, std::string>>{{0.2, "0 s"},
                                                                                 {45.4, "45 s"},
                                                                                 {59.6, "1 min 0 s"},
                                                                                 {200, "3 min 20 s"},
                                                                                 {7500, "2 h 5 min"},
                                                                                 {356400, "4 d 3 h"}})
    EXPECT_EQ(duration_text(Seconds(seconds)), text);
}

}  // namespace
}  // namespace stagecraft
