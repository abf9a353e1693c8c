#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "costmodel/format/files/files.h"
#include "costmodel/format/graph_json.h"
#include "costmodel/format/plan_json.h"
#include "costmodel/format/topology_json.h"
#include "tests/support/pipedream_cases.h"
#include "tests/support/places.h"
#include "tests/support/run_command.h"

// stagecraft-plan --objective-profile as a user runs it.

namespace stagecraft {
namespace {

using ::testing::HasSubstr;
using testing::Outcome;
using ::testing::StartsWith;

const std::string kBert = source_folder() + "/tests/data/dnn-partitioning/bert24_inference.json";
const std::string kPiper = source_folder() + "/tests/data/piper/two_layers.json";

class ObjectiveTool : public ::testing::Test {
 protected:
  ObjectiveTool() {
    folder_.write("graph.json",
                  format::graph_json(read_pipedream_profile(source_folder() + "/tests/golden/pipedream", "vgg16")));
    folder_.write("topology.json", format::topology_json(levels_topology({4}, {1e9})));
  }
  Outcome plan(const std::string& arguments) const {
    return folder_.run("stagecraft-plan --objective-profile " + arguments);
  }
  nlohmann::json answer(const std::string& arguments) const {
    const Outcome outcome = plan(arguments + " --json");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    return nlohmann::json::parse(outcome.out);
  }
  testing::CommandFolder folder_;
};

TEST_F(ObjectiveTool, PlansAPublishedInput) {
  // Node 4 feeds every layer, but its output is free. The slowest device has nodes 21 to 25,
  // 3.597 + 3.541 + 3.547 + 3.542 + 3.559 ms, and a transfer of 2^22 / 2^31 "ms" at each end.
  const nlohmann::json published = answer("max-load --from-problem " + kBert);
  EXPECT_NEAR(published["value_s"].get<double>(), 1e-3 * (17.786 + 2 * 0.001953125), 1e-15);
  EXPECT_EQ(published["value_s"], published["lower_bound_s"]);
  EXPECT_EQ(published["exact"], true);
  EXPECT_EQ(published["gap"], 0);
  EXPECT_EQ(published["notes"][0], "transfer costs are read as published, in milliseconds");
  // With transfers of 1.953125 ms: nodes 1 to 9, 0.696 + 3.598 + 3.608 + 3.584 + 3.576 + 3.576 ms, and one transfer.
  const nlohmann::json fixed = answer("max-load --units fixed --from-problem " + kBert);
  EXPECT_NEAR(fixed["value_s"].get<double>(), 1e-3 * (18.638 + 1.953125), 1e-15);
  EXPECT_EQ(fixed["exact"], true);
}

TEST_F(ObjectiveTool, PrintsValueBoundAndGap) {
  const Outcome outcome = plan("max-load --from-problem " + kBert);
  EXPECT_EQ(outcome.status, 0);
  EXPECT_THAT(outcome.out, StartsWith("max-load of " + kBert +
                                      ": 0.0177899062 seconds per sample of the slowest "
                                      "device\nlower bound 0.0177899062, gap 0 %: exact\n"));
  EXPECT_THAT(outcome.out, HasSubstr("28 nodes, 30 down-sets, "));
  const Outcome listed = plan("max-load --most-downsets 5 --from-problem " + kBert);
  EXPECT_THAT(listed.out, HasSubstr("more than 5 down-sets: the best cut of two depth-first orders as lists\n"));
  EXPECT_THAT(listed.out, ::testing::Not(HasSubstr("exact")));
}

TEST_F(ObjectiveTool, TakesAnotherNumberOfAccelerators) {
  const nlohmann::json one = answer("max-load -n 1 --from-problem " + kBert);
  EXPECT_LE(one["stages"].size(), 2U);
  EXPECT_GT(one["value_s"].get<double>(), 0.05);
}

TEST_F(ObjectiveTool, PlansAnInputOfPiper) {
  // Layers of 0.03 and 0.06 s on 4 devices: one stage with 4 replicas takes 0.09 / 4, and 4 * 3 / 4 of 150 bytes over
  // 12 microbatches at 25e9 bytes/s, 1.5e-9 s.
  const nlohmann::json found = answer("piper --from-problem " + kPiper);
  EXPECT_NEAR(found["value_s"].get<double>(), 0.0225 + 1.5e-9, 1e-15);
  EXPECT_EQ(found["stages"][0]["replicas"], 4);
  EXPECT_EQ(found["stages"][0]["modes"]["vanilla"], 2);
}

TEST_F(ObjectiveTool, PlansAGraphByEveryProfile) {
  for (const char* profile : {"dapple", "flush", "gpipe", "max-load", "piper", "pipedream-parity"}) {
    const nlohmann::json found = answer(std::string(profile) + " graph.json topology.json -o plan.json --force");
    EXPECT_EQ(found["format"], "stagecraft.objective");
    EXPECT_EQ(found["profile"], profile);
    EXPECT_EQ(found["exact"], true) << profile;
    EXPECT_GT(found["value_s"].get<double>(), 0) << profile;
    const Plan plan = format::parse_plan(folder_.read("plan.json"), "plan.json");
    EXPECT_EQ(plan.stages.size(), found["stages"].size()) << profile;
    EXPECT_EQ(plan.strategy, profile);
  }
}

TEST_F(ObjectiveTool, RepeatsPipedreamsAnswer) {
  // The reference value of PipeDream's optimizer for vgg16 on 4 devices at 1e9 bytes/s.
  EXPECT_NEAR(
      answer("pipedream-parity graph.json -n 4 -b 1e9 --activation-compression-ratio 1")["value_s"].get<double>(),
      0.205520896, 1e-12);
}

TEST_F(ObjectiveTool, AnswersWrongUsageWithStatusTwo) {
  const auto refused = [&](const std::string& arguments, const std::string& message) {
    const Outcome outcome = plan(arguments);
    EXPECT_EQ(outcome.status, 2) << arguments;
    EXPECT_THAT(outcome.err, HasSubstr(message)) << arguments;
  };
  refused("best graph.json topology.json",
          "--objective-profile: unknown objective profile \"best\", known are dapple, flush, gpipe, max-load, "
          "pipedream-parity, piper");
  refused("max-load", "give a graph, or --from-problem");
  refused("max-load graph.json", "give either a topology file or --devices");
  refused("flush --from-problem " + kBert, "profile flush only reads graphs");
  refused("max-load graph.json --from-problem " + kBert, "--from-problem gives the problem; remove it");
  refused("max-load --memory-limit 1GB --from-problem " + kBert, "--memory-limit: only valid with a graph");
  refused("max-load graph.json topology.json --units fixed", "--units: only valid with --from-problem");
  refused("max-load --units metric --from-problem " + kBert, "unknown units \"metric\"");
}

TEST_F(ObjectiveTool, NamesTheFileOfABadProblem) {
  folder_.write("bad.json", "{\"maxSizePerFPGA\": 1}");
  const Outcome bad = plan("max-load --from-problem bad.json");
  EXPECT_EQ(bad.status, 1);
  EXPECT_EQ(bad.err, "stagecraft-plan: bad.json: /: key \"maxFPGAs\" is missing [SC1203]\n");
  const Outcome full = plan("max-load graph.json topology.json --memory-limit 1MB");
  EXPECT_EQ(full.status, 1);
  EXPECT_EQ(full.err,
            "stagecraft-plan: graph.json: no division into contiguous stages fits the devices' memory [SC2102]\n");
}

}  // namespace
}  // namespace stagecraft
