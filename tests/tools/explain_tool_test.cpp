#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/support/chains.h"
#include "tests/support/run_command.h"

// stagecraft-explain as a user runs it; its numbers are in the golden case explain.

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;

class ExplainTool : public ::testing::Test {
 protected:
  ExplainTool() {
    Graph graph = testing::chain_graph({1, 1, 1}, {2, 2, 2});
    const Topology topology = testing::flat_topology(2);
    folder_.write("graph.json", format::graph_json(graph));
    folder_.write("topology.json", format::topology_json(topology));
    folder_.write("plan.json", format::plan_json(make_plan(graph, topology, {{0, 0, 1}, {1, 1}}, {.microbatches = 4})));
    for (Layer& layer : graph.layers) layer.forward = layer.backward = Timing{};
    folder_.write("bare.json", format::graph_json(graph));
  }
  Outcome explain(const std::string& arguments) const { return folder_.run("stagecraft-explain " + arguments); }

  testing::CommandFolder folder_;
};

TEST_F(ExplainTool, PrintsWhereTheTimeGoes) {
  const Outcome o = explain("graph.json topology.json plan.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.out, HasSubstr("critical path of a step"));
  EXPECT_THAT(o.out, HasSubstr("bottleneck: stage 0"));
  EXPECT_THAT(explain("graph.json topology.json plan.json --no-moves").out, HasSubstr("no layer can move"));
}

TEST_F(ExplainTool, TakesDevicesInsteadOfATopology) {
  const Outcome o = explain("graph.json plan.json --devices 2");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, explain("graph.json topology.json plan.json").out);
}

TEST_F(ExplainTool, AppliesACalibration) {
  folder_.write("calibration.json", R"({"format": "stagecraft.calibration", "version": 1, "compute_factor": 2,
"host_per_action_s": 0.5, "links": [], "memory_factor": 1, "interval": {"log_half_width": 0.1, "declared": true},
"runs": 1, "plans": 1, "median_error_before": 0.1, "median_error_after": 0.1})");
  const Outcome o = explain("graph.json topology.json plan.json --json --calibration calibration.json");
  ASSERT_EQ(o.status, 0) << o.err;
  const auto json = nlohmann::json::parse(o.out);
  // Rank 0: twice 4 * 6 s of layers; 4 forwards, 4 backwards and an update at 0.5 s of host time.
  EXPECT_DOUBLE_EQ(json["positions"][0]["parts"]["compute_s"], 48);
  EXPECT_DOUBLE_EQ(json["positions"][0]["parts"]["host_s"], 4.5);
}

TEST_F(ExplainTool, EndsWithOneOnBadInput) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"no.json topology.json plan.json", "stagecraft-explain: no.json: "},
           {"plan.json topology.json plan.json", "plan.json: /format: found \"stagecraft.plan\""},
           {"bare.json topology.json plan.json", "bare.json: "},
           {"graph.json topology.json plan.json --calibration graph.json", "graph.json: /format: "}}) {
    const Outcome o = explain(arguments);
    EXPECT_EQ(o.status, 1) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message));
  }
}

TEST_F(ExplainTool, EndsWithTwoOnWrongUsage) {
  EXPECT_EQ(explain("graph.json topology.json").status, 2);
  EXPECT_THAT(explain("graph.json topology.json").err, HasSubstr("PLAN is required"));
}

}  // namespace
}  // namespace stagecraft
