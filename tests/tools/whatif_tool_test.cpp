#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/support/chains.h"
#include "tests/support/run_command.h"

// stagecraft-whatif and stagecraft-diff as a user runs them.

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;

/// Two plans of three layers of F 1 s and B 2 s without transfers, four microbatches.
class WhatIfTool : public ::testing::Test {
 protected:
  WhatIfTool() {
    const Graph graph = testing::chain_graph({1, 1, 1}, {2, 2, 2});
    const Topology topology = testing::flat_topology(2);
    folder_.write("graph.json", format::graph_json(graph));
    folder_.write("topology.json", format::topology_json(topology));
    folder_.write("plan.json", format::plan_json(make_plan(graph, topology, {{0, 0, 1}, {1, 1}}, {.microbatches = 4})));
    folder_.write("other.json",
                  format::plan_json(make_plan(graph, topology, {{0, 1, 1}, {1, 1}}, {.microbatches = 4})));
    Graph two = testing::chain_graph({1, 1}, {2, 2});
    folder_.write("two.json", format::plan_json(make_plan(two, topology, {{0, 1}, {1, 1}}, {.microbatches = 4})));
  }
  Outcome run(const std::string& command) const { return folder_.run("stagecraft-" + command); }

  testing::CommandFolder folder_;
};

// Twice as fast layers halve a step without transfers: every time is a layer's.
TEST_F(WhatIfTool, PredictsBeforeAndAfter) {
  const Outcome text = run("whatif graph.json topology.json plan.json --set compute=0.5x");
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("with compute=0.5x"));
  EXPECT_THAT(text.out, HasSubstr("-50.0 %"));
  const Outcome o = run("whatif graph.json topology.json plan.json --set compute=0.5x --set schedule=gpipe --json");
  ASSERT_EQ(o.status, 0) << o.err;
  const auto json = nlohmann::json::parse(o.out);
  EXPECT_EQ(json["format"], "stagecraft.whatif");
  EXPECT_EQ(json["changes"], (std::vector<std::string>{"compute=0.5x", "schedule=gpipe"}));
  // gpipe: sum F + 3 max F + sum B + 3 max B = 3 + 6 + 6 + 12 = 27 s, at half the times.
  EXPECT_DOUBLE_EQ(json["after"]["iteration_s"], 13.5);
}

// The same links as topology.json, which has no device either.
TEST_F(WhatIfTool, TakesDevicesInsteadOfATopology) {
  const std::string changed = " --set compute=0.5x --json";
  const Outcome file = run("whatif graph.json topology.json plan.json" + changed);
  const Outcome o = run("whatif graph.json plan.json --devices 2" + changed);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, file.out);
  EXPECT_EQ(run("whatif graph.json plan.json" + changed).status, 2);
}

TEST_F(WhatIfTool, ListsTheSettings) {
  EXPECT_THAT(run("whatif --help").out, HasSubstr("link.LEVEL.bandwidth"));
  const Outcome o = run("whatif graph.json topology.json plan.json --set speed=2x");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("unknown setting \"speed\", known are compute, stage.S.compute"));
  EXPECT_EQ(run("whatif graph.json topology.json plan.json").status, 2);
}

TEST_F(WhatIfTool, ComparesPlans) {
  const Outcome text = run("diff graph.json topology.json plan.json other.json");
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("layer l1: stage 0 and stage 1"));
  EXPECT_THAT(text.out, HasSubstr("plan.json is faster with a probability of "));
  const Outcome o = run("diff graph.json topology.json plan.json other.json --json");
  ASSERT_EQ(o.status, 0) << o.err;
  const auto json = nlohmann::json::parse(o.out);
  EXPECT_EQ(json["format"], "stagecraft.diff");
  EXPECT_EQ(json["moved"], nlohmann::json::parse(R"([{"layer": "l1", "first": 0, "second": 1}])"));
}

TEST_F(WhatIfTool, NamesThePlanThatDoesNotFit) {
  const Outcome o = run("diff graph.json topology.json plan.json two.json");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("stagecraft-diff: two.json: "));
  EXPECT_EQ(run("diff graph.json topology.json plan.json").status, 2);
}

}  // namespace
}  // namespace stagecraft
