#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <regex>
#include <sstream>

#include "costmodel/format/files/files.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/text/units_text.h"
#include "partitioner/strategies/strategies.h"
#include "tests/partitioner/plan_command_test.h"
#include "tests/support/chains.h"
#include "tests/support/known_names.h"
#include "tests/support/pipedream_cases.h"
#include "tests/support/places.h"

// stagecraft-plan as a user runs it.

namespace stagecraft {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;

class PlanTool : public testing::PlanCommandTest {
 protected:
  PlanTool() {
    write("graph.json",
          format::graph_json(read_pipedream_profile(source_folder() + "/tests/golden/pipedream", "alexnet")));
    write("topology.json", format::topology_json(levels_topology({4}, {1e9})));
  }

  void write(const std::string& name, const std::string& text) const { folder_.write(name, text); }
  std::string read(const std::string& name) const { return folder_.read(name); }
  Outcome run(const std::string& arguments) const { return plan(arguments); }
};

/// A document without its provenance, which names the command.
nlohmann::json content(const std::string& text) {
  auto out = nlohmann::json::parse(text);
  out.erase("provenance");
  return out;
}

std::size_t longest_line(const std::string& text) {
  std::size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

TEST_F(PlanTool, PlansOneMicrobatchOfALossOverTheWholeBatch) {
  Graph graph = format::parse_graph(read("graph.json"), "graph.json");
  graph.whole_batch_loss = true;
  write("whole.json", format::graph_json(graph));
  const std::string reason = "stagecraft-plan: the loss of a batch does not follow from those of its microbatches";
  for (const char* strategy : {"", "--strategy auto", "--strategy profile", "--strategy pipedream"}) {
    const Outcome refused = run(std::string("whole.json topology.json --microbatches 4 ") + strategy);
    EXPECT_NE(refused.status, 0) << strategy;
    EXPECT_THAT(refused.err, HasSubstr(reason)) << strategy;
    EXPECT_THAT(refused.err, Not(HasSubstr("skipped"))) << strategy;
  }
  const Outcome one = run("whole.json topology.json --microbatches 1");
  EXPECT_EQ(one.status, 0) << one.err;
  EXPECT_THAT(one.err, Not(HasSubstr("try more --microbatches")));
}

TEST_F(PlanTool, RefusesAProfileThatIsNotTrusted) {
  Graph graph = format::parse_graph(read("graph.json"), "graph.json");
  graph.quality = ProfileQuality{};
  write("trusted.json", format::graph_json(graph));
  graph.quality->trusted = false;
  graph.quality->reasons = {"2 records were dropped", "5 % of the time belongs to no layer"};
  write("untrusted.json", format::graph_json(graph));
  const Outcome trusted = run("trusted.json topology.json");
  EXPECT_EQ(trusted.status, 0) << trusted.err;
  EXPECT_THAT(trusted.err, Not(HasSubstr("not trusted")));
  const Outcome refused = run("untrusted.json topology.json");
  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_EQ(refused.err,
            "stagecraft-plan: untrusted.json: the profile is not trusted: 2 records were dropped; 5 % of the time "
            "belongs to no layer; profile again, or add --accept-untrusted [SC2003]\n");
  const Outcome untrusted = run("untrusted.json topology.json --accept-untrusted");
  EXPECT_EQ(untrusted.status, 0) << untrusted.err;
  EXPECT_EQ(untrusted.err,
            "stagecraft-plan: warning: untrusted.json is not trusted; stagecraft doctor says why\n" + trusted.err);
  EXPECT_EQ(content(untrusted.out), content(trusted.out));
}

TEST_F(PlanTool, RefusesLinksThatAreNotTrusted) {
  Topology topology = format::parse_topology(read("topology.json"), "topology.json");
  topology.conditions.hosts = {{.ours = 1.25, .others = 0.75, .count = 2}};
  write("busy.json", format::topology_json(topology));
  const std::string reason =
      "busy.json: the links are not trusted: other programs kept 0.8 of 2 processors busy, the ranks 1.2: measure on a "
      "quiet machine";
  for (const std::string options : {"", " --objective-profile max-load"}) {
    const Outcome refused = run("graph.json busy.json" + options);
    EXPECT_EQ(refused.status, 1) << options;
    EXPECT_EQ(refused.out, "");
    EXPECT_EQ(refused.err, "stagecraft-plan: " + reason + "; measure them again, or add --accept-untrusted [SC2009]\n");
  }
  const Outcome accepted = run("graph.json busy.json --accept-untrusted");
  EXPECT_EQ(accepted.status, 0) << accepted.err;
  EXPECT_THAT(accepted.err, ::testing::StartsWith("stagecraft-plan: warning: the links are not trusted; stagecraft "
                                                  "doctor says why\n"));
  EXPECT_EQ(content(accepted.out), content(run("graph.json topology.json").out));
}

TEST_F(PlanTool, WritesAPlanWithBothTimes) {
  const Outcome o = run("graph.json topology.json --activation-compression-ratio 1 --microbatches 8 -o plan.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_THAT(o.err, HasSubstr("slowest stage 34.2 ms per microbatch; predicted step"));
  const Plan plan = format::parse_plan(read("plan.json"), "plan.json");
  EXPECT_EQ(plan.strategy, "pipedream");
  EXPECT_EQ(plan.microbatches, 8);
  // PipeDream's answer: pipeline_time of alexnet, n4_readme, in tests/golden/pipedream/expected.json.
  EXPECT_NEAR(plan.steady_state->value, 0.03421714133, 1e-11);
  EXPECT_GT(plan.iteration->value, 0);
  EXPECT_THAT(plan.provenance.tool, ::testing::StartsWith("stagecraft-plan "));
  EXPECT_EQ(plan.provenance.notes.at("command"),
            "stagecraft plan graph.json topology.json --activation-compression-ratio 1 --microbatches 8 -o plan.json");
}

TEST_F(PlanTool, TakesPipeDreamsOwnSpellingAndPutsThePlanOnStandardOutput) {
  // PipeDream's answer: pipeline_time of alexnet, n4x4_clusterA.
  for (const char* levels : {"-n 4 4 -b 12.5e9 1.25e9", "--devices 4,4 --bandwidths 12.5e9,1.25e9"}) {
    const Outcome o = run(std::string("graph.json ") + levels + " --activation_compression_ratio 1");
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_NEAR(format::parse_plan(o.out, "out").steady_state->value, 0.0150994944, 1e-11);
  }
}

TEST_F(PlanTool, ReadsTheGraphFromStandardInput) { EXPECT_EQ(run("- -n 2 < graph.json").status, 0); }

TEST_F(PlanTool, WarnsThatTransfersCostNothing) {
  EXPECT_THAT(run("graph.json topology.json --strategy pipedream").err,
              HasSubstr("transfers between stages are free, as in PipeDream; use --activation-compression-ratio 1"));
}

TEST_F(PlanTool, RefusesAPlanThatNeedsMoreMemoryThanTheLimit) {
  const Outcome fits = run("graph.json topology.json --strategy uniform --stages 2 --memory-limit 16GiB");
  EXPECT_EQ(fits.status, 0) << fits.err;
  EXPECT_EQ(format::parse_plan(fits.out, "out").stages.size(), 2U);
  const Outcome small = run("graph.json topology.json --strategy uniform --stages 2 --memory-limit 1MiB");
  EXPECT_EQ(small.status, 1);
  EXPECT_THAT(small.err, HasSubstr("on each device, the limit is 1.00 MiB"));
  const Outcome none = run("graph.json topology.json --memory-limit 1MiB");
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("no plan fits in memory; in the smallest ("));
}

TEST_F(PlanTool, TakesTheShortestPredictedStepOfAllStrategiesUnlessAskedOtherwise) {
  const Outcome all = run("graph.json topology.json");
  EXPECT_EQ(all.status, 0) << all.err;
  const Seconds best = *format::parse_plan(all.out, "out").iteration;
  for (const char* strategy : {"uniform", "parameters", "profile", "pipedream --activation-compression-ratio 1"}) {
    const Outcome o = run(std::string("graph.json topology.json --strategy ") + strategy);
    EXPECT_LE(best.value, format::parse_plan(o.out, "out").iteration->value * (1 + 1e-12)) << strategy;
  }
}

TEST_F(PlanTool, GivesEachStageTheReplicasAskedFor) {
  const Outcome o = run("graph.json topology.json --strategy profile --replicas 2,1");
  EXPECT_EQ(o.status, 0) << o.err;
  const Plan plan = format::parse_plan(o.out, "out");
  ASSERT_EQ(plan.stages.size(), 2U);
  EXPECT_EQ(plan.stages[0].devices.size(), 2U);
  EXPECT_EQ(plan.stages[1].devices.size(), 1U);
  EXPECT_THAT(run("graph.json topology.json --strategy profile --replicas 4,4").err,
              HasSubstr("the replicas need 8 devices, the topology has 4"));
  EXPECT_THAT(run("graph.json topology.json --strategy profile --stages 3 --replicas 2,1").err,
              HasSubstr("replicas: found 2 numbers for 3 stages"));
}

TEST_F(PlanTool, ListsThousandsOfDevicesAsRangesWithinTheTerminal) {
  const std::string arguments = "graph.json -n 4096 --strategy profile --replicas 3000,1096 --microbatches 6 -o p.json";
  const Outcome o = run(arguments);
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr(" 0-2999 "));
  EXPECT_THAT(o.err, HasSubstr(" 3000-4095 "));
  EXPECT_LE(longest_line(o.err.substr(0, o.err.find("slowest stage"))), 80U) << o.err;
  // Every other device: the numbers form no range, so the cell is truncated.
  Plan plan = format::parse_plan(read("p.json"), "p.json");
  std::string ranks = R"({"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0)";
  for (int device = 2; device < 40; device += 2) ranks += ", " + std::to_string(device);
  ranks += R"(], "1": [1)";
  for (int device = 3; device < 40; device += 2) ranks += ", " + std::to_string(device);
  write("conf.json", ranks + "]}}");
  Graph staged = format::parse_graph(read("graph.json"), "graph.json");
  for (Layer& layer : staged.layers) layer.stage = is_input(layer) || plan.stages[0].layers.front() == layer.id ? 0 : 1;
  write("staged.json", format::graph_json(staged));
  const Outcome cut = run("staged.json -n 40 --from pipedream-conf conf.json --microbatches 20 -o p.json");
  EXPECT_EQ(cut.status, 0) << cut.err;
  EXPECT_LE(longest_line(cut.err.substr(0, cut.err.find("slowest stage"))), 80U) << cut.err;
  EXPECT_THAT(cut.err, HasSubstr("(... is cut to 80 columns, COLUMNS="));
  ::setenv("COLUMNS", "400", 1);
  const Outcome wide = run("staged.json -n 40 --from pipedream-conf conf.json --microbatches 20 -o p.json");
  ::unsetenv("COLUMNS");
  EXPECT_THAT(wide.err, HasSubstr(" 0,2,4,6,8,10,12,14,16,18,20,22,24,26,28,30,32,34,36,38 "));
  EXPECT_THAT(wide.err, Not(HasSubstr("...")));
}

TEST_F(PlanTool, WritesRecomputationAndBucketsIntoThePlan) {
  const Outcome every = run("graph.json topology.json --recompute-every 3 --gradient-bucket-bytes 25MiB");
  EXPECT_EQ(every.status, 0) << every.err;
  const Plan plan = format::parse_plan(every.out, "out");
  EXPECT_EQ(plan.gradient_bucket_bytes, Bytes(25 << 20));
  for (const Stage& stage : plan.stages) {
    EXPECT_TRUE(stage.recompute);
    EXPECT_EQ(stage.recompute_every, 3);
  }
  const Plan whole = format::parse_plan(run("graph.json topology.json --recompute").out, "out");
  EXPECT_TRUE(whole.stages[0].recompute);
  EXPECT_EQ(whole.stages[0].recompute_every, 0);
  EXPECT_FALSE(format::parse_plan(run("graph.json topology.json").out, "out").stages[0].recompute);
}

TEST_F(PlanTool, RefusesTimesOfAnotherDeviceUnlessTheyAreAccepted) {
  // One layer of 3 s, measured on two processors, where two ranks at a time take twice as long.
  Graph graph = testing::chain_graph({1}, {2});
  graph.device = {"AMD EPYC", DeviceKind::Processor, 2};
  graph.slowdown = {1, 2};
  write("measured.json", format::graph_json(graph));
  const std::string gpus = source_folder() + "/examples/topology-3-levels.json";
  const std::string eight = " --strategy profile --replicas 8 --microbatches 8 ";
  const Outcome refused = run("measured.json " + gpus + eight);
  EXPECT_EQ(refused.status, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_THAT(refused.err, HasSubstr("measured.json: the graph was measured on a processor (AMD EPYC), the topology's "
                                     "devices are GPUs (H100-80GB); profile the model on such a device"));
  for (const char* strategy : {"", " --strategy pipedream"})
    EXPECT_EQ(run("measured.json " + gpus + strategy).status, 1) << strategy;
  const Outcome o = run("measured.json " + gpus + eight + "--accept-other-device");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("slowest stage ~375 ms per microbatch; predicted step ~3.00 s"));
  EXPECT_THAT(o.err, ContainsRegex(" ~3.00 s +~0 B "));
  const Plan plan = format::parse_plan(o.out, "out");
  EXPECT_DOUBLE_EQ(plan.iteration->value, 3 + 6 * 5e-6);  // up and down trees of height 3; a ring takes 14 steps
  EXPECT_THAT(plan.provenance.notes.at("other device"), HasSubstr("measured on a processor (AMD EPYC)"));
  EXPECT_THAT(run("measured.json " + gpus + " --accept-other-device").err, HasSubstr(" ~3.00 s "));  // --strategy auto
  // On its own host eight ranks share two processors: 8 * 3 s / 2 * 2, as measured for two ranks and proportional
  // beyond.
  const Outcome measured = run("measured.json -n 8" + eight);
  EXPECT_EQ(measured.status, 0) << measured.err;
  EXPECT_DOUBLE_EQ(format::parse_plan(measured.out, "out").iteration->value, 24);
  EXPECT_THAT(
      measured.err,
      HasSubstr(
          "note: assuming that ranks on one host slow each other down as on the host where the graph was measured"));
  EXPECT_EQ(run("measured.json " + source_folder() + "/examples/topology-2-cpus.json").status, 0);
}

TEST_F(PlanTool, RefusesAGraphWithoutTimes) {
  write("structure.json", format::graph_json(testing::chain_graph({0, 0}, {0, 0}, Bytes(8), Bytes(8))));
  for (const char* strategy : {"", " --strategy uniform", " --strategy pipedream", " --split-at l1"}) {
    const Outcome o = run("structure.json -n 2" + std::string(strategy));
    EXPECT_EQ(o.status, 1) << strategy;
    EXPECT_THAT(
        o.err,
        HasSubstr("structure.json: every layer takes 0 s (the graph was written by profile "
                  "--structure); estimate its times with stagecraft estimate GRAPH --device NAME, or measure the "
                  "model with stagecraft profile chain -o graph.json"));
  }
}

TEST_F(PlanTool, NamesUnusedDevices) {
  write("chain.json", format::graph_json(testing::chain_graph({1}, {2})));
  const Outcome o = run("chain.json -n 20 --strategy profile --replicas 16 --microbatches 8");
  EXPECT_EQ(o.status, 0) << o.err;
  // 3 s over the eight replicas that have a microbatch, not over sixteen.
  EXPECT_THAT(o.err, HasSubstr("slowest stage 375 ms per microbatch; predicted step 3.00 s\n"));
  const std::string idle = "12 of 20 devices are idle: 8-15 have no microbatch, 16-19 are not in any stage";
  EXPECT_THAT(o.err,
              HasSubstr("note: " + idle +
                        "; with 8 microbatches, at most 8 replicas of a stage have work: try more --microbatches\n"));
  EXPECT_EQ(format::parse_plan(o.out, "out").provenance.notes.at("idle devices"), idle);
  write("two.json", format::graph_json(testing::chain_graph({1, 1}, {2, 2})));
  EXPECT_THAT(run("two.json -n 20 --split-at l1 --replicas 16,4 --microbatches 8").err,
              HasSubstr("slowest stage 750 ms per microbatch"));  // the second stage: 3 s over four replicas
  EXPECT_THAT(run("two.json -n 2 --split-at l1").err, Not(HasSubstr("do nothing")));
}

// Eight layers of 3 s, four microbatches, free transfers: no plan is faster than the 24 s of one microbatch through all
// layers. One stage with four replicas reaches that, and so do several stages with four replicas each, on more devices.
TEST_F(PlanTool, TakesOfEquallyFastPlansTheOneWithFewestDevicesThenStages) {
  write("chain.json", format::graph_json(testing::chain_graph(std::vector<double>(8, 1), std::vector<double>(8, 2))));
  for (const std::string strategy : {"auto", "optimal"}) {
    const Outcome o = run("chain.json -n 64 --microbatches 4 --strategy " + strategy);
    EXPECT_EQ(o.status, 0) << o.err;
    const Plan plan = format::parse_plan(o.out, "out");
    ASSERT_EQ(plan.stages.size(), 1U) << o.err;
    EXPECT_THAT(plan.stages[0].devices, ElementsAre(0, 1, 2, 3));
    EXPECT_DOUBLE_EQ(plan.iteration->value, 24);
    EXPECT_THAT(o.err, HasSubstr(strategy == "auto" ? "steps within 1 % are ties: fewer devices, then fewer stages win"
                                                    : "predicted step 24.0 s: the best possible on these devices"));
    EXPECT_THAT(o.err, HasSubstr("note: 60 of 64 devices are idle: 4-63 are not in any stage"));
  }
}

/// Layers of 1 + 2 s cut anywhere: with the time of one simulation there is still a plan, and how far it may be off.
TEST_F(PlanTool, EndsItsSearchInTimeAndSaysHowFarFromTheBestItsPlanMayBe) {
  write("chain.json", format::graph_json(testing::chain_graph(std::vector<double>(60, 1), std::vector<double>(60, 2),
                                                              Bytes(700'000'000), Bytes(900'000'000))));
  const Outcome o = run("chain.json -n 16 --microbatches 12 --time-limit 0.01");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr(" % above the best possible on these devices"));
  const Plan plan = format::parse_plan(o.out, "out");
  ASSERT_TRUE(plan.lower_bound.has_value());
  // 60 layers of 3 s, 12 microbatches, 16 devices: at least 135 s of computation for each.
  EXPECT_GE(*plan.lower_bound, 134.9_s);
  EXPECT_LT(*plan.lower_bound, *plan.iteration);
  EXPECT_EQ(run("chain.json -n 2 --strategy profile --time-limit 1").status, 2);
}

// PipeDream assigns 63 replicas to the layer of 30 s and one device to the other, whose 1e12 bytes of parameters take
// far too long to reduce. Four microbatches keep four of the 63 busy.
TEST_F(PlanTool, LeavesOutReplicasThatWouldBeIdle) {
  Graph graph = testing::chain_graph({10, 0.1}, {20, 0.2});
  graph.layers[1].parameter_bytes = Bytes(1'000'000'000'000);
  write("chain.json", format::graph_json(graph));
  EXPECT_THAT(run("chain.json -n 64 --microbatches 4 --strategy pipedream").err,
              HasSubstr("per microbatch in steady state"));
  const Outcome o = run("chain.json -n 64 --microbatches 4");
  EXPECT_EQ(o.status, 0) << o.err;
  const Plan plan = format::parse_plan(o.out, "out");
  ASSERT_EQ(plan.stages.size(), 2U) << o.err;
  EXPECT_THAT(plan.stages[0].devices, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(plan.stages[1].devices, ElementsAre(63));
  EXPECT_EQ(plan.strategy, "pipedream, no idle replicas");
}

TEST_F(PlanTool, SkipsCandidatesThatDoNotSuitAndSaysWhy) {
  write("chain.json", format::graph_json(testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2})));
  // Two stages or replicas begin two microbatches before the first ends, but a step has only one; one device remains.
  const Outcome few = run("chain.json -n 4 --schedule pipedream-2bw --microbatches 1");
  EXPECT_EQ(few.status, 0) << few.err;
  EXPECT_EQ(format::parse_plan(few.out, "out").stages.size(), 1U);
  EXPECT_THAT(few.err, ContainsRegex("skipped [0-9]+ candidates: .*schedule \"pipedream-2bw\": 1 microbatches per step "
                                     "are fewer than the [0-9]+ that stage 0 has in flight \\([0-9]+\\)"));
  const Outcome stages = run("chain.json -n 4 --stages 3");
  EXPECT_EQ(stages.status, 0) << stages.err;
  EXPECT_EQ(format::parse_plan(stages.out, "out").stages.size(), 3U);
  // PipeDream's answers are one stage on all devices, and four stages.
  EXPECT_THAT(stages.err, HasSubstr("skipped 2 candidates: pipedream: it has 1 stage, expected 3 (1); pipedream: it "
                                    "has 4 stages, expected 3 (1)\n"));
  const Outcome replicas = run("chain.json -n 4 --replicas 2,1");
  EXPECT_EQ(replicas.status, 0) << replicas.err;
  EXPECT_THAT(format::parse_plan(replicas.out, "out").stages[0].devices, ElementsAre(0, 1));
  const Outcome none = run("chain.json -n 4 --schedule interleaved-1f1b --replicas 2,1");
  EXPECT_EQ(none.status, 1);
  EXPECT_THAT(none.err, HasSubstr("no candidate is possible; skipped "));
  EXPECT_THAT(
      none.err,
      HasSubstr("schedule \"interleaved-1f1b\" needs the same number of replicas at every position, but stage 0 "
                "has 2 and stage 1 has 1; give all 2, or use 1f1b, which takes any numbers ("));
  const Outcome many = run("chain.json -n 4 --stages 9");
  EXPECT_EQ(many.status, 1);
  EXPECT_THAT(many.err, HasSubstr("chain.json: 9 stages need as many devices, the topology has 4 [SC2101]"));
  EXPECT_THAT(run("chain.json -n 4 --replicas 3,2").err,
              HasSubstr("chain.json: the replicas need 5 devices, the topology has 4 [SC2101]"));
}

// The first two layers take as long as the last one, and most of the memory: `auto` cuts behind them. The smallest plan
// is one of the two cuts, whose own messages say what they need.
TEST_F(PlanTool, FindsTheSmallestPlanWhereNothingFits) {
  Graph graph = testing::chain_graph({1, 1, 2}, {1, 1, 1});
  const std::vector<std::int64_t> saved{1000, 1000, 10};
  for (std::size_t i = 0; i < saved.size(); ++i) {
    graph.layers[i].saved_bytes = Bytes(saved[i]);
    graph.layers[i].workspace_bytes = Bytes(0);
  }
  write("chain.json", format::graph_json(graph));
  const std::string one = "chain.json -n 2 --schedule gpipe --microbatches 2 --memory-limit 1";
  const auto need_of = [](const std::string& text) {
    std::smatch found;
    EXPECT_TRUE(std::regex_search(text, found, std::regex("needs up to ([0-9.]+ [KMG]?i?B)"))) << text;
    return parse_bytes(found[1].str());
  };
  const std::string wide = run(one + " --split-at l2").err;
  const std::string even = run(one + " --split-at l1").err;
  ASSERT_LT(need_of(even), need_of(wide)) << wide << even;
  const std::string least = run("chain.json -n 2 --stages 2 --schedule gpipe --microbatches 2 --memory-limit 1").err;
  EXPECT_THAT(least, HasSubstr("no plan fits in memory; in the smallest (equal shares, 2 stages) stage "));
  EXPECT_EQ(need_of(least), need_of(even)) << least << even;
}

// Four layers that keep 25 bytes for each of the four microbatches of gpipe: 400 B. With recomputation a stage keeps
// those of one microbatch, 100 B; layer by layer 25 B. With 2 instead of 8 samples a layer keeps 7 B (6.25, rounded
// up), 112 B in total; with 1 sample 4 B, 64 B in total, or 16 B with recomputation. Four devices as replicas hold one
// microbatch each, 100 B; eight, two per layer or four per half, 50 B. 2 % of all that is added.
TEST_F(PlanTool, SaysWhatWouldFitWhereNothingDoes) {
  Graph graph = testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2});
  graph.microbatch_samples = 8;
  for (Layer& layer : graph.layers) {
    layer.saved_bytes = Bytes(25);
    layer.workspace_bytes = Bytes(0);
  }
  write("chain.json", format::graph_json(graph));
  const std::string one = "chain.json -n 1 --schedule gpipe --microbatches 4 --memory-limit ";
  const Outcome some = run(one + "120");
  EXPECT_EQ(some.status, 1);
  EXPECT_EQ(
      some.err,
      "stagecraft-plan: chain.json: no plan fits in memory; in the smallest (equal shares, 1 stage) stage 0 needs up "
      "to 408 B on "
      "each device, the limit is 120 B; these would fit: --recompute (102 B), microbatches of 2 samples instead of "
      "8 (114 B), 4 devices instead of 1 (102 B) [SC2102]\n");
  const Outcome both = run(one + "20");
  EXPECT_EQ(both.status, 1);
  EXPECT_THAT(both.err,
              HasSubstr("the limit is 20 B; these would fit: microbatches of 1 sample instead of 8 and "
                        "--recompute (16 B); these would not fit either: --recompute-every 1 (26 B), "
                        "microbatches of 1 sample instead of 8 (65 B), 8 devices instead of 1 (51 B) [SC2102]\n"));
  EXPECT_THAT(run(one + "3").err, Not(HasSubstr("would fit")));
  EXPECT_EQ(run(one + "102 --recompute").status, 0);  // as suggested
  // Given stages stay on their devices; the second needs more than the first.
  graph.layers[3].saved_bytes = Bytes(90);
  write("chain.json", format::graph_json(graph));
  const Outcome given = run("chain.json -n 2 --split-at l2 --microbatches 1 --memory-limit 40");
  EXPECT_EQ(given.status, 1);
  EXPECT_EQ(
      given.err,
      "stagecraft-plan: warning: level 1 has no --bandwidths, assuming 1 GB/s\n"
      "stagecraft-plan: chain.json: stage 1 needs up to 117 B on each device, the limit is 40 B; these would fit: "
      "microbatches of 2 samples instead of 8 (31 B); these would not fit either: --recompute-every 1 (92 B) "
      "[SC2102]\n");
}

TEST_F(PlanTool, ListsTheStrategies) {
  const Outcome o = run("graph.json topology.json --strategy magic");
  EXPECT_EQ(o.status, 2);
  EXPECT_EQ(o.err, "stagecraft-plan: --strategy: unknown strategy \"magic\", known are " +
                       known_names(partitioner::strategies()) + " [SC1005]\nsee stagecraft plan --help\n");
}

TEST_F(PlanTool, ListsTheSchedules) {
  const Outcome o = run("graph.json topology.json --schedule magic");
  EXPECT_EQ(o.status, 2);
  EXPECT_THAT(o.err, HasSubstr("--schedule: unknown schedule \"magic\", known are"));
}

TEST_F(PlanTool, ComparesSchedules) {
  const Outcome best = run("graph.json topology.json --schedule best --microbatches 8");
  EXPECT_EQ(best.status, 0) << best.err;
  const Plan plan = format::parse_plan(best.out, "out");
  for (const std::string schedule : {"gpipe", "1f1b", "interleaved-1f1b", "zb-h1"}) {
    EXPECT_THAT(best.err, HasSubstr(schedule));
    const Outcome alone = run("graph.json topology.json --microbatches 8 --schedule " + schedule);
    EXPECT_LE(plan.iteration->value, format::parse_plan(alone.out, "out").iteration->value * (1 + 1e-9)) << schedule;
  }
  EXPECT_THAT(plan.provenance.notes.at("schedules"), HasSubstr("1f1b "));
  const Outcome named = run("graph.json topology.json --schedule gpipe,magic");
  EXPECT_EQ(named.status, 2);
  EXPECT_THAT(named.err, HasSubstr("--schedule: unknown schedule \"magic\", known are"));
  const Outcome listed = run("graph.json topology.json --schedule best --top 3");
  EXPECT_EQ(listed.status, 2);
  EXPECT_THAT(listed.err, HasSubstr("give one schedule with options that choose among plans"));
}

TEST_F(PlanTool, ComparesSchedulesForStagesByHand) {
  const std::string second = format::parse_graph(read("graph.json"), "graph.json").layers[5].id;
  const std::string stages = "graph.json topology.json --microbatches 4 --split-at " + second + " --schedule ";
  const Outcome both = run(stages + "gpipe,1f1b");
  EXPECT_EQ(both.status, 0) << both.err;
  const Plan plan = format::parse_plan(both.out, "out");
  EXPECT_EQ(plan.stages.size(), 2U);
  for (const std::string schedule : {"gpipe", "1f1b"})
    EXPECT_LE(plan.iteration->value, format::parse_plan(run(stages + schedule).out, "out").iteration->value);
}

TEST_F(PlanTool, TakesListsAsTheSchedule) {
  write("s.csv", "0F0,0B0,0F2,0B2\n0F1,0B1\n1F0,1B0,1F1,1B1,1F2,1B2\n");
  const Outcome o = run("graph.json topology.json --schedule csv:s.csv");
  EXPECT_EQ(o.status, 0) << o.err;
  const Plan plan = format::parse_plan(o.out, "out");
  EXPECT_EQ(plan.schedule, "listed");
  EXPECT_EQ(plan.microbatches, 3);
  EXPECT_THAT(plan.stages[0].devices, ElementsAre(0, 1));
  EXPECT_THAT(plan.stages[1].devices, ElementsAre(2));
  EXPECT_EQ(plan.listed.size(), 3u);
  EXPECT_EQ(plan.strategy, "profile");
  EXPECT_THAT(run("graph.json topology.json --schedule csv:s.csv --microbatches 4").err,
              HasSubstr("s.csv: found 3 microbatches, --microbatches is 4"));
  write("chunks.csv", "0F0,2F0\n1F0,3F0\n");
  const Outcome chunks = run("graph.json topology.json --schedule csv:chunks.csv");
  EXPECT_EQ(chunks.status, 0) << chunks.err;
  const Plan chunked = format::parse_plan(chunks.out, "out");
  EXPECT_EQ(chunked.chunks, 2);
  ASSERT_EQ(chunked.stages.size(), 4U);
  EXPECT_EQ(chunked.stages[2].devices, chunked.stages[0].devices);
  EXPECT_THAT(run("graph.json topology.json --schedule csv:chunks.csv --chunks 4").err,
              HasSubstr("chunks.csv: found 2 stages per rank, --chunks is 4"));
  EXPECT_THAT(run("graph.json topology.json --schedule csv:nowhere.csv").err, HasSubstr("nowhere.csv: "));
}

// Twelve equal layers on two devices. v chunks: M(F+B) + (p-1)(F+B)/v with F+B = 6 * 3 s on a device, M = 4, p = 2,
// and free transfers: 90 s, 81 s, 76.5 s.
TEST_F(PlanTool, MakesInterleavedPlans) {
  write("chain.json", format::graph_json(testing::chain_graph(std::vector<double>(12, 1), std::vector<double>(12, 2))));
  for (const auto& [chunks, step] : std::map<int, double>{{1, 90}, {2, 81}}) {
    const Outcome o = run("chain.json -n 2 --strategy uniform --schedule interleaved-1f1b --microbatches 4 --chunks " +
                          std::to_string(chunks));
    EXPECT_EQ(o.status, 0) << o.err;
    const Plan plan = format::parse_plan(o.out, "out");
    EXPECT_EQ(plan.chunks, chunks);
    ASSERT_EQ(plan.stages.size(), static_cast<std::size_t>(2 * chunks));
    for (std::size_t s = 0; s < plan.stages.size(); ++s) EXPECT_THAT(plan.stages[s].devices, ElementsAre(s % 2));
    EXPECT_NEAR(plan.iteration->value, step, 1e-9);
    EXPECT_DOUBLE_EQ(plan.steady_state->value, 18);
    EXPECT_THAT(o.err,
                HasSubstr(chunks > 1 ? "slowest device 18.0 s per microbatch" : "slowest stage 18.0 s per microbatch"));
  }
  const Outcome given =
      run("chain.json -n 2 --split-at l3,l6,l9 --schedule interleaved-1f1b --microbatches 4 --chunks 2");
  EXPECT_EQ(given.status, 0) << given.err;
  EXPECT_NEAR(format::parse_plan(given.out, "out").iteration->value, 81, 1e-9);
}

TEST_F(PlanTool, FindsTheNumberOfChunks) {
  Graph graph = testing::chain_graph(std::vector<double>(16, 1), std::vector<double>(16, 2));
  graph.layers.front().replicable = false;  // two replicas of all layers would take 2 * 48
  write("chain.json", format::graph_json(graph));
  const Outcome o = run("chain.json -n 2 --schedule interleaved-1f1b --microbatches 4");
  EXPECT_EQ(o.status, 0) << o.err;
  const Plan plan = format::parse_plan(o.out, "out");
  // Eight layers of 3 s on a device: 4 * 24 + 24 / 8.
  EXPECT_EQ(plan.chunks, 8);
  EXPECT_NEAR(plan.iteration->value, 99, 1e-9);
  EXPECT_EQ(plan.strategy, "profile, 16 stages, 8 per device");
  // Five microbatches do not go round two devices.
  const Outcome odd = run("chain.json -n 2 --schedule interleaved-1f1b --microbatches 5");
  EXPECT_EQ(format::parse_plan(odd.out, "out").chunks, 1);
  EXPECT_THAT(
      odd.err,
      HasSubstr("schedule \"interleaved-1f1b\": 5 microbatches are not a multiple of 2 devices, 4 or 6 are (3)"));
}

TEST_F(PlanTool, SaysWhyChunksAreNotPossible) {
  write("chain.json", format::graph_json(testing::chain_graph(std::vector<double>(6, 1), std::vector<double>(6, 2))));
  const auto error = [&](const std::string& arguments, int status = 1) {
    const Outcome o = run("chain.json -n 2 " + arguments);
    EXPECT_EQ(o.status, status) << o.err;
    return o.err;
  };
  EXPECT_THAT(error("--chunks 2", 2),
              HasSubstr("--chunks: schedule 1f1b runs one stage per device; use --schedule interleaved-1f1b"));
  const std::string interleaved = "--schedule interleaved-1f1b --microbatches 4 --chunks ";
  EXPECT_THAT(error(interleaved + "2 --strategy pipedream"),
              HasSubstr("strategy pipedream: makes one stage per device, found 2 chunks; use auto or profile"));
  EXPECT_THAT(error(interleaved + "2 --strategy profile --stages 5"),
              HasSubstr("5 stages cannot be divided into 2 chunks per device, 4 or 6 can"));
  EXPECT_THAT(error(interleaved + "2 --stages 5"),
              HasSubstr("5 stages cannot be divided into 2 chunks per device, 4 or 6 can"));
  EXPECT_THAT(error(interleaved + "2 --split-at l1,l2"),
              HasSubstr("--split-at: 3 stages cannot be divided into 2 chunks per device, 2 or 4 can"));
  EXPECT_THAT(error(interleaved + "2 --strategy profile --stages 6"),
              HasSubstr("6 stages need 3 devices, the topology has 2"));
  EXPECT_THAT(error(interleaved + "4 --strategy profile"), HasSubstr("8 stages need as many layers, the graph has 6"));
  EXPECT_THAT(error("--schedule interleaved-1f1b --chunks 2 --microbatches 3 --strategy profile"),
              HasSubstr("3 microbatches are not a multiple of 2 devices"));
}

TEST_F(PlanTool, CountsTheMemoryOfAllChunksOfADevice) {
  write("chain.json", format::graph_json(testing::chain_graph({1, 1, 1, 1}, {2, 2, 2, 2}, Bytes(0), Bytes(100))));
  const std::string arguments =
      "chain.json -n 2 --strategy uniform --schedule interleaved-1f1b --microbatches 4 --chunks 2 ";
  // A device has 2 * 100 bytes of parameters and as many of gradients, and 2 % more; a stage only half of that.
  EXPECT_EQ(run(arguments + "--memory-limit 408B").status, 0);
  const Outcome small = run(arguments + "--memory-limit 407B");
  EXPECT_EQ(small.status, 1);
  EXPECT_THAT(small.err, HasSubstr("stages 0, 2 need up to 408 B on each device, the limit is 407 B"));
}

TEST_F(PlanTool, NotesTheEstimateOfASplitBackward) {
  Graph graph = testing::chain_graph({1, 1}, {2, 2}, Bytes(0), Bytes(4));
  write("chain.json", format::graph_json(graph));
  const Outcome estimated = run("chain.json -n 2 --schedule zb-h1 --microbatches 4");
  EXPECT_EQ(estimated.status, 0) << estimated.err;
  EXPECT_THAT(estimated.err, HasSubstr("note: the graph has no weight-gradient times for 2 layers with parameters"));
  EXPECT_TRUE(format::parse_plan(estimated.out, "out").provenance.notes.contains("backward parts"));
  for (Layer& layer : graph.layers) layer.backward_parts = BackwardParts{{Seconds(1), {}, 9}, {Seconds(1), {}, 9}};
  write("chain.json", format::graph_json(graph));
  EXPECT_THAT(run("chain.json -n 2 --schedule zb-h1 --microbatches 4").err, Not(HasSubstr("weight-gradient")));
}

TEST_F(PlanTool, NamesAMissingFile) {
  const Outcome o = run("nowhere.json topology.json");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err, HasSubstr("stagecraft-plan: nowhere.json: "));
}

TEST_F(PlanTool, EndsWithOneWhereThereIsNoPlan) {
  const Outcome o = run("graph.json -n 64 --straight-pipeline");
  EXPECT_EQ(o.status, 1);
  EXPECT_THAT(o.err,
              HasSubstr("a straight pipeline on 64 devices needs 64 stages; the graph cannot be cut into so many"));
  EXPECT_EQ(o.out, "");
  const Outcome memory = run("graph.json -n 4 --straight-pipeline --memory-limit 1kB");
  EXPECT_EQ(memory.status, 1);
  EXPECT_THAT(memory.err, HasSubstr("no partition fits every stage in 1000 bytes, a limit of"));
}

TEST_F(PlanTool, EndsWithTwoOnWrongUsage) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"", "GRAPH is required"},
           {"graph.json", "TOPOLOGY: give either a topology file or --devices"},
           {"graph.json topology.json -n 4", "TOPOLOGY: give either a topology file or --devices"},
           {"graph.json topology.json -b 1e9", "--bandwidths: only valid with --devices"},
           {"graph.json -n 4 -b 1e9 1e9", "--bandwidths: found 2 values for 1 level of --devices"},
           {"graph.json topology.json --microbatches many", "--microbatches"},
           {"graph.json topology.json --memory-limit 3apples", "--memory-limit"},
           {"graph.json topology.json --recompute-every 0", "--recompute-every"},
           {"graph.json topology.json --gradient-bucket-bytes 0", "--gradient-bucket-bytes"},
           {"graph.json topology.json --strategy uniform --straight-pipeline",
            "uniform does not take PipeDream's options"},
           {"graph.json topology.json --magic", "--magic"}}) {
    const Outcome o = run(arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message)) << arguments;
  }
}

TEST_F(PlanTool, SaysWhichNumbersAnOptionTakes) {
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"-n 0", "--devices: 0 is not an integer of 1 or more"},
           {"-n 4,x", "--devices: \"x\" is not an integer of 1 or more"},
           {"-n 4 -b 0", "--bandwidths: 0 is not a number above 0"},
           {"-n 4 -b nan", "--bandwidths: \"nan\" is not a number above 0"},
           {"-n 4 -b inf", "--bandwidths: \"inf\" is not a number above 0"},
           {"-n 4 --microbatches 0", "--microbatches: 0 is not an integer from 1 to 1048576"},
           {"-n 4 --microbatches -8", "--microbatches: -8 is not an integer from 1 to 1048576"},
           {"-n 4 --microbatches 2.5", "--microbatches: 2.5 is not an integer from 1 to 1048576"},
           {"-n 4 --microbatches 1e3", "--microbatches: 1e3 is not an integer from 1 to 1048576"},
           {"-n 4 --microbatches ''", "--microbatches: \"\" is not an integer from 1 to 1048576"},
           {"-n 4 --microbatches 10000000",
            "--microbatches: 10000000 is not an integer from 1 to 1048576, the maximum of a plan file [SC1005]\n"},
           // 2^31 - 1 is the largest value of its type.
           {"-n 2147483648", "--devices: 2147483648 is not an integer from 1 to 2147483647"},
           {"-n 4 --strategy uniform --stages 0", "--stages: 0 is not an integer of 1 or more"},
           {"-n 4 --strategy uniform --replicas 2,0", "--replicas: 0 is not an integer of 1 or more"},
           {"-n 4 --recompute-every 0", "--recompute-every: 0 is not an integer of 1 or more"},
           {"-n 4 --strategy pipedream --stages 2", "--stages: strategy pipedream finds the number of stages itself"},
           {"-n 4 --activation-compression-ratio -1", "--activation-compression-ratio: -1 is not a number above 0"},
           {"-n 4 --from keras x", "--from: unknown format \"keras\", known are actions, "}}) {
    const Outcome o = run("graph.json " + arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_THAT(o.err, HasSubstr("stagecraft-plan: " + message)) << arguments;
    EXPECT_THAT(o.err, HasSubstr("\nsee stagecraft plan --help\n")) << arguments;
  }
}

TEST_F(PlanTool, PlansStepsOfAMillionMicrobatches) {
  const Plan plan =
      format::parse_plan(run("graph.json topology.json --strategy profile --microbatches 1048576").out, "out");
  EXPECT_EQ(plan.microbatches, 1048576);
  ASSERT_TRUE(plan.iteration);
  const Plan short_plan =
      format::parse_plan(run("graph.json topology.json --strategy profile --microbatches 1024").out, "out");
  const Plan twice =
      format::parse_plan(run("graph.json topology.json --strategy profile --microbatches 2048").out, "out");
  // Full replays of 1024 and of 2048 microbatches give the time of 1024 more; 2^20 adds 1023 times that.
  const double more = (*twice.iteration - *short_plan.iteration).value;
  EXPECT_NEAR(plan.iteration->value, short_plan.iteration->value + 1023 * more, 1e-9 * plan.iteration->value);
}

TEST_F(PlanTool, ReadsNumbersAsDecimal) {
  EXPECT_EQ(format::parse_plan(run("graph.json topology.json --microbatches 010").out, "out").microbatches, 10);
}

TEST_F(PlanTool, ShowsAnExample) {
  const Outcome o = run("--help");
  EXPECT_EQ(o.status, 0);
  EXPECT_THAT(o.out, HasSubstr("stagecraft plan graph.json topology.json --microbatches 8 -o plan.json"));
}

}  // namespace
}  // namespace stagecraft
