#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/partitioner/plan_command_test.h"
#include "tests/support/chains.h"

// stagecraft plan --top, --front and --objective as a user runs them; tests/golden/cases/choices has their numbers.

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;

class ChoicesTool : public testing::PlanCommandTest {
 protected:
  ChoicesTool() {
    Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}, 100_B);
    folder_.write("bare.json", format::graph_json(graph));
    graph.microbatch_samples = 2;
    folder_.write("graph.json", format::graph_json(graph));
    folder_.write("topology.json", format::topology_json(testing::flat_topology(4)));
  }
};

TEST_F(ChoicesTool, WritesTheBestPlanAndTheListedOnes) {
  for (int i = 0; i < 2; ++i) {  // the second replaces the first
    const Outcome o = plan("graph.json topology.json --top 3 --top-to plans -o best.json");
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_EQ(folder_.run("ls plans").out, "plan-1.json\nplan-2.json\nplan-3.json\n");
    EXPECT_THAT(o.err, HasSubstr("proven: no other plan of the search has a shorter step than these\n"));
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

TEST_F(ChoicesTool, FindsLessMemoryThanAnyListedPlan) {
  // 8 microbatches of layers that save 400, 100, 100 and 100 B.
  Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2});
  for (Layer& layer : graph.layers) layer.saved_bytes = layer.workspace_bytes = 100_B;
  graph.layers[0].saved_bytes = 400_B;
  folder_.write("uneven.json", format::graph_json(graph));
  const auto least = [&](const std::string& options) {
    const Outcome o = plan("uneven.json topology.json --microbatches 8 --schedule gpipe --json " + options);
    EXPECT_EQ(o.status, 0) << o.err;
    const auto list = nlohmann::json::parse(o.out);
    std::int64_t out = list["plans"][0]["memory_bytes"];
    for (const auto& plan : list["plans"]) out = std::min(out, plan["memory_bytes"].get<std::int64_t>());
    return std::pair(list["plans"][0]["memory_bytes"].get<std::int64_t>(), out);
  };
  const auto small = least("--top 1 --objective memory");
  EXPECT_EQ(small.first, small.second);
  EXPECT_LE(small.first, least("--top 1000").second);
  const Outcome o = plan("uneven.json topology.json --objective memory -o p.json");
  EXPECT_THAT(o.err, Not(HasSubstr("the best possible")));  // of the step
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
  EXPECT_THAT(none.err, AllOf(HasSubstr("the smallest changes that make a plan fit in memory (each was tried):\n  "),
                              HasSubstr(" of memory per device instead of 150 B\n"),
                              HasSubstr("stagecraft-plan: graph.json: no plan fits in memory")));
}

TEST_F(ChoicesTool, ImprovesAGivenPlan) {
  // Under gpipe with four microbatches: a layer on each of four devices 21 s, all layers on each 12 s.
  EXPECT_EQ(plan("graph.json topology.json --strategy uniform --schedule gpipe -o slow.json").status, 0);
  const Outcome o = plan("graph.json topology.json --improve slow.json -o fast.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("step improved from 21.0 s to 12.0 s\n"));
  const Plan fast = format::parse_plan(folder_.read("fast.json"), "fast.json");
  EXPECT_EQ(fast.strategy, "uniform, improved");
  EXPECT_EQ(fast.schedule, "gpipe");
  EXPECT_EQ(fast.stages.size(), 1U);
  // l3 in a stage of its own: the others on three devices, or two replicas of both stages.
  const Outcome pinned = plan("graph.json topology.json --improve slow.json --pin l2=0,l3=1 -o -");
  EXPECT_EQ(pinned.status, 1);
  EXPECT_THAT(pinned.err, HasSubstr("slow.json: its stages cannot have their layers where --pin and --no-cut-in put"));
  const Outcome kept = plan("graph.json topology.json --improve slow.json --pin l3=3");
  EXPECT_EQ(kept.status, 0) << kept.err;
  EXPECT_EQ(format::parse_plan(kept.out, "out").stages.size(), 4U);
}

// Stages that save 4 * 300 B and 4 * 100 B: within 700 B the first one recomputes, see
// RecomputesOnlyWhereMemoryIsShort.
TEST_F(ChoicesTool, LetsSingleStagesRecompute) {
  Graph graph = testing::chain_graph({1, 1}, {2, 2});
  graph.layers[0].saved_bytes = 300_B;
  graph.layers[1].saved_bytes = 100_B;
  folder_.write("uneven.json", format::graph_json(graph));
  folder_.write("two.json", format::topology_json(testing::flat_topology(2)));
  const std::string split = "uneven.json two.json --split-at l1 --schedule gpipe --memory-limit 700 ";
  EXPECT_EQ(plan(split + "-o none.json").status, 1) << "neither recomputes";
  const Outcome completed = plan(split + "--complete -o mixed.json");
  EXPECT_EQ(completed.status, 0) << completed.err;
  const auto recomputes = [&](const std::string& name) {
    std::vector<bool> out;
    for (const Stage& stage : format::parse_plan(folder_.read(name), name).stages) out.push_back(stage.recompute);
    return out;
  };
  EXPECT_THAT(recomputes("mixed.json"), ::testing::ElementsAre(true, false));
  const Outcome asked = plan(split + "--complete --recompute -o asked.json");
  EXPECT_EQ(asked.status, 0) << asked.err;
  EXPECT_THAT(recomputes("asked.json"), ::testing::ElementsAre(true, true));
  // A plan whose stages differ can be improved; without a limit none needs to recompute.
  const Outcome improved = plan("uneven.json two.json --improve mixed.json -o fast.json");
  EXPECT_EQ(improved.status, 0) << improved.err;
  EXPECT_THAT(recomputes("fast.json"), ::testing::Each(false));
  EXPECT_EQ(folder_.run("stagecraft-verify mixed.json --graph uneven.json --topology two.json").status, 0);
}

TEST_F(ChoicesTool, CompletesAGivenSplit) {
  // Stages of 3 and 9 s: with one device each four microbatches take 39 s, with four more of the second
  // less than with any other numbers; a replica more of the second at least helps.
  const Outcome o = plan("graph.json topology.json --split-at l1 --schedule gpipe --complete");
  EXPECT_EQ(o.status, 0) << o.err;
  const Plan found = format::parse_plan(o.out, "out");
  ASSERT_EQ(found.stages.size(), 2U);
  EXPECT_EQ(found.stages[0].layers.size(), 1U);
  EXPECT_GE(found.stages[1].devices.size(), 2U);
  EXPECT_THAT(o.err, HasSubstr("step improved from 39.0 s to "));
}

TEST_F(ChoicesTool, PutsLayersWhereTheUserWantsThem) {
  const auto stage_of = [](const Plan& found, const std::string& layer) {
    for (std::size_t s = 0; s < found.stages.size(); ++s) {
      for (const std::string& id : found.stages[s].layers) {
        if (id == layer) return static_cast<int>(s);
      }
    }
    return -1;
  };
  for (const std::string strategy : {"", " --strategy optimal", " --strategy auto"}) {
    const Outcome pinned = plan("graph.json topology.json --pin l3=2" + strategy);
    EXPECT_EQ(pinned.status, 0) << pinned.err;
    EXPECT_EQ(stage_of(format::parse_plan(pinned.out, "out"), "l3"), 2);
    const Outcome joined = plan("graph.json topology.json --stages 2 --no-cut-in l1..l3" + strategy);
    EXPECT_EQ(joined.status, 0) << joined.err;
    const Plan found = format::parse_plan(joined.out, "out");
    EXPECT_EQ(stage_of(found, "l0"), 0);
    for (const char* layer : {"l1", "l2", "l3"}) EXPECT_EQ(stage_of(found, layer), 1);
  }
  refuses("graph.json topology.json --pin l3=4", 1, "no plan that fits has its layers where --pin and --no-cut-in put");
}

TEST_F(ChoicesTool, NamesWrongUseOfStagesByHand) {
  refuses("graph.json topology.json --strategy uniform --pin l1=0", 2,
          "--pin: strategy uniform does not take it; auto and optimal do");
  refuses("graph.json topology.json --strategy profile --no-cut-in l1..l2", 2,
          "--no-cut-in: strategy profile does not take it; auto and optimal do");
  refuses("graph.json topology.json --strategy magic --pin l1=0", 2, "unknown strategy \"magic\", known are uniform");
  refuses("graph.json topology.json --split-at l1 --pin l1=0", 2, "--pin: the stages are given");
  refuses("graph.json topology.json --split-at l1 --no-cut-in l1..l2", 2, "--no-cut-in: the stages are given");
  refuses("graph.json topology.json --complete", 2, "--complete: only valid with --split-at or --from");
  refuses("graph.json topology.json --split-at l1 --complete --replicas 2,1", 2, "finds the replicas");
  refuses("graph.json topology.json --pin l1", 1, "--pin: found \"l1\", expected LAYER=STAGE");
  refuses("graph.json topology.json --improve no.json", 1, "no.json: ");
  refuses("graph.json topology.json --improve graph.json", 1, "graph.json: ");
  refuses("graph.json topology.json --improve p.json -o p.json", 1, "p.json: ");
  for (const char* option : {"--strategy auto", "--stages 2", "--microbatches 2", "--schedule 1f1b", "--recompute"}) {
    const std::string name = std::string(option).substr(0, std::string(option).find(' '));
    refuses("graph.json topology.json --improve p.json " + std::string(option), 2,
            "--improve: " + name + " comes from the plan; remove it");
  }
  refuses("graph.json topology.json --improve p.json --top 2", 2,
          "--top: chooses among a strategy's plans; remove --improve");
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
  refuses("graph.json topology.json --explain --pin 1=0", 2, "--explain: does not try plans without --pin");
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
  refuses("graph.json topology.json --top 3 --memory-limit 1", 1,
          "graph.json: no plan fits in memory; in the smallest");
}

TEST_F(ChoicesTool, ReplacesNoFolderOfSomethingElse) {
  (void)folder_.run("mkdir full && echo milk > full/notes.txt");
  refuses("graph.json topology.json --top 2 --top-to full", 1, "full");
  EXPECT_EQ(folder_.read("full/notes.txt"), "milk\n");
  refuses("no.json topology.json --top 2 --top-to graph.json", 1, "graph.json: is not a directory");
}

}  // namespace
}  // namespace stagecraft
