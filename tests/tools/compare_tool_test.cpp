#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/format/json.h"
#include "costmodel/format/results/comparison_json.h"
#include "tests/costmodel/documents.h"
#include "tests/support/run_command.h"

// stagecraft-compare as a user runs it.

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;

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

TEST_F(CompareTool, PrintsJson) {
  const auto comparison = format::parse_comparison(compare("prediction.json measured.json --skip 1 --json").out, "out");
  EXPECT_EQ(comparison.step.measured, 3.5_s);
  EXPECT_EQ(comparison.skipped, 1U);
}

TEST_F(CompareTool, EndsWithOneOnBadInput) {
  Measurement other = full_measurement();
  other.timeline.stage_of_rank = {0, 0};
  folder_.write("other.json", format::measurement_json(other));
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"nowhere.json measured.json", "stagecraft-compare: nowhere.json: "},
           {"measured.json prediction.json",
            "measured.json: /format: found \"stagecraft.timeline\", expected \"stagecraft.prediction\""},
           {"prediction.json other.json", "the prediction's ranks run stages 0 1, the measured ones 0 0"}}) {
    const Outcome o = compare(arguments);
    EXPECT_EQ(o.status, 1) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message));
  }
}

TEST_F(CompareTool, EndsWithTwoOnWrongUsage) {
  EXPECT_EQ(compare("prediction.json").status, 2);
  EXPECT_THAT(compare("prediction.json").err, HasSubstr("MEASURED is required"));
  const Outcome negative = compare("prediction.json measured.json --skip -1");
  EXPECT_EQ(negative.status, 2);
  EXPECT_THAT(negative.err, HasSubstr("stagecraft-compare: --skip: -1 is not an integer of 0 or more [SC1005]\n"));
  EXPECT_THAT(compare("--help").out, HasSubstr("stagecraft compare prediction.json measured.json"));
}

}  // namespace
}  // namespace stagecraft
