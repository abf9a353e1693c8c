#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/format/json.h"
#include "costmodel/format/outputs.h"
#include "tests/support/chains.h"
#include "tests/support/run_command.h"

// stagecraft plan --top, --front and --objective as a user runs them; tests/golden/cases/choices has their numbers.

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;

class ChoicesTool : public ::testing::Test {
 protected:
  ChoicesTool() {
    Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}, 100_B);
    folder_.write("bare.json", format::graph_json(graph));
    graph.microbatch_samples = 2;
    folder_.write("graph.json", format::graph_json(graph));
    folder_.write("topology.json", format::topology_json(testing::flat_topology(4)));
  }
  Outcome plan(const std::string& arguments) const { return folder_.run("stagecraft-plan " + arguments); }
  void refuses(const std::string& arguments, int status, const std::string& message) const {
    const Outcome o = plan(arguments);
    EXPECT_EQ(o.status, status) << arguments;
    EXPECT_EQ(o.out, "") << arguments;
    EXPECT_THAT(o.err, HasSubstr(message)) << arguments;
  }
  testing::CommandFolder folder_;
};

TEST_F(ChoicesTool, WritesTheBestPlanAndTheListedOnes) {
  for (int i = 0; i < 2; ++i) {  // the second replaces the first
    const Outcome o = plan("graph.json topology.json --top 3 --top-to plans -o best.json");
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_EQ(folder_.run("ls plans").out, "plan-1.json\nplan-2.json\nplan-3.json\n");
  }
  const Plan best = format::parse_plan(folder_.read("best.json"), "best.json");
  const Plan first = format::parse_plan(folder_.read("plans/plan-1.json"), "plan-1.json");
  const Plan third = format::parse_plan(folder_.read("plans/plan-3.json"), "plan-3.json");
  EXPECT_EQ(best.stages, first.stages);
  EXPECT_LE(first.iteration->value, third.iteration->value);
  EXPECT_NE(first.stages, third.stages);
  for (const char* name : {"plan-1", "plan-2", "plan-3"})
    EXPECT_EQ(folder_.run("stagecraft-verify plans/" + std::string(name) + ".json").status, 0);
}

TEST_F(ChoicesTool, PrintsOneDocumentOnStandardOutput) {
  const Outcome document = plan("graph.json topology.json --top 2 --json");
  EXPECT_EQ(document.status, 0) << document.err;
  EXPECT_EQ(format::text_kind(document.out), "stagecraft.plans");
  EXPECT_THAT(document.out, Not(HasSubstr("stagecraft.plan\"")));
  const Outcome both = plan("graph.json topology.json --top 2 --json -o p.json --top-to t");
  EXPECT_THAT(both.out, AllOf(HasSubstr("\"file\": \"t/plan-1.json\""), HasSubstr("\"file\": \"t/plan-2.json\"")));
  EXPECT_EQ(format::text_kind(folder_.read("p.json")), "stagecraft.plan");
}

TEST_F(ChoicesTool, TakesFewerDevicesWhereTheyAreBetter) {
  // One device has no bubble: 4 * 12 s = 48 s; any other plan with as much work takes as long in all.
  const Outcome o = plan("graph.json topology.json --schedule gpipe --objective cost --stages 2 --strategy optimal");
  EXPECT_EQ(o.status, 0) << o.err;
  int devices = 0;
  for (const Stage& stage : format::parse_plan(o.out, "out").stages) devices += static_cast<int>(stage.devices.size());
  // Two stages of one device: (4 + 1) * 6 = 30 s on two; of two replicas each (2 + 1) * 6 = 18 s on four.
  EXPECT_EQ(devices, 2);
}

TEST_F(ChoicesTool, DrawsTheFront) {
  const Outcome o = plan("graph.json topology.json --front --picture front.svg -o p.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(format::text_kind(folder_.read("front.svg")), "SVG picture");
  refuses("graph.json topology.json --front --picture p.json", 1, "p.json: holds a stagecraft.plan, so no SVG picture");
  refuses("graph.json topology.json --front --picture x -o ./x", 1, "x: is named for two outputs");
}

TEST_F(ChoicesTool, ExplainsTheBestPlanOrWhatWouldFit) {
  // A layer on each of four devices under gpipe: 4 * 3 of (4 + 3) * 3 s; all four layers on each: 12 s without bubble.
  const Outcome o = plan("graph.json topology.json --schedule gpipe --stages 4 --explain -o p.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, AllOf(HasSubstr("where the step goes"), HasSubstr("21.0 s  12.0 s"),
                           HasSubstr("without --stages 4 the best plan's step is 12.0 s (-42.9 %): the constraint "
                                     "binds\n")));
  const Outcome none = plan("graph.json topology.json --memory-limit 150 --schedule gpipe --explain");
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, AllOf(HasSubstr("the smallest changes with which a plan fits in memory, each tried:\n  "),
                              HasSubstr(" of memory per device instead of 150 B\n"),
                              HasSubstr("stagecraft-plan: graph.json: no plan fits in memory")));
}

TEST_F(ChoicesTool, NamesWrongUsage) {
  refuses("graph.json topology.json --top 0", 2, "--top");
  refuses("graph.json topology.json --top 1001", 2, "the most that a list holds");
  refuses("graph.json topology.json --top 3 --front", 2, "--front: give either --top or --front");
  for (const char* option : {"--all", "--json", "--top-to t", "--price 2"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find(' '));
    refuses("graph.json topology.json " + std::string(option), 2,
            name + ": only valid with --top, --front or --explain");
  }
  for (const char* option : {"--top 3", "--front", "--explain", "--objective cost", "--min-throughput 1"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find(' '));
    refuses("graph.json topology.json --split-at l1 " + std::string(option), 2,
            name + ": chooses among a strategy's plans; remove --split-at and --from");
  }
  refuses("graph.json topology.json --top 3 --picture f.svg", 2, "--picture: only valid with --front");
  refuses("graph.json topology.json --objective speed", 2, "known are time, cost, memory");
  refuses("graph.json topology.json --top 2 --price 0", 2, "--price");
  refuses("graph.json topology.json --min-throughput -1", 2, "--min-throughput");
  refuses("graph.json topology.json --global-batch 8 --microbatches 4", 2, "--microbatches excludes --global-batch");
}

TEST_F(ChoicesTool, NamesWhatTheGraphLacks) {
  refuses("bare.json topology.json --global-batch 8", 1,
          "bare.json: does not say how many samples a microbatch has, which --global-batch needs; give --microbatches");
  refuses("bare.json topology.json --min-throughput 8", 1,
          "bare.json: does not say how many samples a microbatch has, which --min-throughput needs");
  refuses("graph.json topology.json --global-batch 1", 1,
          "its microbatches have 2 samples, which do not divide --global-batch 1; 2 would do");
  refuses("graph.json topology.json --global-batch 2097154", 1, "at most 1048576 are possible");
  refuses("graph.json topology.json --top 3 --memory-limit 1", 1, "graph.json: no plan fits in memory; the smallest");
}

TEST_F(ChoicesTool, ReplacesNoFolderOfSomethingElse) {
  (void)folder_.run("mkdir full && echo milk > full/notes.txt");
  refuses("graph.json topology.json --top 2 --top-to full", 1, "full");
  EXPECT_EQ(folder_.read("full/notes.txt"), "milk\n");
  refuses("no.json topology.json --top 2 --top-to graph.json", 1, "graph.json: is not a directory");
}

}  // namespace
}  // namespace stagecraft
