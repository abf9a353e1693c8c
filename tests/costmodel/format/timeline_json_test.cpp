#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>

#include "costmodel/errors.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/timeline_json.h"
#include "tests/costmodel/documents.h"

namespace stagecraft::format {
namespace {

using Json = nlohmann::ordered_json;

TEST(TimelineJson, GivesAPredictionBack) {
  const std::string text = prediction_json(full_prediction());
  const Prediction p = parse_prediction(text, "p.json");
  EXPECT_EQ(p.iteration, full_prediction().iteration);
  EXPECT_EQ(p.samples_per_s, full_prediction().samples_per_s);
  EXPECT_EQ(p.stages.at(0).memory, full_prediction().stages.at(0).memory);
  EXPECT_EQ(p.timeline, full_timeline());
  EXPECT_EQ(prediction_json(p), text);
}

TEST(TimelineJson, GivesAMeasurementBack) {
  EXPECT_EQ(parse_measurement(measurement_json(full_measurement()), "m.json"), full_measurement());
}

TEST(TimelineJson, WritesALossThatIsNotFiniteAsNull) {
  Measurement measurement = full_measurement();
  measurement.losses = {1.5, std::nan(""), std::numeric_limits<double>::infinity(), -2};
  const std::string text = measurement_json(measurement);
  EXPECT_EQ(Json::parse(text)["losses"].dump(), "[1.5,null,null,-2.0]");
  const std::vector<double> losses = parse_measurement(text, "m.json").losses;
  EXPECT_EQ(losses[0], 1.5);
  EXPECT_TRUE(std::isnan(losses[1]));
  EXPECT_TRUE(std::isnan(losses[2]));
  EXPECT_EQ(losses[3], -2);
}

struct Fault {
  std::string message;
  std::function<void(Json&)> make;
};

TEST(TimelineJson, NamesWhatIsWrongWithATimeline) {
  const std::string row = "[\"forward\",0,0,0,0,-1,2.0,1.0]";
  const std::vector<Fault> faults{
      {"/format: found \"stagecraft.plan\", expected \"stagecraft.timeline\"",
       [](Json& j) { j["format"] = "stagecraft.plan"; }},
      {"/losses/0: found \"low\", expected a number", [](Json& j) { j["losses"][0] = "low"; }},
      {"/timeline/ranks: found 0, expected an integer from 1 to 16777216", [](Json& j) { j["timeline"]["ranks"] = 0; }},
      {"/timeline/stage_of_rank: 1 entries for 2 ranks", [](Json& j) { j["timeline"]["stage_of_rank"] = {0}; }},
      {"/timeline/steps/0: the step ends before it starts", [](Json& j) { j["timeline"]["steps"][0]["end_s"] = -1; }},
      {"/timeline/memory/0: rank 2 does not exist, the timeline has 0..1",
       [](Json& j) { j["timeline"]["memory"][0]["rank"] = 2; }},
      {"/timeline/columns: found [\"rank\"], expected "
       "[\"action\",\"rank\",\"step\",\"stage\",\"microbatch\",\"peer\",\"start_s\",\"end_s\"]",
       [](Json& j) { j["timeline"]["columns"] = {"rank"}; }},
      {"/timeline/spans/0: found [1], expected a row of 8 values", [](Json& j) { j["timeline"]["spans"][0] = {1}; }},
      {"/timeline/spans/0/0: unknown action \"sleep\", known are forward",
       [](Json& j) { j["timeline"]["spans"][0][0] = "sleep"; }},
      {"/timeline/spans/0: rank 2 does not exist, the timeline has 0..1",
       [](Json& j) { j["timeline"]["spans"][0][1] = 2; }},
      {"/timeline/spans/0/3: found -1, expected an integer from 0", [](Json& j) { j["timeline"]["spans"][0][3] = -1; }},
      {"/timeline/spans/0/6: found \"now\", expected a number", [](Json& j) { j["timeline"]["spans"][0][6] = "now"; }},
      {"/timeline/spans/0: the span ends before it starts",
       [&](Json& j) { j["timeline"]["spans"][0] = Json::parse(row); }},
  };
  for (const Fault& fault : faults) {
    Json json = Json::parse(measurement_json(full_measurement()));
    fault.make(json);
    try {
      (void)parse_measurement(json.dump(), "m.json");
      ADD_FAILURE() << "accepted: " << fault.message;
    } catch (const FormatError& e) { EXPECT_THAT(e.what(), ::testing::StartsWith("m.json: " + fault.message)); }
  }
}

}  // namespace
}  // namespace stagecraft::format
