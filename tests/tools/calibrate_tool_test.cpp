#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/results/accuracy_json.h"
#include "costmodel/format/timeline_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/support/chains.h"
#include "tests/support/run_command.h"

// stagecraft-calibrate, stagecraft-predict --calibration and stagecraft-validate as a user runs them.

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;

class CalibrateTool : public ::testing::Test {
 protected:
  /// One stage of 1 + 2 s; measured steps of 3.3 s.
  CalibrateTool() {
    const Graph graph = testing::chain_graph({1}, {2});
    const Topology topology = testing::flat_topology(1);
    const Plan plan = testing::one_layer_a_stage(graph, topology, {1}, "1f1b", 1);
    Measurement run;
    run.model = plan.model;
    run.schedule = plan.schedule;
    run.timeline.ranks = 1;
    run.timeline.stage_of_rank = {0};
    for (int i = 0; i < 3; ++i) run.timeline.steps.push_back({i, 3.3_s * i, 3.3_s * (i + 1)});
    folder_.write("graph.json", format::graph_json(graph));
    folder_.write("topology.json", format::topology_json(topology));
    folder_.write("plan.json", format::plan_json(plan));
    folder_.write("measured.json", format::measurement_json(run));
  }
  Outcome run(const std::string& command) const { return folder_.run("stagecraft-" + command); }

  testing::CommandFolder folder_;
};

TEST_F(CalibrateTool, LearnsThenPredictsAndValidates) {
  const Outcome learned = run("calibrate graph.json topology.json plan.json measured.json -o calibration.json");
  ASSERT_EQ(learned.status, 0) << learned.err;
  EXPECT_THAT(learned.err, HasSubstr("from 1 run of 1 plan"));
  EXPECT_THAT(learned.err, HasSubstr("there is only one plan"));
  const Calibration calibration = format::parse_calibration(folder_.read("calibration.json"), "calibration.json");
  EXPECT_GT(calibration.compute, 1.08);
  EXPECT_THAT(calibration.provenance.tool, HasSubstr("stagecraft-calibrate "));

  const Outcome predicted =
      run("predict graph.json topology.json plan.json --calibration calibration.json -o prediction.json");
  ASSERT_EQ(predicted.status, 0) << predicted.err;
  EXPECT_THAT(predicted.err, HasSubstr("calibrated: compute x 1.09"));
  EXPECT_THAT(predicted.err, HasSubstr("90 % interval of the step: "));
  const Prediction prediction = format::parse_prediction(folder_.read("prediction.json"), "prediction.json");
  EXPECT_GT(prediction.iteration, 3.2_s);
  EXPECT_THAT(prediction.calibration, HasSubstr("compute x 1.09"));

  const Outcome scored = run("validate prediction.json measured.json -o validation.json --svg scatter.svg");
  ASSERT_EQ(scored.status, 0) << scored.err;
  EXPECT_THAT(scored.out, HasSubstr("inside"));
  EXPECT_THAT(folder_.read("scatter.svg"), HasSubstr("<svg "));
  const Validation validation = format::parse_validation(folder_.read("validation.json"), "validation.json");
  EXPECT_EQ(validation.regimes.at(0).coverage.inside, 1);
  EXPECT_EQ(run("validate prediction.json measured.json --json").out, folder_.read("validation.json"));
  EXPECT_EQ(validation.noise, 0);
  const Outcome noisy = run("validate prediction.json measured.json --noise 0.03 --json");
  ASSERT_EQ(noisy.status, 0) << noisy.err;
  EXPECT_EQ(format::parse_validation(noisy.out, "noisy.json").noise, 0.03);
}

TEST_F(CalibrateTool, SaysWhichFileIsWrong) {
  const std::vector<std::tuple<std::string, int, std::string>> cases{
      {"calibrate graph.json topology.json measured.json", 1, "measured.json: no plan.json before it"},
      {"calibrate graph.json topology.json plan.json", 1, "plan.json: no measurement follows this plan"},
      {"calibrate graph.json topology.json plan.json graph.json", 1, "graph.json: /format: "},
      {"calibrate graph.json topology.json plan.json measured.json -o plan.json", 1, "plan.json"},
      {"predict graph.json topology.json plan.json --calibration plan.json", 1, "plan.json: /format: "},
      {"validate prediction.json measured.json --noise 3%", 2, "--noise: \"3%\" is not a number from 0 to 1"},
      {"validate measured.json", 2, "pairs of a prediction and a measurement"},
      {"validate measured.json measured.json", 1, "measured.json: /format: "},
  };
  for (const auto& [arguments, status, message] : cases) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.status, status) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message)) << arguments;
  }
}

}  // namespace
}  // namespace stagecraft
