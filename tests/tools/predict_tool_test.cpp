#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/prediction_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/support/chains.h"
#include "tests/support/run_command.h"

// stagecraft-predict as a user runs it.

namespace stagecraft {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;

class PredictTool : public ::testing::Test {
 protected:
  /// Two equal stages, 1 s forward and 2 s backward, 4 microbatches of 5 samples: 5 periods of 3 s.
  PredictTool() {
    Graph graph = testing::chain_graph({1, 1}, {2, 2}, 1000_B, 100_B);
    graph.microbatch_samples = 5;
    const Topology topology = testing::flat_topology(2, 1000);
    plan_ = testing::one_layer_a_stage(graph, topology, {1, 1}, "1f1b", 4);
    folder_.write("graph.json", format::graph_json(graph));
    folder_.write("topology.json", format::topology_json(topology));
    folder_.write("plan.json", format::plan_json(plan_));
  }
  /// A document without its provenance, which names the command.
  nlohmann::json content(const std::string& name) const {
    auto out = nlohmann::json::parse(folder_.read(name));
    out.erase("provenance");
    return out;
  }
  Outcome predict(const std::string& arguments) const { return folder_.run("stagecraft-predict " + arguments); }

  Plan plan_;
  testing::CommandFolder folder_;
};

TEST_F(PredictTool, PrintsTheStepAndWritesPredictionAndTrace) {
  const Outcome o = predict("graph.json topology.json plan.json --free-transfers -o p.json --trace t.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(o.out, "");
  EXPECT_THAT(o.err, HasSubstr("step 15.0 s, 1.3 samples per second (0.7 per device), idle 20.0 %"));
  const Prediction prediction = format::parse_prediction(folder_.read("p.json"), "p.json");
  EXPECT_DOUBLE_EQ(prediction.iteration.value, 15);
  EXPECT_EQ(prediction.provenance.notes.at("command"),
            "stagecraft predict graph.json topology.json plan.json --free-transfers -o p.json --trace t.json");
  const auto trace = nlohmann::json::parse(folder_.read("t.json"));
  EXPECT_EQ(trace["otherData"]["title"], "chain, predicted");
}

TEST_F(PredictTool, TakesAClusterFromTheCommandLine) {
  Topology same = testing::flat_topology(2, 1000);
  same.device = {};
  same.name = "command line";
  same.levels[0].name = "level 1";
  folder_.write("same.json", format::topology_json(same));
  const Outcome file = predict("graph.json same.json plan.json -o file.json");
  EXPECT_EQ(file.status, 0) << file.err;
  for (const char* levels : {"-n 2 -b 1000", "--devices 2 --bandwidths 1000"}) {
    const Outcome o = predict("graph.json plan.json " + std::string(levels) + " -o levels.json --force");
    EXPECT_EQ(o.status, 0) << o.err;
    EXPECT_EQ(o.err, file.err);
    EXPECT_EQ(content("levels.json"), content("file.json"));
  }
  EXPECT_THAT(predict("graph.json plan.json -n 2,2 -b 1000 -o x.json").err,
              HasSubstr("warning: level 2 has no --bandwidths, assuming 1 GB/s\n"));
  const Outcome two = predict("graph.json plan.json -n 2,2 -b 1000 1000");
  EXPECT_THAT(two.err, HasSubstr("note: 2 of 4 devices are idle: 2,3 are not in any stage\n"));
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"graph.json topology.json plan.json -n 2", "TOPOLOGY: give either a topology file or --devices"},
           {"graph.json topology.json plan.json -b 1000", "--bandwidths: only valid with --devices"},
           {"graph.json plan.json -n 2 -b 1 1", "--bandwidths: found 2 values for 1 level of --devices"},
           {"graph.json -n 2", "PLAN is required"},
           {"graph.json plan.json -n 0", "--devices: 0 is not an integer of 1 or more"}}) {
    const Outcome o = predict(arguments);
    EXPECT_EQ(o.status, 2) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message));
  }
  const Outcome small = predict("graph.json plan.json -n 1");
  EXPECT_EQ(small.status, 1);
  EXPECT_THAT(small.err, HasSubstr("device 1 does not exist, topology \"command line\" has 0..0"));
}

TEST_F(PredictTool, PredictsAfterChanges) {
  // Without transfers all times are layers'; twice as fast layers halve the 15 s.
  const Outcome o =
      predict("graph.json topology.json plan.json --free-transfers --set compute=0.5x --set memory=1GiB -o p.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("with compute=0.5x, memory=1GiB\n"));
  const Prediction prediction = format::parse_prediction(folder_.read("p.json"), "p.json");
  EXPECT_DOUBLE_EQ(prediction.iteration.value, 7.5);
  EXPECT_EQ(prediction.changes, (std::vector<std::string>{"compute=0.5x", "memory=1GiB"}));
  const Outcome unknown = predict("graph.json topology.json plan.json --set speed=2x");
  EXPECT_EQ(unknown.status, 1);
  EXPECT_THAT(unknown.err, HasSubstr("--set unknown setting \"speed\", known are compute, stage.S.compute"));
  EXPECT_THAT(predict("--help").out, HasSubstr("link.LEVEL.bandwidth"));
}

TEST_F(PredictTool, SaysOverWhichChannelTheLinksWereMeasured) {
  const std::string said = "links measured over gloo";
  EXPECT_THAT(predict("graph.json topology.json plan.json -o p.json").err, Not(HasSubstr(said)));
  Topology topology = testing::flat_topology(2, 1000);
  topology.levels.front().link.channel = "gloo";
  folder_.write("gloo.json", format::topology_json(topology));
  EXPECT_THAT(predict("graph.json gloo.json plan.json -o p2.json").err, HasSubstr(said));
}

TEST_F(PredictTool, RefusesAProfileThatIsNotTrusted) {
  Graph graph = format::parse_graph(folder_.read("graph.json"), "graph.json");
  graph.quality = ProfileQuality{};
  folder_.write("trusted.json", format::graph_json(graph));
  graph.quality->trusted = false;
  graph.quality->reasons = {"2 records were dropped", "5 % of the time belongs to no layer"};
  folder_.write("untrusted.json", format::graph_json(graph));
  const Outcome trusted = predict("trusted.json topology.json plan.json");
  EXPECT_EQ(trusted.status, 0) << trusted.err;
  EXPECT_THAT(trusted.err, Not(HasSubstr("not trusted")));
  for (const std::string verb : {"predict", "explain", "whatif --set microbatches=2", "calibrate"}) {
    const bool calibrates = verb == "calibrate";
    const Outcome refused = folder_.run("stagecraft-" + verb + " untrusted.json topology.json plan.json" +
                                        (calibrates ? " measured.json -o -" : ""));
    EXPECT_EQ(refused.status, 1) << verb;
    EXPECT_THAT(refused.err,
                EndsWith(": untrusted.json: the profile is not trusted: 2 records were dropped; 5 % of "
                         "the time belongs to no layer; profile again, or add --accept-untrusted [SC2003]\n"));
  }
  const Outcome untrusted = predict("untrusted.json topology.json plan.json --accept-untrusted");
  EXPECT_EQ(untrusted.status, 0) << untrusted.err;
  EXPECT_EQ(untrusted.err,
            "stagecraft-predict: warning: untrusted.json is not trusted; stagecraft doctor says why\n" + trusted.err);
}

TEST_F(PredictTool, RefusesLinksThatAreNotTrusted) {
  Topology topology = format::parse_topology(folder_.read("topology.json"), "topology.json");
  topology.levels.front().link.distrust = {"8 of 15 medians are uncertain by more than 10 %"};
  folder_.write("busy.json", format::topology_json(topology));
  const Outcome trusted = predict("graph.json topology.json plan.json");
  for (const std::string verb : {"predict", "explain", "whatif --set microbatches=2", "calibrate"}) {
    const bool calibrates = verb == "calibrate";
    const Outcome refused = folder_.run("stagecraft-" + verb + " graph.json busy.json plan.json" +
                                        (calibrates ? " measured.json -o -" : ""));
    EXPECT_EQ(refused.status, 1) << verb;
    EXPECT_THAT(refused.err,
                EndsWith(": busy.json: the links are not trusted: 8 of 15 medians are uncertain by more than 10 %; "
                         "measure them again, or add --accept-untrusted [SC2009]\n"));
  }
  const Outcome accepted = predict("graph.json busy.json plan.json --accept-untrusted");
  EXPECT_EQ(accepted.status, 0) << accepted.err;
  EXPECT_EQ(accepted.err,
            "stagecraft-predict: warning: the links are not trusted; stagecraft doctor says why\n" + trusted.err);
  Graph graph = format::parse_graph(folder_.read("graph.json"), "graph.json");
  graph.quality = ProfileQuality{};
  graph.quality->trusted = false;
  folder_.write("untrusted.json", format::graph_json(graph));
  EXPECT_EQ(predict("untrusted.json busy.json plan.json --accept-untrusted").err,
            "stagecraft-predict: warning: untrusted.json and the links are not trusted; stagecraft doctor says why\n" +
                trusted.err);
}

TEST_F(PredictTool, PutsATableThatIsTooWideIntoTwo) {
  const auto lines = [](const std::string& text) {
    std::vector<std::string> out;
    std::istringstream in(text);
    for (std::string line; std::getline(in, line);) out.push_back(line);
    return out;
  };
  const std::vector<std::string> narrow = lines(predict("graph.json topology.json plan.json").err);
  for (const std::string& line : narrow) EXPECT_LE(line.size(), 80U) << line;
  EXPECT_THAT(narrow, ::testing::Contains(::testing::StartsWith("stage peak memory")));
  const Outcome wide = folder_.run("COLUMNS=120 stagecraft-predict graph.json topology.json plan.json");
  EXPECT_EQ(lines(wide.err).size(), 7U)
      << wide.err;  // the step, its interval in two lines, the titles, two stages, a note on the columns
}

TEST_F(PredictTool, PutsThePredictionOnStandardOutput) {
  const Outcome o = predict("graph.json topology.json plan.json -o -");
  EXPECT_EQ(o.status, 0);
  EXPECT_GT(format::parse_prediction(o.out, "out").iteration, 15_s);  // with transfers
}

TEST_F(PredictTool, WritesOneChakraTracePerRank) {
  const Outcome o = predict("graph.json topology.json plan.json --chakra traces");
  EXPECT_EQ(o.status, 0) << o.err;
  // After the length of the metadata: field 1, the version.
  EXPECT_EQ(folder_.read("traces/chakra.0.et").substr(1, 7),
            "\x0a\x05"
            "0.0.4");
  EXPECT_NE(folder_.read("traces/chakra.0.et"), folder_.read("traces/chakra.1.et"));
  EXPECT_EQ(folder_.read("traces/comm_groups.json"), "{}\n");
}

TEST_F(PredictTool, RefusesTimesOfAnotherDeviceUnlessTheyAreAccepted) {
  // Like the fixture's graph, but measured on a host with two processors, where two ranks take twice as long.
  Graph graph = format::parse_graph(folder_.read("graph.json"), "graph.json");
  graph.device = {"AMD EPYC", DeviceKind::Processor, 2};
  graph.slowdown = {1, 2};
  folder_.write("graph.json", format::graph_json(graph));
  Topology gpus = testing::flat_topology(2, 1000);
  gpus.device.name = "H100-80GB";
  gpus.device.kind = DeviceKind::Gpu;
  folder_.write("gpus.json", format::topology_json(gpus));
  const Outcome refused = predict("graph.json gpus.json plan.json -o p.json");
  EXPECT_EQ(refused.status, 1);
  EXPECT_THAT(
      refused.err,
      HasSubstr("stagecraft-predict: graph.json: the graph was measured on a processor (AMD EPYC), the topology's "
                "devices are GPUs (H100-80GB); profile the model on such a device (stagecraft profile MODEL --device "
                "cuda), estimate its times there (stagecraft estimate), or use --accept-other-device to take these "
                "times without the slowdown of shared hosts"));
  const Outcome o = predict("graph.json gpus.json plan.json --free-transfers --accept-other-device -o p.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("step ~15.0 s, ~1.3 samples per second (~0.7 per device), idle ~20.0 %"));
  EXPECT_THAT(o.err, ::testing::ContainsRegex("\n +0 +1 +~1.00 s +~2.00 s +~12.0 s "));
  EXPECT_THAT(o.err, HasSubstr("~ marks figures that were not measured on this topology's devices: the graph was "
                               "measured on a processor (AMD EPYC)"));
  EXPECT_EQ(format::parse_prediction(folder_.read("p.json"), "p.json").other_device,
            "the graph was measured on a processor (AMD EPYC), the topology's devices are GPUs (H100-80GB)");
  // The fixture's topology does not describe its hosts: the slowdown applies, and a note says so.
  const Outcome unknown = predict("graph.json topology.json plan.json --free-transfers");
  EXPECT_EQ(unknown.status, 0) << unknown.err;
  EXPECT_THAT(unknown.err, HasSubstr("step 24.0 s"));  // see below
  EXPECT_THAT(unknown.err, HasSubstr("note: assuming that ranks on one host slow each other down as on the host where "
                                     "the graph was measured, which has 2 processors"));
}

// Half speed wherever both compute. Stage 0 forwards 0-1, 1-3; stage 1 forwards 1-3 and then, undisturbed, backwards
// 3-5. Two periods of 6 s follow in which both run a forward and a backward, 5-17. Stage 1 forwards 17-19 and backwards
// 19-22, at half speed until stage 0's third backward ends at 21; stage 0's last backward is 22-24. Forwards of stage 0
// take 1 + 2 + 2 + 2 s, 1.75 s on average; its backwards 4 + 4 + 4 + 2 s: 3.5 s. Stage 1: 2 + 2 + 2 + 2 and 2 + 4 + 4 +
// 3 s: 2 and 3.25 s.
TEST_F(PredictTool, CountsTheSlowdownInForwardAndBackwardAsInCompute) {
  Graph graph = format::parse_graph(folder_.read("graph.json"), "graph.json");
  graph.slowdown = {1, 2};
  folder_.write("graph.json", format::graph_json(graph));
  const Outcome o = predict("graph.json topology.json plan.json --free-transfers -o p.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, HasSubstr("step 24.0 s"));
  EXPECT_THAT(o.err, ::testing::ContainsRegex("\n +0 +1 +1.75 s +3.50 s +21.0 s "));
  EXPECT_THAT(o.err, ::testing::ContainsRegex("\n +1 +1 +2.00 s +3.25 s +21.0 s "));
  for (const StagePrediction& s : format::parse_prediction(folder_.read("p.json"), "p.json").stages)
    EXPECT_DOUBLE_EQ(((s.forward + s.backward) * 4).value, s.compute.value);
}

TEST_F(PredictTool, RefusesAGraphWithoutTimes) {
  Graph graph = format::parse_graph(folder_.read("graph.json"), "graph.json");
  graph.options = {{"width", "8"}};
  for (Layer& layer : graph.layers) layer.forward = layer.backward = Timing{};
  folder_.write("structure.json", format::graph_json(graph));
  const Outcome o = predict("structure.json topology.json plan.json");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.err,
            "stagecraft-predict: structure.json: every layer takes 0 s (the graph was written by profile --structure); "
            "estimate its times with stagecraft estimate GRAPH --device NAME, or measure the model with stagecraft "
            "profile chain --set width=8 --microbatch 5 -o graph.json [SC2005]\n");
}

// Three devices, two replicas and one microbatch.
TEST_F(PredictTool, NamesUnusedDevices) {
  const Graph graph = testing::chain_graph({1}, {2});
  const Topology topology = testing::flat_topology(3);
  folder_.write("one.json", format::graph_json(graph));
  folder_.write("three.json", format::topology_json(topology));
  folder_.write("two.json", format::plan_json(testing::one_layer_a_stage(graph, topology, {2}, "1f1b", 1)));
  const Outcome o = predict("one.json three.json two.json -o p.json");
  EXPECT_THAT(o.err, HasSubstr("note: 2 of 3 devices are idle: 1 has no microbatch, 2 is not in any stage\n"));
  EXPECT_THAT(o.err, HasSubstr("idle 50.0 %"));
  const auto json = nlohmann::json::parse(folder_.read("p.json"));
  EXPECT_EQ(json["devices"], 3);
  EXPECT_EQ(json["idle_devices"], nlohmann::json::array({1}));
  EXPECT_EQ(json["unused_devices"], nlohmann::json::array({2}));
  EXPECT_THAT(predict("graph.json topology.json plan.json").err, ::testing::Not(HasSubstr("do nothing")));
}

TEST_F(PredictTool, MarksAStageThatMayNotFit) {
  ASSERT_EQ(predict("graph.json topology.json plan.json -o p.json").status, 0);
  Bytes most;
  Bytes bound;
  for (const StagePrediction& stage : format::parse_prediction(folder_.read("p.json"), "p.json").stages) {
    most = std::max(most, stage.memory.total);
    bound = std::max(bound, stage.memory_bound);
  }
  Topology topology = testing::flat_topology(2);
  const auto said = [&](Bytes memory) {
    topology.device.memory = memory;
    folder_.write("limited.json", format::topology_json(topology));
    const Outcome o = predict("graph.json limited.json plan.json --force -o limited-p.json");
    bool fits = true;
    for (const StagePrediction& stage : format::parse_prediction(folder_.read("limited-p.json"), "").stages)
      fits = fits && stage.fits;
    EXPECT_EQ(fits, o.err.find("fit") == std::string::npos);
    return o.err;
  };
  EXPECT_THAT(said(bound - 1_B), HasSubstr("may not fit, up to "));
  EXPECT_THAT(said(bound), Not(HasSubstr("fit")));
  EXPECT_THAT(said(most - 1_B), HasSubstr("does not fit"));
}

TEST_F(PredictTool, MarksAStageThatDoesNotFit) {
  Topology small = testing::flat_topology(2);
  small.device.memory = 10_B;
  folder_.write("small.json", format::topology_json(small));
  EXPECT_THAT(predict("graph.json small.json plan.json").err, HasSubstr("does not fit"));
  EXPECT_THAT(predict("graph.json topology.json plan.json").err, ::testing::Not(HasSubstr("does not fit")));
}

TEST_F(PredictTool, TakesStepsOfAMillionMicrobatches) {
  plan_.microbatches = 1'000'000;
  folder_.write("long.json", format::plan_json(plan_));
  const Outcome o = predict("graph.json topology.json long.json --free-transfers -o p.json");
  EXPECT_EQ(o.status, 0) << o.err;
  // (M + 1) periods of 3 s.
  EXPECT_NEAR(format::parse_prediction(folder_.read("p.json"), "p.json").iteration.value, 3'000'003, 0.003);
  EXPECT_THAT(o.err, HasSubstr(" of 1000000 microbatches; the step repeats itself"));
  const Outcome chakra = predict("graph.json topology.json long.json --chakra traces");
  EXPECT_EQ(chakra.status, 1);
  EXPECT_THAT(chakra.err, HasSubstr("--chakra traces: needs all microbatches of a step, "));
  plan_.schedule = "gpipe";
  folder_.write("gpipe.json", format::plan_json(plan_));
  const Outcome gpipe = predict("graph.json topology.json gpipe.json");
  EXPECT_EQ(gpipe.status, 1);
  EXPECT_THAT(gpipe.err,
              HasSubstr("gpipe.json: 1000000 microbatches: the 2 stages of schedule \"gpipe\" do not repeat"));
  EXPECT_THAT(gpipe.err, HasSubstr("the limit is 524288"));  // 2^20 / 2
}

TEST_F(PredictTool, EndsWithOneOnBadInput) {
  plan_.stages[1].devices = {7};
  folder_.write("far.json", format::plan_json(plan_));
  folder_.write("text.json", "a plan");
  for (const auto& [arguments, message] : std::vector<std::pair<std::string, std::string>>{
           {"nowhere.json topology.json plan.json", "stagecraft-predict: nowhere.json: "},
           {"graph.json graph.json plan.json",
            "graph.json: /format: found \"stagecraft.graph\", expected \"stagecraft.topology\""},
           {"graph.json topology.json text.json", "stagecraft-predict: text.json: line 1 column 1: not JSON"},
           {"graph.json topology.json far.json",
            "stagecraft-predict: far.json: stage 1: device 7 does not exist, topology \"flat\" has 0..1"}}) {
    const Outcome o = predict(arguments);
    EXPECT_EQ(o.status, 1) << arguments;
    EXPECT_THAT(o.err, HasSubstr(message));
    EXPECT_EQ(o.out, "");
  }
}

TEST_F(PredictTool, EndsWithTwoOnWrongUsage) {
  EXPECT_EQ(predict("graph.json topology.json").status, 2);
  EXPECT_THAT(predict("graph.json topology.json").err,
              HasSubstr("PLAN is required [SC1003]\nsee stagecraft predict --help"));
  EXPECT_THAT(predict("graph.json plan.json").err,
              HasSubstr("TOPOLOGY is required: plan.json is the plan; give the topology before it, or --devices "
                        "[SC1003]\nsee stagecraft predict --help"));
  EXPECT_EQ(predict("graph.json topology.json plan.json --magic").status, 2);
  EXPECT_THAT(predict("--help").out, HasSubstr("Example:\n  stagecraft predict graph.json topology.json plan.json"));
}

}  // namespace
}  // namespace stagecraft
