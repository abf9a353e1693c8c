#include "costmodel/format/results/accuracy_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "costmodel/errors.h"
#include "tests/costmodel/documents.h"

namespace stagecraft::format {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

void expect_refused(const std::string& from, const std::string& to, const std::string& place,
                    const std::string& found) {
  std::string text = comparison_json(full_comparison());
  const std::size_t at = text.find(from);
  ASSERT_NE(at, text.npos) << from;
  text.replace(at, from.size(), to);
  EXPECT_THAT([&] { (void)parse_comparison(text, "c.json"); },
              ThrowsMessage<FormatError>(AllOf(StartsWith("c.json: " + place), HasSubstr(found))));
}

TEST(ComparisonJson, ReadsBackWhatWasWritten) {
  Comparison comparison = full_comparison();
  EXPECT_EQ(parse_comparison(comparison_json(comparison), "c.json"), comparison);
  comparison.ended = true;
  comparison.samples_per_s.reset();
  comparison.rates = {};
  comparison.actions.clear();
  comparison.bubbles.clear();
  comparison.memory.clear();
  comparison.distrust.clear();
  comparison.drift.reset();
  comparison.no_drift.clear();
  EXPECT_EQ(parse_comparison(comparison_json(comparison), "c.json"), comparison);
}

TEST(ComparisonJson, HasEachQuantityWithItsUnitAndItsError) {
  const auto json = nlohmann::json::parse(comparison_json(full_comparison()));
  EXPECT_EQ(json["format"], "stagecraft.comparison");
  EXPECT_EQ(json["version"], 4);
  EXPECT_EQ(json["interval"]["high_s"], 4.5);
  EXPECT_EQ(json["interval"]["inside"], false);  // 5 s
  EXPECT_EQ(json["step"]["measured_s"], 5);
  EXPECT_DOUBLE_EQ(json["step"]["error"].get<double>(), -0.2);  // 4 s instead of 5 s
  EXPECT_EQ(json["spread_s"], 0.5);
  EXPECT_EQ(json["samples"]["predicted_per_s"], 3);
  EXPECT_EQ(json["rates"]["measured"]["flops_per_s"], 3e12);
  EXPECT_EQ(json["actions"][0]["action"], "backward");
  EXPECT_EQ(json["bubbles"][0]["predicted_share"], 0.25);
  EXPECT_EQ(json["memory"][0]["measured_bytes"], 200);
  EXPECT_DOUBLE_EQ(json["memory"][0]["error"].get<double>(), 0.5);  // 300 B instead of 200 B
  EXPECT_EQ(json["ended"], false);
  EXPECT_EQ(json["drift"]["works"][0]["ratio"], 1.5);
  EXPECT_FALSE(json["drift"].contains("step"));
}

TEST(ComparisonJson, ReadsTheStepOfADriftThatVersionThreeHas) {
  auto json = nlohmann::json::parse(comparison_json(full_comparison()));
  json["version"] = 3;
  json["drift"]["step"] = {{"predicted_s", 6}, {"measured_s", 5}, {"error", 0.2}};
  EXPECT_EQ(parse_comparison(json.dump(), "c.json"), full_comparison());
}

TEST(ComparisonJson, LeavesTheErrorOutWhereNothingWasMeasured) {
  Comparison comparison = full_comparison();
  comparison.actions[0].time.measured = 0_s;
  const auto json = nlohmann::json::parse(comparison_json(comparison));
  EXPECT_FALSE(json["actions"][0].contains("error"));
  EXPECT_TRUE(json["step"].contains("error"));
  EXPECT_EQ(parse_comparison(json.dump(), "c.json"), comparison);
}

// A program may edit the quantities and leave the old errors, which follow from them.
TEST(ComparisonJson, ReadsNoErrorsButWantsThemToBeNumbers) {
  auto json = nlohmann::json::parse(comparison_json(full_comparison()));
  json["step"]["error"] = 7;
  EXPECT_EQ(parse_comparison(json.dump(), "c.json"), full_comparison());
  json["step"]["error"] = "much";
  EXPECT_THAT([&] { (void)parse_comparison(json.dump(), "c.json"); },
              ThrowsMessage<FormatError>(AllOf(StartsWith("c.json: /step/error: "), HasSubstr("\"much\""))));
}

// 1e300 s predicted and 1e-300 s measured are 1e600 times too much, beyond what a number holds.
TEST(ComparisonJson, LeavesOutAnErrorThatIsNotFinite) {
  Comparison comparison = full_comparison();
  comparison.step = {1e300_s, 1e-300_s};
  EXPECT_FALSE(nlohmann::json::parse(comparison_json(comparison))["step"].contains("error"));
  EXPECT_EQ(parse_comparison(comparison_json(comparison), "c.json"), comparison);
}

TEST(ComparisonJson, NamesThePlaceOfAnUnknownAction) {
  expect_refused("\"backward\"", "\"sideward\"", "/actions/0/action: ", "unknown action \"sideward\"");
}

TEST(ComparisonJson, NamesThePlaceOfANumberOutOfRange) {
  expect_refused("\"steps\": 3", "\"steps\": 0", "/steps: ", "found 0");
  expect_refused("\"skipped\": 2", "\"skipped\": -1", "/skipped: ", "found -1");
  expect_refused("\"measured_s\": 5", "\"measured_s\": -5", "/step/measured_s: ", "found -5");
  expect_refused("\"factor\": 1.5", "\"factor\": 0", "/drift/factor: ", "found 0");
  expect_refused("\"measured_bytes\": 200", "\"measured_bytes\": 0.5", "/memory/0/measured_bytes: ", "found 0.5");
}

}  // namespace
}  // namespace stagecraft::format
