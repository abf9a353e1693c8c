#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/support/run_command.h"

namespace stagecraft {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr const char* kMeta =
    " -- forward_compute_time=1.000, backward_compute_time=1.000, activation_size=4.0, parameter_size=0.000";

/// Input0 -> Tanh -> Sigmoid, the last two in stages 0 and 1 if `parted`.
std::string graph_text(bool parted) {
  const auto layer = [&](const std::string& head, const char* stage) {
    return head + kMeta + (parted ? stage : "") + "\n";
  };
  return layer("node1 -- Input0", " -- stage_id=0") + layer("node2 -- Tanh()", " -- stage_id=0") +
         layer("node3 -- Sigmoid()", " -- stage_id=1") + "\tnode1 -- node2\n\tnode2 -- node3\n";
}

class ConvertTool : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_.write("graph.txt", graph_text(false));
    folder_.write("parted.txt", graph_text(true));
  }
  testing::Outcome convert(const std::string& arguments) const {
    return folder_.run("stagecraft-convert " + arguments);
  }
  void expect_refusal(const std::string& arguments, const std::string& message, int status = 1) const {
    const testing::Outcome outcome = convert(arguments);
    EXPECT_EQ(outcome.status, status);
    EXPECT_THAT(outcome.err, StartsWith("stagecraft-convert: " + message)) << arguments;
  }
  /// Writes plan.json for graph.txt.
  void plan(const std::string& options) const {
    const testing::Outcome outcome = folder_.run(
        "stagecraft-import pipedream graph.txt -o graph.json && stagecraft-plan graph.json -o plan.json " + options);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
  }

  testing::CommandFolder folder_;
};

TEST_F(ConvertTool, WritesAPackageForAPlan) {
  plan("--devices 3 --strategy uniform --stages 2 --replicas 2,1");
  for (const char* model : {"graph.txt", "graph.json"}) {
    const testing::Outcome outcome = convert("plan.json --model " + std::string(model) + " --arch toy --force -o toy");
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(outcome.err, "stage 0: input0 -> node2\nstage 1: node2 -> node3\n");
    EXPECT_THAT(folder_.read("toy/__init__.py"), HasSubstr("return \"toy\""));
    EXPECT_THAT(folder_.read("toy/stage1.py"), HasSubstr("self.node3 = torch.nn.Sigmoid()"));
    EXPECT_THAT(folder_.read("toy/hybrid_conf.json"), HasSubstr("\"stage_to_rank_map\": {\"0\": [0, 1], \"1\": [2]}"));
    EXPECT_THAT(folder_.read("toy/mp_conf.json"), HasSubstr("\"stage_to_rank_map\": {\"0\": [0], \"1\": [1]}"));
    EXPECT_THAT(folder_.read("toy/mp_conf.json"), HasSubstr("\"module_to_stage_map\": [0, 1, 1]"));
    EXPECT_THAT(folder_.read("toy/dp_conf.json"), HasSubstr("\"stage_to_rank_map\": {\"0\": [0, 1, 2]}"));
    EXPECT_THAT(folder_.read("toy/dp_conf.json"), HasSubstr("\"module_to_stage_map\": [0, 0, 0]"));
  }
}

TEST_F(ConvertTool, TakesStagesFromAPartitionedGraph) {
  EXPECT_EQ(convert("parted.txt --replicas 1,3 -o alone").status, 0);
  EXPECT_THAT(folder_.read("alone/__init__.py"), HasSubstr("return \"parted\""));
  EXPECT_THAT(folder_.read("alone/hybrid_conf.json"), HasSubstr("{\"0\": [0], \"1\": [1, 2, 3]}"));
  EXPECT_EQ(convert("parted.txt --model graph.txt -o with").status, 0);
  EXPECT_EQ(folder_.read("with/stage1.py"), folder_.read("alone/stage1.py"));
  EXPECT_EQ(folder_.run("stagecraft-convert - -o piped < parted.txt").status, 0);
  EXPECT_EQ(folder_.read("piped/stage0.py"), folder_.read("alone/stage0.py"));
  expect_refusal("parted.txt --replicas 1 -o x", "--replicas: found 1 number, parted.txt has 2 stages");
  expect_refusal("graph.txt -o x", "graph.txt: layer \"node2\" has no stage_id, expected one for each layer");
}

TEST_F(ConvertTool, ReplacesOnlyWhatItWrote) {
  ASSERT_EQ(convert("parted.txt -o package").status, 0);
  expect_refusal("parted.txt -o package", "package: is a directory that is not empty, expected an empty one or none");
  EXPECT_EQ(convert("parted.txt --arch again -o package --force").status, 0);
  EXPECT_THAT(folder_.read("package/__init__.py"), HasSubstr("return \"again\""));
  folder_.write("package/stage1.py", "# by hand\n");
  expect_refusal("parted.txt -o package --force",
                 "package: holds \"stage1.py\", which stagecraft did not write; not replaced");
  EXPECT_EQ(folder_.read("package/stage1.py"), "# by hand\n");
}

TEST_F(ConvertTool, SaysWhatDoesNotFit) {
  plan("--devices 2 --strategy uniform --stages 2");
  expect_refusal("plan.json -o x", "plan.json: is a plan; use --model GRAPH to name its graph", 2);
  expect_refusal("plan.json --model graph.txt --replicas 1,1 -o x",
                 "--replicas: plan.json is a plan, which contains them", 2);
  expect_refusal("parted.txt --replicas 1,0 -o x", "--replicas: 0 is not an integer from 1 to 1048576", 2);
  folder_.write("model.pt2", "PK\x03\x04");
  // A build with LibTorch reads the archive; one without names the option that builds it.
  EXPECT_THAT(convert("plan.json --model model.pt2 -o x").err,
              AnyOf(HasSubstr("model.pt2: is not a complete ZIP archive"),
                    HasSubstr("model.pt2: is an archive, and this program was built without LibTorch; build with "
                              "-DSTAGECRAFT_WITH_TORCH=ON")));
  expect_refusal(
      "model.pt2 -o x",
      "model.pt2: is an archive, expected graph.json or PipeDream's graph.txt; an archive is converted by a plan.json");
  folder_.write("other.txt", std::string("node1 -- Input0") + kMeta + "\nnode9 -- Tanh()" + kMeta + "\n");
  expect_refusal("plan.json --model other.txt -o x", "plan.json: stage 0: layer \"node2\" is not in the graph");
  folder_.write("odd.txt", "node1 -- Odd(1)" + std::string(kMeta) + " -- stage_id=0\n");
  expect_refusal("odd.txt -o x", "odd.txt: layer \"node1\": Odd: unknown kind \"Odd\", known are AdaptiveAvgPool2d, ");
  expect_refusal("odd.txt --layer Odd -o x", "--layer: found \"Odd\", expected KIND=MODULE:CLASS", 2);
  expect_refusal("odd.txt --layer A=b:C --layer A=b:D -o x", "--layer: kind \"A\" appears twice", 2);
  expect_refusal("odd.txt", "--output is required", 2);
  EXPECT_EQ(folder_.run("test -e x").status, 1);
  EXPECT_THAT(convert("--help").out, HasSubstr("Example:\n  stagecraft convert plan.json --model graph.txt -o vgg16"));
}

}  // namespace
}  // namespace stagecraft
