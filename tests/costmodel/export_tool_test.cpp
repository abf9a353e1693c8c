#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/interchange/foreign.h"
#include "costmodel/interchange/plan_formats.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/known_names.h"
#include "tests/support/run_command.h"

// stagecraft-export for plans, as a user runs it. import_tool_test.cpp covers graphs.

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;

class ExportPlan : public ::testing::Test {
 protected:
  void SetUp() override {
    Plan plan = testing::row_plan("1f1b", {1, 1}, 2);
    plan.stages[0].layers = {"wte", "h.0"};
    plan.stages[1].layers = {"h.1", "norm"};
    plan.boundaries[0].tensors[0].layer = "h.0";
    folder_.write("plan.json", format::plan_json(plan));
    Graph graph;
    graph.name = "gpt";
    for (const char* id : {"wte", "h.0", "h.1", "norm"}) {
      Layer& layer = graph.layers.emplace_back();
      layer.id = layer.name = id;
      layer.kind = "Layer";
      layer.outputs = {{Bytes(8), {}, "", true}};
    }
    graph.edges = {{0, 1, {}}, {1, 2, {}}, {2, 3, {}}};
    folder_.write("graph.json", format::graph_json(graph));
  }
  Outcome run(const std::string& arguments) const { return folder_.run("stagecraft-export " + arguments); }
  testing::CommandFolder folder_;
};

TEST_F(ExportPlan, PutsAllTextsOfAFormatInAFolder) {
  EXPECT_EQ(run("pipedream-conf plan.json --graph graph.json -o new/conf").status, 0);
  EXPECT_EQ(folder_.run("ls new/conf").out, "dp_conf.json\ngpus=2.txt\nhybrid_conf.json\nmp_conf.json\n");
  EXPECT_THAT(folder_.read("new/conf/gpus=2.txt"), HasSubstr("parameter_size=0.000 -- stage_id=1\n"));
  EXPECT_EQ(run("torch-pipelining plan.json -o torch").err, "");
  EXPECT_EQ(folder_.run("ls torch").out, "pipeline.py\nschedule.csv\n");
  EXPECT_EQ(run("deepspeed plan.json -o ds").err, "");
  EXPECT_EQ(folder_.run("ls ds").out, "parts.json\nplanned_pipeline.py\n");
}

TEST_F(ExportPlan, PutsRanksOnHosts) {
  folder_.write("hosts.txt", "red\nblue\n");
  EXPECT_EQ(run("rankfile plan.json --hosts hosts.txt --cores 4").out, "rank 0=red slot=0-3\nrank 1=blue slot=0-3\n");
  for (int i = 0; i < 2; ++i) {  // the second replaces the first
    EXPECT_EQ(run("hosts plan.json --hosts hosts.txt -o list.txt").err, "");
    EXPECT_EQ(run("rankfile plan.json --hosts hosts.txt -o ranks.txt").err, "");
  }
  EXPECT_EQ(folder_.read("list.txt"), "red slots=1\nblue slots=1\n");
  EXPECT_EQ(folder_.read("ranks.txt"), "rank 0=red slot=0\nrank 1=blue slot=0\n");
}

TEST_F(ExportPlan, NamesWhatIsWrongWithHosts) {
  folder_.write("hosts.txt", "red\n");
  const auto refuses = [&](const std::string& arguments, int status, const std::string& message) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.status, status) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message)) << arguments;
  };
  refuses("rankfile plan.json", 2, "--hosts: is required for rankfile");
  refuses("hosts plan.json", 2, "--hosts: is required for hosts");
  refuses("actions plan.json --hosts hosts.txt", 2, "--hosts: only valid with rankfile and hosts");
  refuses("hosts plan.json --hosts hosts.txt --cores 2", 2, "--cores: only valid with rankfile");
  refuses("rankfile plan.json --hosts hosts.txt --cores 0", 2, "--cores");
  refuses("rankfile plan.json --hosts hosts.txt", 1, "plan.json: the plan uses device 1, the 1 host has 1 slot");
  refuses("rankfile plan.json --hosts no.txt", 1, "no.txt: ");
  refuses("hosts plan.json --hosts hosts.txt -o hosts.txt", 1, "hosts.txt: is also an input");
  refuses("rankfile plan.json --hosts hosts.txt -o graph.json", 1, "graph.json: holds a stagecraft.graph");
}

TEST_F(ExportPlan, WritesTheOneTextThatIsAskedFor) {
  const Outcome hybrid = run("pipedream-conf plan.json --kind hybrid --depths");
  EXPECT_THAT(hybrid.out, HasSubstr("    \"stage_to_depth_map\": {\"0\": 1, \"1\": 0}\n"));
  EXPECT_EQ(hybrid.err,
            "stagecraft-export: note: PipeDream runs 1f1b without a flush, the plan's schedule \"1f1b\" is lost\n");
  EXPECT_EQ(run("torch-pipelining plan.json --kind csv").out, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(run("deepspeed plan.json --kind json -o parts.json").status, 0);
  EXPECT_THAT(folder_.read("parts.json"), HasSubstr("[0, 2, 4]"));
  const Outcome layout = run("megatron plan.json");
  EXPECT_EQ(layout.out, "Et|tL\n");
  EXPECT_EQ(layout.err, "stagecraft-export: note: use with --pipeline-model-parallel-size 2 --num-layers 2\n");
}

TEST_F(ExportPlan, NamesThePlanThatAFormatCannotExpress) {
  folder_.write("row.json", format::plan_json(testing::row_plan("1f1b", {1, 2}, 2)));
  const Outcome o = run("torch-pipelining row.json -o torch");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, ::testing::StartsWith("stagecraft-export: row.json: stage 1 has 2 replicas"));
  EXPECT_THAT(run("megatron row.json").err, HasSubstr("row.json: stage 1 has 2 replicas"));
  const Outcome file = run("pipedream-conf plan.json -o plan.json");
  EXPECT_EQ(file.status, 1);
  EXPECT_THAT(file.err, HasSubstr("plan.json"));
}

TEST_F(ExportPlan, EndsWithTwoOnWrongUsage) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"torch-pipelining plan.json",
            "--kind: format torch-pipelining has several files: give one of script, csv, or -o FOLDER for all of them"},
           {"pipedream-conf plan.json --kind magic", "--kind: found \"magic\", expected dp, mp, hybrid, graph"},
           {"megatron plan.json --kind dp", "--kind: format megatron has a single file"},
           {"pipedream-conf plan.json --kind graph", "--graph: is required for --kind graph"},
           {"megatron plan.json --graph graph.json", "--graph: only valid with pipedream-conf"},
           {"megatron plan.json --depths", "--depths: only valid with pipedream-conf"}}) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message)) << arguments;
  }
}

TEST_F(ExportPlan, ListsTheFormats) {
  const Outcome o = run("keras plan.json");
  EXPECT_EQ(o.status, 2);
  std::vector<std::string> known{"hosts", "rankfile"};
  for (const interchange::PlanFormat& format : interchange::plan_formats()) known.push_back(format.name);
  for (const interchange::ForeignFormat& format : interchange::foreign_formats()) {
    if (format.write) known.push_back(format.name);
  }
  std::ranges::sort(known);
  EXPECT_EQ(o.err, "stagecraft-export: FORMAT: unknown format \"keras\", known are " + known_names(known) +
                       " [SC1005]\nsee stagecraft export --help\n");
}

// A class shaped like DeepSpeed's: the constructor passes partition_method to _partition_layers.
TEST_F(ExportPlan, WritesAPipelineModuleThatSetsItsBounds) {
  if (folder_.run("python3 --version").status != 0) GTEST_SKIP() << "no python3, which is to run the exported module";
  EXPECT_EQ(run("deepspeed plan.json --kind python -o planned_pipeline.py").err, "");
  folder_.write("stand_in.py",
                "import sys, types\n"
                "class Topology:\n"
                "    def __init__(self, stages): self.stages = stages\n"
                "    def get_dim(self, axis): assert axis == 'pipe'; return self.stages\n"
                "    def get_coord(self, rank): return types.SimpleNamespace(pipe=rank)\n"
                "class PipelineModule:\n"
                "    def __init__(self, layers, num_stages, rank, partition_method='parameters'):\n"
                "        self._layer_specs, self._topo, self.global_rank = list(layers), Topology(num_stages), rank\n"
                "        self._partition_layers(method=partition_method)\n"
                "    def _set_bounds(self, start=None, stop=None): self.bounds = (start, stop)\n"
                "module = types.ModuleType('deepspeed.pipe')\n"
                "module.PipelineModule = PipelineModule\n"
                "sys.modules['deepspeed'] = types.ModuleType('deepspeed')\n"
                "sys.modules['deepspeed.pipe'] = module\n"
                "from planned_pipeline import PlannedPipelineModule\n"
                "print([PlannedPipelineModule('abcd', 2, rank).bounds for rank in range(2)])\n"
                "print(PlannedPipelineModule('abcd', 2, 0).parts)\n"
                "for layers, stages in ('abc', 2), ('abcd', 4):\n"
                "    try: PlannedPipelineModule(layers, stages, 0)\n"
                "    except ValueError as error: print(error)\n");
  const Outcome o = folder_.run("python3 stand_in.py");
  EXPECT_EQ(o.err, "");
  EXPECT_EQ(o.out,
            "[(0, 2), (2, 4)]\n[0, 2, 4]\n"
            "found 3 layers, the plan has 4: ['wte', 'h.0', 'h.1', 'norm']\n"
            "found num_stages=4, the plan has 2\n");
}

}  // namespace
}  // namespace stagecraft
