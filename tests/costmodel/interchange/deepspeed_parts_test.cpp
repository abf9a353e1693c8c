#include "costmodel/interchange/deepspeed_parts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/refused.h"

namespace stagecraft::interchange {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string refusal(const std::string& text) {
  try {
    (void)parse_deepspeed_parts(text, "parts.json");
  } catch (const FormatError& e) { return e.what(); }
  return "";
}

TEST(DeepspeedParts, AreTheBoundsOfThePlansStages) {
  const DeepspeedParts parts = deepspeed_parts(BoundPlan(testing::plan_of_layers({{"a", "b"}, {"c"}, {"d", "e"}})));
  EXPECT_THAT(parts.parts, ElementsAre(0, 2, 3, 5));
  EXPECT_THAT(parts.layers, ElementsAre("a", "b", "c", "d", "e"));
  EXPECT_EQ(parse_deepspeed_parts(deepspeed_parts_json(parts), "again"), parts);
  EXPECT_THAT(deepspeed_partition(parts, testing::graph_of_layers({"a", "b", "c", "d", "e"})).stage_of_layer,
              ElementsAre(0, 0, 1, 2, 2));
}

TEST(DeepspeedParts, LeaveTheLossToTheLossFunction) {
  const DeepspeedParts parts = deepspeed_parts(BoundPlan(testing::plan_of_layers({{"a"}, {"b", "model.loss"}})));
  EXPECT_THAT(parts.parts, ElementsAre(0, 1, 2));
  EXPECT_THAT(parts.layers, ElementsAre("a", "b"));
  EXPECT_THAT(deepspeed_partition(parts, testing::graph_of_layers({"a", "b", "model.loss"})).stage_of_layer,
              ElementsAre(0, 1, 1));
  EXPECT_THAT(testing::refused([] { return deepspeed_parts(BoundPlan(testing::plan_of_layers({{"a"}, {"loss"}}))); }),
              HasSubstr("the last stage has only \"loss\""));
}

TEST(DeepspeedParts, RefuseWhatNoPipelineModuleRuns) {
  Plan uneven = testing::plan_of_layers({{"a"}, {"b"}});
  uneven.stages[1].devices = {1, 2};
  EXPECT_EQ(testing::refused([&] { return deepspeed_parts(BoundPlan(uneven)); }),
            "stage 1 has 2 replicas and stage 0 has 1, but DeepSpeed needs the same number for every stage");
  Plan skipping = testing::plan_of_layers({{"a"}, {"b"}, {"c"}});
  skipping.boundaries.push_back({0, 2, {{"a", 0, Bytes(8), {}, "", true}}});
  EXPECT_EQ(
      testing::refused([&] { return deepspeed_parts(BoundPlan(skipping)); }),
      "layer \"a\" of stage 0 is read in stage 2, but a PipelineModule passes a stage's output only to the next stage");
  EXPECT_THAT(testing::refused(
                  [] { return deepspeed_parts(BoundPlan(testing::row_plan("interleaved-1f1b", {1, 1, 1, 1}, 4, 2))); }),
              HasSubstr("2 stages on each device"));
}

TEST(ParseDeepspeedParts, TakesTheListAlone) {
  EXPECT_THAT(parse_deepspeed_parts("[0, 19, 22]", "parts.json").parts, ElementsAre(0, 19, 22));
  EXPECT_THAT(parse_deepspeed_parts("{\"partition_method\": \"parameters\", \"parts\": [0, 19, 22]}", "x").parts,
              ElementsAre(0, 19, 22));
}

TEST(ParseDeepspeedParts, NamesThePointerAndWhatWouldBeRight) {
  EXPECT_EQ(refusal("{\"parts\": [0, 2, 2]}"),
            "parts.json: /parts/2: found 2, expected a bound above 2, a stage has at least one layer");
  EXPECT_EQ(refusal("[1, 2]"), "parts.json: /0: found 1, expected 0, where the first stage begins");
  EXPECT_EQ(refusal("[0]"), "parts.json: /: found 1 bounds, expected at least two");
  EXPECT_EQ(refusal("{\"parts\": [0, 1], \"layers\": [\"a\", \"b\"]}"),
            "parts.json: /layers: found 2 layers, the last bound is 1");
  EXPECT_THAT(refusal("{\"parts\": [0, 1], \"colour\": 1}"), HasSubstr("unknown key \"colour\""));
  EXPECT_THAT(refusal("{\"parts\": [0, 1], \"parts\": [0, 1]}"), HasSubstr("appears twice"));
  EXPECT_THAT(refusal("{\"parts\": [0, 99999999]}"), HasSubstr("expected an integer from 0 to 16777216"));
}

TEST(DeepspeedPartition, RefusesAnotherList) {
  const Graph graph = testing::graph_of_layers({"a", "b", "c"});
  EXPECT_EQ(testing::refused([&] { return deepspeed_partition({{0, 1, 2}, {}}, graph); }),
            "found 2 layers, graph \"net\" has 3");
  EXPECT_EQ(testing::refused([&] { return deepspeed_partition({{0, 1, 3}, {"a", "x", "c"}}, graph); }),
            "found \"x\" as layer 1, graph \"net\" has \"b\" there");
}

}  // namespace
}  // namespace stagecraft::interchange
