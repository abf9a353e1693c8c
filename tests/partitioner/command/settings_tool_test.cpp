#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "costmodel/format/files/outputs.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/partitioner/plan_command_test.h"
#include "tests/support/chains.h"

// stagecraft plan --settings as a user runs it.

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;

class SettingsTool : public testing::PlanCommandTest {
 protected:
  SettingsTool() {
    folder_.write("topology.json", format::topology_json(testing::flat_topology(2)));
    folder_.write("graph.json", format::graph_json(of_samples(2)));
    folder_.write("graph-4.json", format::graph_json(of_samples(4)));
    Graph bare = of_samples(2);
    bare.microbatch_samples.reset();
    folder_.write("bare.json", format::graph_json(bare));
  }
  /// Four layers: a microbatch takes 1 s in each and 1 s more per sample.
  static Graph of_samples(int samples) {
    const std::vector<double> forward(4, 1.0 * samples);
    Graph out = testing::chain_graph(forward, std::vector<double>(4, 1), 100_B * samples, 64_B);
    for (Layer& layer : out.layers) layer.saved_bytes = 1000_B * samples;
    out.microbatch_samples = samples;
    return out;
  }
};

// Under any schedule, all layers on both devices: of eight samples in two microbatches of 4 each device has one, which
// takes 4 * 5 s; in four of 2, two of 4 * 3 s; a pipeline has a bubble on top of as much work.
TEST_F(SettingsTool, FindsTheBestMicrobatchSize) {
  const Outcome o =
      plan("graph.json topology.json --global-batch 8 --settings best --more-graphs graph-4.json --force -o plan.json");
  EXPECT_EQ(o.status, 0) << o.err;
  const Plan best = format::parse_plan(folder_.read("plan.json"), "plan.json");
  EXPECT_EQ(best.microbatch_samples, 4);
  EXPECT_EQ(best.microbatches, 2);
  // The last layer's gradients, 64 B, in a bucket of their own: 2 * 32 B at 1e9 B/s.
  EXPECT_NEAR(best.iteration->value, 20 + 64e-9, 1e-12);
  EXPECT_EQ(best.lower_bound, best.iteration);
  EXPECT_THAT(best.provenance.notes.at("settings"), HasSubstr("2 microbatches of 4 samples"));
  EXPECT_THAT(o.err, AllOf(HasSubstr("2 x 4 "), HasSubstr("20.0 s"), HasSubstr(" best\n"),
                           HasSubstr("the best possible on these devices"),
                           HasSubstr("only microbatches of 2 to 4 samples are tried"),
                           HasSubstr("note: the plan has microbatches of 4 samples, measured with microbatches of 4 "
                                     "samples; to predict it, use graph-4.json\n")));
  EXPECT_EQ(folder_.run("stagecraft-verify plan.json --graph graph-4.json --topology topology.json").status, 0);
}

// A profile that ran out of time has no slowdown: its layers look as fast beside another rank as alone.
TEST_F(SettingsTool, WarnsAboutAProfileWithoutSlowdown) {
  Graph slowed = of_samples(2);
  slowed.slowdown = {1, 1.5};
  folder_.write("slowed.json", format::graph_json(slowed));
  const std::string rest = " topology.json --global-batch 8 --settings best --more-graphs ";
  const std::string warning =
      "warning: graph-4.json: the slowdown of 2 ranks on one host was not measured, as it was for microbatches of 2 "
      "samples; steps of this size look too short; profile it again with a larger --max-seconds\n";
  EXPECT_THAT(plan("slowed.json" + rest + "graph-4.json").err, HasSubstr(warning));
  EXPECT_THAT(plan("graph-4.json" + rest + "slowed.json").err, HasSubstr(warning));
  EXPECT_THAT(plan("graph.json" + rest + "graph-4.json").err, ::testing::Not(HasSubstr("slowdown")));
}

TEST_F(SettingsTool, InterpolatesBetweenProfiles) {
  Graph large = of_samples(8);
  for (Layer& layer : large.layers) layer.forward.median = 130_s;
  folder_.write("graph-8.json", format::graph_json(large));
  Graph small = of_samples(2);
  for (Layer& layer : small.layers) layer.forward.median = 100_s;
  folder_.write("slow.json", format::graph_json(small));
  const Outcome o =
      plan("slow.json topology.json --global-batch 8 --settings best --more-graphs graph-8.json -o plan.json");
  EXPECT_EQ(o.status, 0) << o.err;
  // A layer takes 110 + 1 s: two microbatches, one on each device, 4 * 111 s. One of 8 takes 4 * 131 s, four of 2, two
  // on each device, 8 * 101 s.
  EXPECT_EQ(format::parse_plan(folder_.read("plan.json"), "plan.json").microbatch_samples, 4);
  EXPECT_THAT(o.err,
              HasSubstr("interpolated between profiles with microbatches of 2 and 8 samples; to predict it, use "
                        "the graph of: stagecraft estimate slow.json --more-graphs graph-8.json --microbatch 4\n"));
  const Outcome estimated =
      folder_.run("stagecraft-estimate slow.json --more-graphs graph-8.json --microbatch 4 -o graph-4b.json");
  EXPECT_EQ(estimated.status, 0) << estimated.err;
  EXPECT_EQ(folder_.run("stagecraft-verify plan.json --graph graph-4b.json --topology topology.json").status, 0);
}

TEST_F(SettingsTool, TriesOneSizeOfOneProfile) {
  const Outcome o = plan("graph.json topology.json --global-batch 8 --settings best");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(format::parse_plan(o.out, "out").microbatches, 4);
  EXPECT_THAT(o.err, AllOf(HasSubstr("only microbatches of 2 samples are tried: for others, add profiles"),
                           Not(HasSubstr("to predict it"))));
  EXPECT_EQ(plan("bare.json topology.json --microbatches 4 --settings best").status, 0);
}

TEST_F(SettingsTool, IsNeverWorseThanTheSameCommandWithoutIt) {
  for (const std::string options : {"", " --schedule gpipe", " --recompute", " --memory-limit 14000", " --stages 2"}) {
    const std::string command = "graph.json topology.json --global-batch 8" + options;
    const Outcome alone = plan(command);
    const Outcome best = plan(command + " --settings best --more-graphs graph-4.json");
    EXPECT_EQ(alone.status, 0) << options << alone.err;
    EXPECT_EQ(best.status, 0) << options << best.err;
    EXPECT_LE(format::parse_plan(best.out, "out").iteration->value,
              format::parse_plan(alone.out, "out").iteration->value * (1 + 1e-9))
        << options;
  }
}

TEST_F(SettingsTool, KeepsSettingsThatAreGiven) {
  const Outcome o = plan(
      "graph.json topology.json --global-batch 8 --settings best --schedule gpipe,1f1b --recompute-every 2 "
      "--gradient-bucket-bytes 100 --memory-limit 100000 --json");
  EXPECT_EQ(o.status, 0) << o.err;
  const auto list = nlohmann::json::parse(o.out);
  EXPECT_EQ(list["settings"].size(), 2U);
  for (const auto& setting : list["settings"]) {
    EXPECT_EQ(setting["recompute_every"], 2);
    EXPECT_EQ(setting["gradient_bucket_bytes"], 100);
    EXPECT_TRUE(setting["schedule"] == "gpipe" || setting["schedule"] == "1f1b");
  }
}

// All eight samples' activations, 4 * 1000 B each, on two devices: at least 16000 B without recomputation under gpipe.
TEST_F(SettingsTool, RecomputesWhereMemoryIsShort) {
  const std::string command =
      "graph.json topology.json --global-batch 8 --schedule gpipe --memory-limit 15000 --more-graphs graph-4.json";
  const Outcome o = plan(command + " --settings best");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_TRUE(format::parse_plan(o.out, "out").stages[0].recompute);
  refuses("graph.json topology.json --global-batch 8 --settings best --memory-limit 100", 1, "no plan with any of ");
}

TEST_F(SettingsTool, ListsTenSettingsUnlessAllAreAskedFor) {
  const std::string command = "graph.json topology.json --global-batch 8 --memory-limit 100000 --settings best";
  const auto lines = [](const std::string& text) { return std::count(text.begin(), text.end(), '\n'); };
  const Outcome ten = folder_.run("COLUMNS=200 stagecraft-plan " + command + " -o p.json");
  const Outcome all = folder_.run("COLUMNS=200 stagecraft-plan " + command + " --all --json -o p.json --force");
  EXPECT_THAT(ten.err, HasSubstr("more; --all shows them\n"));
  EXPECT_THAT(all.err, Not(HasSubstr("more; --all shows them")));
  EXPECT_EQ(format::text_kind(all.out), "stagecraft.plans");
  const auto list = nlohmann::json::parse(all.out);
  EXPECT_EQ(list["list"], "settings");
  EXPECT_EQ(list["settings"][0]["outcome"], "best");
  EXPECT_EQ(list["plans"].size(), 1U);
  EXPECT_EQ(list["settings"][0]["step_s"], list["plans"][0]["step_s"]);
  EXPECT_EQ(lines(all.err) - lines(ten.err), static_cast<std::ptrdiff_t>(list["settings"].size()) - 10 - 1);
}

TEST_F(SettingsTool, NamesWrongUsage) {
  const std::string command = "graph.json topology.json --global-batch 8 --settings best ";
  refuses("graph.json topology.json --settings all", 2, "--settings: found all, expected best");
  refuses("graph.json topology.json --more-graphs graph-4.json --global-batch 8", 2,
          "--more-graphs: only valid with --settings best and --global-batch");
  refuses("graph.json topology.json --settings best --more-graphs graph-4.json", 2,
          "--more-graphs: only valid with --settings best and --global-batch");
  refuses(command + "--strategy auto", 2, "--settings: searches with strategy optimal; remove --strategy auto");
  refuses(command + "--straight-pipeline", 2, "--settings: searches with strategy optimal; remove ");
  refuses(command + "--split-at l1", 2, "--settings: searches stages too; remove --split-at, --from and --improve");
  for (const char* option :
       {"--top 3", "--front", "--explain", "--objective cost", "--pin l1=0", "--min-throughput 1"}) {
    refuses(command + option, 2,
            "--settings: finds the plan with the shortest step; remove other options that choose among plans");
  }
  refuses(command + "--schedule 1f1b --chunks 2", 2, "--chunks: schedule 1f1b runs one stage per device");
  refuses(command + "--schedule csv:s.csv", 2, "--settings: action lists set the schedule and the microbatches");
  refuses(command + "--schedule magic", 2, "--schedule: unknown schedule \"magic\", known are");
  refuses(command + "--more-graphs none.json", 1, "none.json: ");
  refuses(command + "--more-graphs graph.json", 1, "there are two profiles with microbatches of 2 samples");
  refuses(
      "graph.json topology.json --global-batch 7 --settings best", 1,
      "graph.json: no microbatch of 2 samples divides --global-batch 7; choose a global batch that is a multiple of "
      "2, or add profiles with other sizes by --more-graphs");
  refuses("bare.json topology.json --global-batch 8 --settings best", 1,
          "bare.json: a profile does not give the samples of its microbatch");
}

}  // namespace
}  // namespace stagecraft
