#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "costmodel/format/plan_json.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/timeline_json.h"
#include "tests/costmodel/documents.h"
#include "tests/support/run_command.h"

// stagecraft-compare as a user runs it.

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using ::testing::StartsWith;

class CompareTool : public ::testing::Test {
 protected:
  /// A predicted step of 4 s and measured ones of 4 and 3.5 s.
  CompareTool() {
    folder_.write("prediction.json", format::prediction_json(full_prediction()));
    folder_.write("measured.json", format::measurement_json(full_measurement()));
  }
  Outcome compare(const std::string& arguments) const { return folder_.run("stagecraft-compare " + arguments); }

  testing::CommandFolder folder_;
};

TEST_F(CompareTool, PrintsATable) {
  const Outcome o = compare("prediction.json measured.json --skip 0");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.err, "");
  EXPECT_THAT(o.out, HasSubstr("4000.000 ms    3750.000 ms     +6.7 %"));
  EXPECT_THAT(o.out, HasSubstr("rank 1 peak memory"));
}

TEST_F(CompareTool, TakesThePredictionAndTheRunInAnyOrder) {
  EXPECT_EQ(compare("measured.json prediction.json --skip 0").out,
            compare("prediction.json measured.json --skip 0").out);
}

TEST_F(CompareTool, ShowsChangesBetweenTwoPredictionsOrTwoRuns) {
  Prediction slower = full_prediction();
  slower.iteration = 5_s;
  folder_.write("slower.json", format::prediction_json(slower));
  const Outcome predictions = compare("prediction.json slower.json");
  EXPECT_EQ(predictions.status, 0) << predictions.err;
  EXPECT_THAT(predictions.out, HasSubstr("prediction.json      slower.json   change\n"));
  EXPECT_THAT(predictions.out, HasSubstr("4.00 s           5.00 s  +25.0 %\n"));
  const Outcome runs = compare("measured.json measured.json --skip 1 --json");
  EXPECT_EQ(runs.status, 0) << runs.err;
  const auto json = nlohmann::json::parse(runs.out);
  EXPECT_EQ(json["format"], "stagecraft.change");
  EXPECT_EQ(json["of"], "runs");
  EXPECT_EQ(json["step"]["second_s"], 3.5);
  EXPECT_EQ(json["steps"]["first"], 1);
}

TEST_F(CompareTool, PrintsJson) {
  const auto comparison = format::parse_comparison(compare("prediction.json measured.json --skip 1 --json").out, "out");
  EXPECT_EQ(comparison.step.measured, 3.5_s);
  EXPECT_EQ(comparison.skipped, 1U);
}

TEST_F(CompareTool, DrawsTheMeasuredStepBelowThePredictedOne) {
  const std::string table = compare("prediction.json measured.json --skip 0").out;
  const Outcome o = compare("measured.json prediction.json --skip 0 --gantt");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, StartsWith(table + "\nprediction.json, predicted:\nrank 0 (stage 0) |"));
  EXPECT_THAT(o.out, HasSubstr("\n\nmeasured.json, measured, step "));
  EXPECT_EQ(compare("prediction.json measured.json --json --gantt").status, 2);
}

TEST_F(CompareTool, EndsWithOneOnBadInput) {
  Measurement other = full_measurement();
  other.timeline.stage_of_rank = {0, 0};
  folder_.write("other.json", format::measurement_json(other));
  folder_.write("plan.json", format::plan_json(full_plan()));
  folder_.write("milk.txt", "buy milk");
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"nowhere.json measured.json", "stagecraft-compare: nowhere.json: "},
           {"plan.json prediction.json",
            "plan.json: /format: found \"stagecraft.plan\", expected \"stagecraft.prediction\" or "
            "\"stagecraft.timeline\"; stagecraft diff compares plans [SC1105]"},
           {"prediction.json milk.txt", "milk.txt: /format: found no document of stagecraft, expected "},
           {"prediction.json other.json", "the prediction's ranks run stages 0 1, the measured ones 0 0"}}) {
    const Outcome o = compare(arguments);
    EXPECT_EQ(o.status, 1) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message));
  }
}

TEST_F(CompareTool, EndsWithTwoOnWrongUsage) {
  EXPECT_EQ(compare("prediction.json").status, 2);
  EXPECT_THAT(compare("prediction.json").err, HasSubstr("SECOND is required"));
  const Outcome negative = compare("prediction.json measured.json --skip -1");
  EXPECT_EQ(negative.status, 2);
  EXPECT_THAT(negative.err, HasSubstr("stagecraft-compare: --skip: -1 is not an integer of 0 or more [SC1005]\n"));
  EXPECT_THAT(compare("--help").out, HasSubstr("stagecraft compare prediction.json measured.json"));
}

}  // namespace
}  // namespace stagecraft
