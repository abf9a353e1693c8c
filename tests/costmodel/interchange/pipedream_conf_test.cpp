#include "costmodel/interchange/pipedream_conf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/errors.h"
#include "costmodel/interchange/pipedream.h"
#include "tests/costmodel/interleavings.h"

namespace stagecraft::interchange {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string refusal(const std::string& text) {
  try {
    (void)parse_pipedream_conf(text, "conf.json");
  } catch (const FormatError& e) { return e.what(); }
  return "";
}

/// {"module_to_stage_map": MODULES, "stage_to_rank_map": RANKS}.
std::string conf(const std::string& modules, const std::string& ranks, const std::string& more = "") {
  return "{\"module_to_stage_map\": " + modules + ", \"stage_to_rank_map\": " + ranks + more + "}";
}

// The layout of PipeDream's files, such as runtime/translation/models/gnmt_large/gpus=4/mp_conf.json.
TEST(PipedreamConfs, AreTheThreeOfAConversion) {
  const PipedreamConfs confs = pipedream_confs(testing::row_plan("pipedream", {3, 1}, 4));
  EXPECT_EQ(pipedream_conf_text(confs.data_parallel),
            "{\n"
            "    \"module_to_stage_map\": [0, 0, 0],\n"
            "    \"stage_to_rank_map\": {\"0\": [0, 1, 2, 3]}\n"
            "}\n");
  EXPECT_EQ(pipedream_conf_text(confs.model_parallel),
            "{\n"
            "    \"module_to_stage_map\": [0, 1, 1],\n"
            "    \"stage_to_rank_map\": {\"0\": [0], \"1\": [1]}\n"
            "}\n");
  EXPECT_EQ(pipedream_conf_text(confs.hybrid),
            "{\n"
            "    \"module_to_stage_map\": [0, 1, 1],\n"
            "    \"stage_to_rank_map\": {\"0\": [0, 1, 2], \"1\": [3]}\n"
            "}\n");
}

// One microbatch in flight for each of stage 0's three replicas fills stage 1: warm-ups ceil(1 / 3) = 1 and 0, as in
// PipeDream's vgg16/gpus=4/hybrid_conf.json.
TEST(PipedreamConfs, CarryTheWarmUpsWhereAsked) {
  EXPECT_THAT(pipedream_confs(testing::row_plan("pipedream", {3, 1}, 4), true).hybrid.depths, ElementsAre(1, 0));
  EXPECT_THAT(pipedream_confs(testing::row_plan("pipedream", {3, 1}, 4), true).model_parallel.depths, IsEmpty());
}

TEST(PipedreamConfs, RankTheDevicesByTheirNumbers) {
  Plan plan = testing::row_plan("pipedream", {2, 1}, 4);
  plan.stages[0].devices = {9, 2};
  plan.stages[1].devices = {4};
  const PipedreamConfs confs = pipedream_confs(plan);
  EXPECT_THAT(confs.hybrid.ranks, ElementsAre(ElementsAre(2, 0), ElementsAre(1)));
}

TEST(PipedreamConfs, HaveOneStageWhereThePlanHas) {
  const PipedreamConfs confs = pipedream_confs(testing::row_plan("pipedream", {2}, 4));
  EXPECT_EQ(confs.hybrid, confs.data_parallel);
  EXPECT_THAT(confs.hybrid.module_to_stage, ElementsAre(0, 0));
}

TEST(PipedreamConfs, RefuseInterleavedStages) {
  try {
    (void)pipedream_confs(testing::row_plan("interleaved-1f1b", {1, 1, 1, 1}, 4, 2));
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(), "the plan has 2 stages on each device, PipeDream's runtime runs one on each rank");
  }
}

TEST(PipedreamConfWarnings, SayWhatTheRuntimeDoesDifferently) {
  Plan plan = testing::row_plan("pipedream", {1, 1, 1}, 4);
  EXPECT_THAT(pipedream_conf_warnings(plan), IsEmpty());
  plan.schedule = "1f1b";
  plan.stages[0].recompute = true;
  plan.dtype = "bfloat16";
  plan.boundaries.push_back({0, 2, {{"l0", 0, Bytes(8), {}, "float32", true}}});
  EXPECT_THAT(pipedream_conf_warnings(plan),
              ElementsAre(HasSubstr("schedule \"1f1b\" is lost"), HasSubstr("recomputation"), HasSubstr("in bfloat16"),
                          "two later stages read layer \"l0\", PipeDream's runtime delivers it only to the last one"));
}

// The shapes that PipeDream's files have: several modules per stage, non-consecutive ranks, depths.
TEST(ParsePipedreamConf, TakesWhatPipeDreamShips) {
  const PipedreamConf read =
      parse_pipedream_conf(conf("[0, 0, 1, 1, 2, 2]", "{\"0\": [0, 1, 4, 5], \"1\": [2, 6], \"2\": [3, 7]}",
                                ", \"stage_to_depth_map\": {\"2\": 0, \"0\": 2, \"1\": 1}"),
                           "conf.json");
  EXPECT_THAT(read.module_to_stage, ElementsAre(0, 0, 1, 1, 2, 2));
  EXPECT_THAT(read.ranks, ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 6), ElementsAre(3, 7)));
  EXPECT_THAT(read.depths, ElementsAre(2, 1, 0));
  EXPECT_EQ(parse_pipedream_conf(pipedream_conf_text(read), "again"), read);
}

TEST(ParsePipedreamConf, NamesThePointerAndWhatWouldBeRight) {
  EXPECT_EQ(refusal(""), "conf.json: is empty, expected a JSON document");
  EXPECT_THAT(refusal("{\"module_to_stage_map\": [0, 0], \"module_to_stage_map\": [0, 0]}"),
              HasSubstr("appears twice"));
  EXPECT_EQ(refusal("{}"), "conf.json: /: key \"module_to_stage_map\" is missing");
  EXPECT_THAT(refusal(conf("[0, 0]", "{\"0\": [0]}", ", \"colour\": 1")), HasSubstr("unknown key \"colour\""));
  EXPECT_EQ(refusal(conf("[0]", "{}")),
            "conf.json: /module_to_stage_map: found 1 modules, expected at least one for a stage and one for the loss");
  EXPECT_EQ(refusal(conf("[0, 2, 2]", "{}")),
            "conf.json: /module_to_stage_map: stage 1 has no module, but a later stage does");
  EXPECT_EQ(refusal(conf("[0, 1, 0]", "{}")),
            "conf.json: /module_to_stage_map/2: found stage 0 for the loss, expected the last one, 1");
  EXPECT_EQ(refusal(conf("[0, 1]", "{}")), "conf.json: /module_to_stage_map: stage 1 has no module except the loss");
  EXPECT_EQ(refusal(conf("[0, 1, 1]", "{\"0\": [0]}")), "conf.json: /stage_to_rank_map: stage \"1\" is missing");
  EXPECT_EQ(refusal(conf("[0, 0]", "{\"0\": [0], \"x\": [1]}")),
            "conf.json: /stage_to_rank_map: found stage \"x\", expected 0..0");
  EXPECT_EQ(refusal(conf("[0, 0]", "{\"0\": []}")),
            "conf.json: /stage_to_rank_map/0: found no rank, expected at least one");
  EXPECT_EQ(refusal(conf("[0, 1, 1]", "{\"0\": [0, 1], \"1\": [1]}")),
            "conf.json: /stage_to_rank_map/1/0: rank 1 appears twice");
  EXPECT_EQ(refusal(conf("[0, 1, 1]", "{\"0\": [0, 3], \"1\": [1]}")),
            "conf.json: /stage_to_rank_map/0/1: found 3, expected an integer from 0 to 2");
  EXPECT_EQ(refusal(conf("[0, 0]", "[0]")),
            "conf.json: /stage_to_rank_map: found [0], expected an object with a key for each stage");
  EXPECT_EQ(refusal(conf("[0, 1, 1]", "{\"0\": [0], \"1\": [1]}", ", \"stage_to_depth_map\": {\"0\": 1}")),
            "conf.json: /stage_to_depth_map: stage \"1\" is missing");
}

constexpr const char* kGraph =
    "a -- Input0 -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=0.0, "
    "parameter_size=0.000\n"
    "b -- Linear(8) -- forward_compute_time=1.000, backward_compute_time=1.000, activation_size=8.0, "
    "parameter_size=0.000\n"
    "c -- Linear(8) -- forward_compute_time=1.000, backward_compute_time=1.000, activation_size=8.0, "
    "parameter_size=0.000\n"
    "\ta -- b\n"
    "\tb -- c\n";

TEST(PipedreamConfPartition, IsThatOfThePlanThatTheGraphWasStagedBy) {
  Plan plan = testing::row_plan("pipedream", {2, 1}, 4);
  plan.stages[0].layers = {"b"};
  plan.stages[1].layers = {"c"};
  const Graph staged = staged_graph(parse_pipedream(kGraph, "graph.txt"), plan);
  EXPECT_EQ(staged.layers[0].stage, 0);
  const Partition partition = pipedream_conf_partition(pipedream_confs(plan).hybrid, staged);
  EXPECT_THAT(partition.stage_of_layer, ElementsAre(-1, 0, 1));
  EXPECT_THAT(partition.replicas, ElementsAre(2, 1));
  const Partition together = pipedream_conf_partition(pipedream_confs(plan).data_parallel, staged);
  EXPECT_THAT(together.stage_of_layer, ElementsAre(-1, 0, 0));
  EXPECT_THAT(together.replicas, ElementsAre(3));
}

TEST(PipedreamConfPartition, RefusesAGraphOfAnotherConversion) {
  const PipedreamConf one = parse_pipedream_conf(conf("[0, 1, 1]", "{\"0\": [0], \"1\": [1]}"), "conf.json");
  Graph graph = parse_pipedream(kGraph, "graph.txt");
  const auto refusal_of = [&] {
    try {
      (void)pipedream_conf_partition(one, graph);
    } catch (const std::invalid_argument& e) { return std::string(e.what()); }
    return std::string();
  };
  EXPECT_THAT(refusal_of(), HasSubstr("layer \"b\" of the graph has no stage; use the graph with stage ids"));
  graph.layers[1].stage = graph.layers[2].stage = 0;
  EXPECT_EQ(refusal_of(), "found 2 modules besides the loss, the graph has the stages 0..0");
  graph.layers[2].stage = 2;
  EXPECT_EQ(refusal_of(), "found 2 modules besides the loss, the graph has the stages 0..2");
}

TEST(StagedGraph, NamesALayerThatThePlanLacks) {
  Plan plan = testing::row_plan("pipedream", {1}, 4);
  plan.stages[0].layers = {"b"};
  try {
    (void)staged_graph(parse_pipedream(kGraph, "graph.txt"), plan);
    FAIL();
  } catch (const std::invalid_argument& e) { EXPECT_STREQ(e.what(), "layer \"c\" of the graph is not in any stage"); }
  plan.stages[0].layers = {"b", "c", "d"};
  EXPECT_THROW((void)staged_graph(parse_pipedream(kGraph, "graph.txt"), plan), std::invalid_argument);
}

}  // namespace
}  // namespace stagecraft::interchange
