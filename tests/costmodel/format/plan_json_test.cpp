#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/interchange/actions_csv.h"
#include "costmodel/plan.h"
#include "tests/costmodel/interleavings.h"

namespace stagecraft::format {
namespace {

using stagecraft::testing::row_plan;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(PlanJson, NamesThePlaceOfAWrongAction) {
  Plan plan = row_plan("listed", {1, 1}, 1);
  plan.listed = interchange::parse_actions_csv("0F0,0B0\n1F0,1B0", "s.csv");
  std::string text = plan_json(plan);
  text.replace(text.find("1F0,1B0"), 7, "1F0,1C0");
  EXPECT_THAT([&] { (void)parse_plan(text, "plan.json"); },
              ThrowsMessage<FormatError>(HasSubstr("plan.json: /actions/1: cell 2: found \"1C0\", expected a stage")));
}

TEST(PlanJson, ReadsOlderVersions) {
  const Plan plan = row_plan("1f1b", {1, 1}, 2);
  for (const char* version : {"1", "2", "3", "4", "5", "6", "7", "8"}) {
    std::string text = plan_json(plan);
    text.replace(text.find("\"version\": 9") + 11, 1, version);
    EXPECT_EQ(parse_plan(text, "plan.json"), plan);
  }
}

TEST(PlanJson, HoldsTiedParameters) {
  Plan plan = row_plan("1f1b", {1, 1}, 2);
  plan.tied = {{"weight", {"l0", "l1"}}};
  const std::string text = plan_json(plan);
  EXPECT_EQ(parse_plan(text, "plan.json"), plan);
  EXPECT_THAT(text, HasSubstr(R"("tied": [)"));
  std::string wrong = text;
  wrong.replace(wrong.rfind("\"l1\""), 4, "\"l7\"");
  EXPECT_THAT([&] { (void)parse_plan(wrong, "plan.json"); },
              ThrowsMessage<FormatError>("plan.json: /: tied parameter \"weight\": layer \"l7\" is not in any stage"));
}

TEST(PlanJson, HoldsTheParametersOfStages) {
  Plan plan = row_plan("1f1b", {1, 1}, 2);
  plan.stages[0].parameters = {{"l0", {"weight", {2, 3}, "float32"}}};
  plan.stages[1].parameters = {{"l1", {"bias", {}, "float32"}}};
  plan.stages[1].exchanged_buffers = {{"l1", {"mean", {4}, "float64"}}};
  const std::string text = plan_json(plan);
  EXPECT_EQ(parse_plan(text, "plan.json"), plan);
  const auto refused = [&](const std::string& from, const std::string& to, const std::string& message) {
    std::string wrong = text;
    wrong.replace(wrong.find(from), from.size(), to);
    EXPECT_THAT([&] { (void)parse_plan(wrong, "plan.json"); }, ThrowsMessage<FormatError>("plan.json: /: " + message));
  };
  refused("\"layer\": \"l1\"", "\"layer\": \"l0\"",
          "stage 1: parameter \"bias\" of layer \"l0\": the stage does not have the layer");
  refused("\"bias\"", "\"weight\"",
          "stage 1: parameter \"weight\" of layer \"l1\" has another shape or dtype than in another layer");
  refused("float64", "float12", "stage 1: buffer \"mean\" of layer \"l1\" has the unknown dtype \"float12\"");
}

TEST(PlanJson, RefusesSharedParametersThatAreNotTied) {
  Plan plan = row_plan("1f1b", {1, 1}, 2);
  plan.stages[0].parameters = {{"l0", {"weight", {2}, "float32"}}};
  plan.stages[1].parameters = {{"l1", {"weight", {2}, "float32"}}};
  EXPECT_THAT(
      [&] { (void)parse_plan(plan_json(plan), "plan.json"); },
      ThrowsMessage<FormatError>(HasSubstr("layers l0 and l1 share parameter \"weight\", which the plan does not "
                                           "list as tied")));
  plan.tied = {{"weight", {"l0", "l1"}}};
  EXPECT_EQ(parse_plan(plan_json(plan), "plan.json"), plan);
  plan.stages[1].parameters.front().tensor.name = "other";
  EXPECT_THAT(
      [&] { (void)parse_plan(plan_json(plan), "plan.json"); },
      ThrowsMessage<FormatError>(HasSubstr("tied parameter \"weight\" of layers \"l0\", \"l1\": the stages list "
                                           "it for l0")));
}

TEST(PlanJson, LeavesOutWhatIsNotSet) {
  const std::string text = plan_json(row_plan("1f1b", {1}, 2));  // boundary tensors would have a dtype
  for (const char* key : {"dtype", "allow_tf32", "optimizer", "gradient_bucket_bytes", "recompute", "tied",
                          "parameters", "exchanged_buffers"})
    EXPECT_EQ(text.find(key), std::string::npos) << key;
}

TEST(PlanJson, RefusesARecomputeEveryWithoutEffect) {
  Plan plan = row_plan("1f1b", {1, 1}, 2);
  plan.stages[1].recompute = true;
  plan.stages[1].recompute_every = 3;
  EXPECT_EQ(parse_plan(plan_json(plan), "plan.json"), plan);
  plan.stages[1].recompute = false;
  EXPECT_THAT(
      [&] { (void)parse_plan(plan_json(plan), "plan.json"); },
      ThrowsMessage<FormatError>("plan.json: /stages/1/recompute_every: has no effect without \"recompute\": true"));
}

}  // namespace
}  // namespace stagecraft::format
