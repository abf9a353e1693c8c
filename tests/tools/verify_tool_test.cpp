#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/support/chains.h"
#include "tests/support/run_command.h"

// stagecraft-verify as a user runs it.

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using testing::Outcome;

class VerifyTool : public ::testing::Test {
 protected:
  /// Two equal stages, 2 microbatches.
  VerifyTool() {
    const Graph graph = testing::chain_graph({1, 1}, {2, 2}, 1000_B, 100_B);
    Topology topology = testing::flat_topology(2, 1000);
    plan_ = testing::one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 2);
    folder_.write("graph.json", format::graph_json(graph));
    folder_.write("topology.json", format::topology_json(topology));
    topology.device.memory = 3000_B;
    folder_.write("small.json", format::topology_json(topology));
    folder_.write("plan.json", format::plan_json(plan_));
  }
  Outcome verify(const std::string& arguments) const { return folder_.run("stagecraft-verify " + arguments); }

  Plan plan_;
  testing::CommandFolder folder_;
};

TEST_F(VerifyTool, SaysWhatItProved) {
  const Outcome o = verify("plan.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.err, "");
  EXPECT_THAT(o.out, MatchesRegex("plan.json: proved of 2 ranks, 18 actions, 4 messages: each microbatch runs once on "
                                  "every stage, .* at most 2 in flight on a rank; hash [0-9a-f]{16}\n"));
}

TEST_F(VerifyTool, ComparesMemoryWhereGraphAndTopologyAreGiven) {
  // Stage 0 in its first backward: 100 bytes of parameters, 2 x 1000 saved, two received gradients of 1000, 1000 of
  // workspace. The bound adds 2 %, 102, twice the 1000 of its boundary, and 39 % of the 3000 that were not measured.
  EXPECT_THAT(verify("plan.json --graph graph.json --topology topology.json").out, HasSubstr(", at most 4.98 KiB;"));
  const Outcome o = verify("plan.json --graph graph.json --topology small.json");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.out, "");
  EXPECT_EQ(o.err, "stagecraft-verify: plan.json: rank 0 needs up to 8.18 KiB, its device has 2.93 KiB [SC2102]\n");
}

TEST_F(VerifyTool, TakesCountsOfDevicesInsteadOfATopology) {
  EXPECT_THAT(verify("plan.json --graph graph.json --devices 2").out, HasSubstr(", at most 4.98 KiB;"));
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"--graph graph.json", "TOPOLOGY: give either a topology file or --devices"},
           {"--graph graph.json --topology topology.json -n 2", "TOPOLOGY: give either a topology file or --devices"},
           {"--topology topology.json", "--topology requires --graph"},
           {"--devices 2", "--devices requires --graph"}}) {
    const Outcome o = verify("plan.json " + arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message));
  }
}

TEST_F(VerifyTool, PrintsTheCycleOfADeadlock) {
  const Outcome o = verify("plan.json --queues pair --prefetch 1");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("plan.json: deadlock: 0SEND_F1 of rank 0 waits for 1RECV_F1 of rank 1, which is queued "
                               "behind 1SEND_B0; 1SEND_B0 of rank 1 waits for"));
}

TEST_F(VerifyTool, ProvesStepsOfAnAsynchronousSchedule) {
  plan_.schedule = "pipedream";
  folder_.write("pipedream.json", format::plan_json(plan_));
  EXPECT_THAT(
      verify("pipedream.json --steps 5").out,
      HasSubstr("5 steps: each microbatch runs once on every stage, each edge keeps one order, no deadlock with "
                "one queue for each edge, at most 2 in flight and 2 weight versions on a rank"));
  EXPECT_EQ(verify("pipedream.json").status, 0);
  EXPECT_EQ(verify("plan.json --steps 5").err,
            "stagecraft-verify: plan.json: schedule \"1f1b\" replays the lists of 1 step, found 5 [SC2001]\n");
}

TEST_F(VerifyTool, TakesListsWithoutAPlan) {
  folder_.write("sound.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
  folder_.write("broken.csv", "0F0,0F1,0B0,0B1\n1F0,1B0,1F1\n");
  folder_.write("text.csv", "0F0,ten\n");
  folder_.write("vee.csv", "0F0,3F0\n1F0,2F0\n");
  folder_.write("blocks.csv", "0F0,1F0\n2F0,3F0\n");
  EXPECT_THAT(verify("sound.csv").out, HasSubstr("sound.csv: proved of 2 ranks, 18 actions, 4 messages"));
  EXPECT_EQ(verify("- < sound.csv").status, 0);
  EXPECT_EQ(verify("broken.csv").err, "stagecraft-verify: broken.csv: rank 1 lacks 1B1 [SC2103]\n");
  EXPECT_EQ(verify("broken.csv").status, 1);
  EXPECT_THAT(verify("text.csv").err,
              HasSubstr("stagecraft-verify: text.csv: line 1: cell 2: found \"ten\", expected"));
  EXPECT_THAT(verify("vee.csv").out, HasSubstr("vee.csv: proved of 2 ranks"));
  EXPECT_THAT(verify("blocks.csv").err, HasSubstr("stagecraft-verify: blocks.csv: stage 1 is not at position 1 of 2"));
}

TEST_F(VerifyTool, EndsWithOneOnBadInputAndTwoOnWrongUsage) {
  EXPECT_EQ(verify("nowhere.json").status, 1);
  EXPECT_THAT(verify("plan.json --queues node").err,
              HasSubstr("unknown kind of queue \"node\", known are edge, boundary, pair, rank"));
  EXPECT_EQ(verify("").status, 2);
  EXPECT_EQ(verify("plan.json --graph graph.json").status, 2);
  EXPECT_EQ(verify("plan.json --queues node").status, 2);
  for (const std::string option : {"--steps", "--prefetch"}) {
    const Outcome o = verify("plan.json " + option + " 0");
    EXPECT_EQ(o.status, 2);
    EXPECT_EQ(o.err, "stagecraft-verify: " + option +
                         ": 0 is not an integer of 1 or more [SC1005]\nsee stagecraft verify --help\n");
  }
  EXPECT_THAT(verify("--help").out, HasSubstr("Example:\n  stagecraft verify plan.json"));
}

}  // namespace
}  // namespace stagecraft
