#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/interchange/plan_formats.h"
#include "tests/support/known_names.h"
#include "tests/support/pipedream_cases.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

// stagecraft-plan with given stages: --split-at and --from.

namespace stagecraft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Outcome;

/// A chain like a small language model's: wte, h.0.attn, h.0.mlp, .., h.3.mlp, norm, head.
Graph chain() {
  Graph graph;
  graph.name = "chain";
  const auto append = [&](const std::string& id) {
    const int at = static_cast<int>(graph.layers.size());
    if (at > 0) graph.edges.push_back({at - 1, at, 0});
    Layer& layer = graph.layers.emplace_back();
    layer.id = layer.name = id;
    layer.kind = "Layer";
    layer.forward.median = Seconds(0.001);
    layer.backward.median = Seconds(0.002);
    layer.outputs = {{Bytes(1024), {}, "", true}};
  };
  append("wte");
  for (int i = 0; i < 4; ++i) {
    append("h." + std::to_string(i) + ".attn");
    append("h." + std::to_string(i) + ".mlp");
  }
  append("norm");
  append("head");
  return graph;
}

class GivenPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.write("graph.json", format::graph_json(chain()));
    folder_.write("topology.json", format::topology_json(levels_topology({4}, {1e9})));
  }
  Outcome plan(const std::string& arguments) const {
    return folder_.run("stagecraft-plan graph.json topology.json " + arguments);
  }
  Plan read(const std::string& name) const { return format::parse_plan(folder_.read(name), name); }
  testing::CommandFolder folder_;
};

TEST_F(GivenPlan, BeginsStagesWhereSplitAtSays) {
  const Outcome o = plan("--split-at h.1,h.2.mlp --microbatches 6 -o p.json");
  EXPECT_EQ(o.status, 0) << o.err;
  // The slowest stage has the layers h.2.mlp .. head: 5 layers of 3 ms.
  EXPECT_THAT(o.err, HasSubstr("slowest stage 15.0 ms per microbatch;"));
  const Plan p = read("p.json");
  ASSERT_EQ(p.stages.size(), 3U);
  EXPECT_THAT(p.stages[0].layers, ElementsAre("wte", "h.0.attn", "h.0.mlp"));
  EXPECT_THAT(p.stages[1].layers, ElementsAre("h.1.attn", "h.1.mlp", "h.2.attn"));
  EXPECT_EQ(p.strategy, "split-at");
  EXPECT_EQ(p.microbatches, 6);
  EXPECT_TRUE(p.iteration.has_value());
}

TEST_F(GivenPlan, GivesTheStagesTheReplicasAskedFor) {
  EXPECT_EQ(plan("--split-at h.2 --replicas 3,1 -o p.json").status, 0);
  EXPECT_THAT(read("p.json").stages[0].devices, ElementsAre(0, 1, 2));
  EXPECT_EQ(plan("--split-at h.2 --replicas 2 -o all.json").status, 0);
  EXPECT_THAT(read("all.json").stages[1].devices, ElementsAre(2, 3));
  EXPECT_THAT(plan("--split-at h.2 --replicas 1,1,1").err,
              HasSubstr("--split-at: replicas: found 3 numbers for 2 stages, expected one, or one per stage"));
  EXPECT_THAT(plan("--split-at h.2 --replicas 4,1").err, HasSubstr("the stages need 5 devices"));
}

TEST_F(GivenPlan, ListsTheLayersForAnUnknownName) {
  const Outcome o = plan("--split-at h.9");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.err,
            "stagecraft-plan: --split-at: unknown layer \"h.9\", known are wte, h.0.attn, h.0.mlp, h.1.attn, h.1.mlp, "
            "h.2.attn, h.2.mlp, h.3.attn, h.3.mlp, norm, head [SC2002]\n");
}

TEST_F(GivenPlan, RoundTripsThroughEveryFormat) {
  ASSERT_EQ(plan("--split-at h.1,h.3 -o p.json").status, 0);
  const Plan wanted = read("p.json");
  for (const auto& [format, text] :
       std::vector<std::pair<std::string, std::string>>{{"megatron", ""}, {"deepspeed", "--kind json"}}) {
    ASSERT_EQ(folder_.run("stagecraft-export " + format + " p.json " + text + " -o " + format).status, 0) << format;
    const Outcome o = plan("--from " + format + " " + format + " -o again.json");
    EXPECT_EQ(o.status, 0) << format << o.err;
    EXPECT_EQ(read("again.json").stages, wanted.stages) << format;
    EXPECT_EQ(read("again.json").strategy, format);
  }
  ASSERT_EQ(folder_.run("stagecraft-export torch-pipelining p.json --kind csv -o s.csv").status, 0);
  const Outcome lists = plan("--from torch-pipelining s.csv --split-at h.1,h.3 -o again.json");
  EXPECT_EQ(lists.status, 0) << lists.err;
  EXPECT_EQ(read("again.json").stages, wanted.stages);
  EXPECT_EQ(read("again.json").schedule, "listed");
  EXPECT_EQ(read("again.json").microbatches, 4);
}

TEST_F(GivenPlan, RoundTripsThroughPipeDreamsConfigurationWithReplicasDevicesAndWarmUps) {
  ASSERT_EQ(plan("--split-at h.2 --replicas 3,1 -o p.json").status, 0);
  Plan wanted = read("p.json");
  wanted.stages[0].devices = {3, 0, 2};
  wanted.stages[1].devices = {1};
  wanted.warmups = {2, 0};
  folder_.write("p.json", format::plan_json(wanted));
  ASSERT_EQ(folder_.run("stagecraft-export pipedream-conf p.json --graph graph.json --depths -o conf").status, 0);
  ASSERT_EQ(folder_.run("stagecraft-import pipedream conf/gpus=4.txt -o graph.json").status, 0);
  const Outcome o = plan("--from pipedream-conf conf/hybrid_conf.json -o again.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(read("again.json").stages, wanted.stages);
  EXPECT_EQ(read("again.json").warmups, wanted.warmups);
  EXPECT_THAT(plan("--from pipedream-conf conf/hybrid_conf.json --replicas 1,1").err,
              HasSubstr("conf/hybrid_conf.json: --replicas: the plan that was read already has replicas"));
}

// vgg16 on four devices: PipeDream's configuration has stage 0 on ranks 0, 1, 2 and stage 1 on rank 3, with warm-ups 1
// and 0.
TEST_F(GivenPlan, ExportsThePublishedConfigurationOfVgg16) {
  folder_.write("graph.json",
                format::graph_json(read_pipedream_profile(source_folder() + "/tests/golden/pipedream", "vgg16")));
  ASSERT_EQ(plan("--strategy pipedream --activation-compression-ratio 1 -o p.json").status, 0);
  EXPECT_EQ(folder_.run("stagecraft-export pipedream-conf p.json --kind hybrid --depths").out,
            "{\n    \"module_to_stage_map\": [0, 1, 1],\n"
            "    \"stage_to_rank_map\": {\"0\": [0, 1, 2], \"1\": [3]},\n"
            "    \"stage_to_depth_map\": {\"0\": 1, \"1\": 0}\n}\n");
}

TEST_F(GivenPlan, NamesTheFileOfAnotherProgram) {
  folder_.write("layout.txt", "Et*3|L\n");
  EXPECT_EQ(plan("--from megatron layout.txt").err,
            "stagecraft-plan: layout.txt: found 1 E, 3 t, 0 m, 1 L; graph \"chain\" has 1 E, 4 t, 0 m, 1 L [SC2001]\n");
  folder_.write("conf.json", "{\"module_to_stage_map\": [0, 0], \"stage_to_rank_map\": {\"0\": [0]}}");
  EXPECT_THAT(plan("--from pipedream-conf conf.json").err,
              HasSubstr("conf.json: layer \"wte\" of the graph has no stage; use the graph with stage ids"));
  EXPECT_EQ(plan("--from keras x").err, "stagecraft-plan: --from: unknown format \"keras\", known are " +
                                            known_names(interchange::plan_formats()) +
                                            " [SC1005]\nsee stagecraft plan --help\n");
  EXPECT_THAT(plan("--from megatron nowhere.txt").err, HasSubstr("nowhere.txt: "));
  folder_.write("parts.json", "[0, 4, 11]");
  EXPECT_THAT(plan("--from deepspeed parts.json --split-at h.1").err,
              HasSubstr("parts.json: gives the stages; remove --split-at"));
  folder_.write("s.csv", "0F0,0B0\n1F0,1B0\n");
  EXPECT_THAT(plan("--from actions s.csv --split-at h.1,h.2").err,
              HasSubstr("s.csv: found 2 stages, --split-at gives 3"));
}

TEST_F(GivenPlan, RefusesADeviceThatTheTopologyLacks) {
  ASSERT_EQ(plan("--split-at h.2 -o p.json").status, 0);
  ASSERT_EQ(folder_.run("stagecraft-export pipedream-conf p.json --graph graph.json -o conf").status, 0);
  ASSERT_EQ(folder_.run("stagecraft-import pipedream conf/gpus=2.txt -o graph.json").status, 0);
  EXPECT_THAT(folder_.run("stagecraft-plan graph.json -n 1 --from pipedream-conf conf/hybrid_conf.json").err,
              HasSubstr("the stages need 2 devices"));
}

TEST_F(GivenPlan, EndsWithTwoWhereAnotherOptionSaysTheStages) {
  for (const char* arguments :
       {"--split-at h.1 --strategy uniform", "--split-at h.1 --stages 2", "--from megatron x --straight-pipeline"}) {
    const Outcome o = plan(arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_THAT(o.err,
                HasSubstr("gives the stages; remove --strategy, --stages and PipeDream's and optimal's options"));
  }
  EXPECT_EQ(plan("--from megatron").status, 2);
}

}  // namespace
}  // namespace stagecraft
