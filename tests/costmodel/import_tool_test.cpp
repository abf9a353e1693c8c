#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "costmodel/format/files/files.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/costmodel/interleavings.h"
#include "tests/support/files/nccl_tests_text.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using ::testing::StartsWith;

/// Runs a shell command in an empty folder.
Outcome shell(const std::string& command) { return testing::CommandFolder().run(command); }

const std::string kProfile = source_folder() + "/tests/golden/pipedream/gnmt.txt";

TEST(ImportTool, AndExportToolGiveTheProfileBack) {
  const Outcome outcome = shell("stagecraft-import pipedream - < " + kProfile + " | stagecraft-export pipedream -");
  EXPECT_EQ(outcome.status, 0);
  EXPECT_EQ(outcome.out, format::read_text(kProfile));
}

TEST(ImportTool, RefusesBadInputWithStatusOne) {
  const Outcome malformed = shell("echo 'node1 -- Add' | stagecraft-import pipedream - 2>&1");
  EXPECT_EQ(malformed.status, 1);
  EXPECT_THAT(malformed.out, StartsWith("stagecraft-import: -: line 1: found 2 parts"));
  const Outcome unknown = shell("stagecraft-import keras x 2>&1");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_EQ(
      unknown.out,
      "stagecraft-import: FORMAT: unknown format \"keras\", known are dnn-partitioning, nccl-tests, nccl-topology, "
      "pipedream, piper [SC1005]\n"
      "see stagecraft import --help\n");
  const Outcome document = shell("echo '{}' | stagecraft-export pipedream - 2>&1");
  EXPECT_EQ(document.status, 1);
  EXPECT_EQ(document.out, "stagecraft-export: -: /: key \"format\" is missing [SC1203]\n");
}

TEST(ImportTool, MergesSeveralFilesOfOneFormat) {
  const testing::CommandFolder folder;
  folder.write("all_reduce.txt", testing::nccl_tests_text("all_reduce_perf", {"a", "a"}, {{1024, 20}}));
  folder.write("sendrecv.json", testing::nccl_tests_json("sendrecv_perf", "a", 2, {{1024, 10}}));
  const Outcome outcome = folder.run("stagecraft-import nccl-tests all_reduce.txt sendrecv.json -o t.json");
  EXPECT_EQ(outcome.err, "");
  const Topology topology = format::parse_topology(folder.read("t.json"), "t.json");
  ASSERT_EQ(topology.levels.size(), 1U);
  EXPECT_EQ(topology.levels[0].link.all_reduce.size(), 1U);
  EXPECT_EQ(topology.levels[0].link.send_receive.points.size(), 1U);
  EXPECT_THAT(topology.provenance.tool, StartsWith("stagecraft-import "));
  EXPECT_THAT(folder.run("stagecraft-import pipedream sendrecv.json all_reduce.txt").err,
              HasSubstr("found 2 files, expected one"));
}

TEST(ImportTool, SaysHowItReadUnits) {
  const testing::CommandFolder folder;
  const std::string input = source_folder() + "/tests/data/dnn-partitioning/bert24_inference.json";
  const testing::Outcome published = folder.run("stagecraft-import dnn-partitioning " + input + " -o g.json");
  EXPECT_EQ(published.status, 0);
  EXPECT_EQ(published.err, "note: transfer costs are read as published, in milliseconds\n");
  const Graph graph = format::parse_graph(folder.read("g.json"), "g.json");
  EXPECT_EQ(graph.layers.size(), 32U);
  EXPECT_THAT(folder.run("stagecraft-import dnn-partitioning " + input + " --units fixed").err,
              StartsWith("note: fixed: 27 of 27 transfer costs"));
  const testing::Outcome other = folder.run("stagecraft-import pipedream " + kProfile + " --units fixed");
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.err, HasSubstr("--units: only valid with dnn-partitioning and piper"));
  EXPECT_EQ(folder.run("stagecraft-import piper " + input + " --units metric").status, 2);
  EXPECT_THAT(folder.run("stagecraft-import piper " + input).err,
              HasSubstr(": /: key \"maxMemoryPerDevice\" is missing"));
}

TEST(ImportTool, PutsMeasuredLinksOverADump) {
  const std::string golden = source_folder() + "/tests/golden/nccl/";
  const testing::CommandFolder folder;
  const Outcome outcome = folder.run("stagecraft-import nccl-tests " + golden +
                                     "all_reduce_perf.txt -o m.json && stagecraft-import nccl-topology " + golden +
                                     "topology.xml --measured m.json -o t.json");
  EXPECT_EQ(outcome.err, "");
  const Topology topology = format::parse_topology(folder.read("t.json"), "t.json");
  ASSERT_EQ(topology.levels.size(), 2U);
  EXPECT_EQ(topology.levels[0].link.origin, LinkOrigin::Measured);
  EXPECT_EQ(topology.levels[0].link.all_reduce.count(4), 1U);
  EXPECT_EQ(topology.levels[1].link.origin, LinkOrigin::Declared);
  EXPECT_THAT(folder.run("stagecraft-import pipedream " + kProfile + " --measured m.json").err,
              HasSubstr("--measured: only valid with a topology, pipedream is a graph"));
}

TEST(ExportTool, WritesTheListsOfAPlanWithAndWithoutTransfers) {
  Plan plan = testing::row_plan("1f1b", {1, 1}, 2);
  const auto exported = [&](const std::string& options) {
    return shell("stagecraft-export actions - " + options + " 2>&1 << 'END'\n" + format::plan_json(plan) + "END\n");
  };
  EXPECT_EQ(exported("").out, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  EXPECT_EQ(exported("--transfers").out,
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  plan.schedule = "pipedream";
  EXPECT_EQ(exported("").status, 1);
  EXPECT_EQ(exported("").out,
            "stagecraft-export: -: schedule \"pipedream\" has updates inside its lists, which the CSV format cannot "
            "express [SC2001]\n");
  EXPECT_EQ(shell("stagecraft-export pipedream x --transfers 2>&1").out,
            "stagecraft-export: --transfers: only valid with actions [SC1005]\nsee stagecraft export --help\n");
}

TEST(ImportTool, AnswersWrongUsageWithStatusTwo) {
  const Outcome outcome = shell("stagecraft-export pipedream 2>&1");
  EXPECT_EQ(outcome.status, 2);
  EXPECT_EQ(outcome.out, "stagecraft-export: FILE is required [SC1003]\nsee stagecraft export --help\n");
}

TEST(ImportTool, HelpsWithAnExample) {
  for (const char* tool : {"import", "export"}) {
    const Outcome outcome = shell("stagecraft-" + std::string(tool) + " --help");
    EXPECT_EQ(outcome.status, 0);
    EXPECT_THAT(outcome.out, HasSubstr("Example:\n  stagecraft " + std::string(tool) + " pipedream graph."));
    EXPECT_THAT(shell("stagecraft-" + std::string(tool) + " --version").out, StartsWith("stagecraft-"));
  }
}

}  // namespace
}  // namespace stagecraft
