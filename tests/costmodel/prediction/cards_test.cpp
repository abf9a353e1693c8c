#include "costmodel/prediction/cards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string message_of(const std::string& name) {
  try {
    (void)find_card(name);
  } catch (const std::invalid_argument& e) { return e.what(); }
  return "found";
}

// NVIDIA's datasheet of the A100: TF32 156 TFLOP/s, BF16 312, FP32 19.5; 80 GB in SXM form at 2039 GB/s.
TEST(Cards, HaveTheRatesOfTheirDatasheet) {
  const Card& a100 = find_card("A100-SXM-80GB");
  EXPECT_EQ(peak_rate(a100, "bfloat16", false), FlopsPerSecond(312e12));
  EXPECT_EQ(peak_rate(a100, "float32", true), FlopsPerSecond(156e12));
  EXPECT_EQ(peak_rate(a100, "float32", false), FlopsPerSecond(19.5e12));
  EXPECT_EQ(peak_rate(a100, "", false), FlopsPerSecond(19.5e12));
  EXPECT_EQ(a100.bandwidth, BytesPerSecond(2039e9));
  EXPECT_EQ(a100.memory, Bytes(80'000'000'000));
}

TEST(Cards, HaveDifferentNamesAndASource) {
  std::set<std::string> names;
  for (const Card& card : cards()) {
    SCOPED_TRACE(card.name);
    EXPECT_TRUE(names.insert(card.name).second);
    EXPECT_TRUE(names.insert(card.short_name).second);
    EXPECT_FALSE(card.source.empty());
    EXPECT_EQ(&find_card(card.name), &card);
    EXPECT_EQ(&find_card(card.short_name), &card);
    EXPECT_THAT(cards_text(), AllOf(HasSubstr(card.name), HasSubstr(card.source)));
  }
}

// NVIDIA's page of the GB200 lists a superchip of two GPUs: with sparsity 10 PFLOP/s in BF16 and 5 in TF32, which is
// twice the dense rate; 160 TFLOP/s in FP32, 372 GB, 16 TB/s.
TEST(Cards, HaveTheDenseRateOfOneOfTheGpusOfASuperchip) {
  const Card& gb200 = find_card("GB200");
  EXPECT_EQ(peak_rate(gb200, "bfloat16", false), FlopsPerSecond(10e15 / 2 / 2));
  EXPECT_EQ(peak_rate(gb200, "float32", true), FlopsPerSecond(5e15 / 2 / 2));
  EXPECT_EQ(peak_rate(gb200, "float32", false), FlopsPerSecond(160e12 / 2));
  EXPECT_EQ(gb200.bandwidth, BytesPerSecond(16e12 / 2));
  EXPECT_EQ(gb200.memory, Bytes(372'000'000'000 / 2));
  EXPECT_EQ(find_card("B200").memory, Bytes(1'440'000'000'000 / 8));  // a DGX B200 has 1,440 GB
}

// A rate with narrower numbers is never lower, and a typing error of a power of ten would show: from the T4 to the
// GB200 these cards do 8 to 92 TFLOP/s in float32 and read 300 to 8000 GB/s.
TEST(Cards, HavePlausibleRates) {
  for (const Card& card : cards()) {
    SCOPED_TRACE(card.name);
    EXPECT_GE(card.float32, FlopsPerSecond(8e12));
    EXPECT_LE(card.float32, FlopsPerSecond(92e12));
    EXPECT_GE(peak_rate(card, "float32", true), card.float32);
    EXPECT_GE(card.float16.value_or(FlopsPerSecond(1e15)), peak_rate(card, "float32", true));
    EXPECT_TRUE(!card.bfloat16 || card.bfloat16 == card.float16);
    EXPECT_GE(card.bandwidth, BytesPerSecond(300e9));
    EXPECT_LE(card.bandwidth, BytesPerSecond(8000e9));
    EXPECT_GE(card.memory, Bytes(11'000'000'000));
  }
}

TEST(FindCard, IgnoresCaseAndTheOrderOfWords) {
  EXPECT_EQ(find_card("nvidia h100 80gb hbm3").short_name, "H100-SXM-80GB");
  EXPECT_EQ(find_card("a100 pcie 80gb").short_name, "A100-PCIe-80GB");
  EXPECT_EQ(find_card("h200").short_name, "H200-SXM-141GB");
  EXPECT_EQ(find_card("GeForce RTX 3090").short_name, "RTX-3090");
}

TEST(FindCard, MatchesWholeWords) { EXPECT_EQ(find_card("L4").name, "NVIDIA L4"); }

TEST(FindCard, ListsTheCandidatesOfAnIncompleteName) {
  EXPECT_THAT(message_of("H100"),
              AllOf(HasSubstr("card \"H100\" may be any of H100-PCIe-80GB, H100-SXM-80GB"), Not(HasSubstr("GH200"))));
}

TEST(FindCard, ListsAllCardsForAnUnknownName) {
  EXPECT_THAT(message_of("B300"), AllOf(HasSubstr("B300"), HasSubstr("V100-SXM2-16GB"), HasSubstr("GH200-96GB")));
  EXPECT_THAT(message_of(""), HasSubstr("H200-SXM-141GB"));
  EXPECT_THAT(message_of("NVIDIA"), HasSubstr("H200-SXM-141GB"));
}

TEST(PeakRate, RefusesATypeThatIsNotInTheTable) {
  EXPECT_THROW((void)peak_rate(find_card("T4"), "bfloat16", false), std::invalid_argument);
  EXPECT_THROW((void)peak_rate(find_card("T4"), "float4", false), std::invalid_argument);
}

// TF32 needs tensor cores that have it; Turing's have not.
TEST(UsesTensorCores, FollowsTheMath) {
  EXPECT_TRUE(uses_tensor_cores(find_card("H200"), "float32", true));
  EXPECT_FALSE(uses_tensor_cores(find_card("H200"), "float32", false));
  EXPECT_FALSE(uses_tensor_cores(find_card("Titan RTX"), "float32", true));
  EXPECT_TRUE(uses_tensor_cores(find_card("Titan RTX"), "float16", false));
}

}  // namespace
}  // namespace stagecraft
