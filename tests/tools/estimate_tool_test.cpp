#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/format/graph_json.h"
#include "costmodel/format/topology_json.h"
#include "costmodel/prediction/cards.h"
#include "tests/support/chains.h"
#include "tests/support/run_command.h"

// stagecraft-estimate as a user runs it; its numbers are in tests/golden/cases/estimate.

namespace stagecraft {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;

class EstimateTool : public ::testing::Test {
 protected:
  EstimateTool() {
    graph_ = testing::chain_graph({1, 1}, {2, 2});
    for (Layer& layer : graph_.layers) layer.forward_work = layer.backward_work = Work{Flops(1e12), 1000000_B, 3};
    graph_.device = {"NVIDIA TITAN RTX", DeviceKind::Gpu, 0};
    write(graph_);
  }
  void write(const Graph& graph) const { folder_.write("graph.json", format::graph_json(graph)); }
  Outcome estimate(const std::string& arguments) const { return folder_.run("stagecraft-estimate " + arguments); }

  Graph graph_;
  testing::CommandFolder folder_;
};

TEST_F(EstimateTool, WritesAGraphThatPlanAndPredictMark) {
  const Outcome o = estimate("graph.json --device H200 -o h200.json");
  ASSERT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, AllOf(HasSubstr("estimated for NVIDIA H200, float32: 67 TFLOP/s, 4800 GB/s"),
                           HasSubstr("from times on NVIDIA TITAN RTX, float32: 16.3 TFLOP/s, 672 GB/s"),
                           HasSubstr("assumed not, see --from-math"), HasSubstr("measured: 6.00 s")));
  Topology topology = testing::flat_topology(2);
  topology.device.name = "NVIDIA H200";
  folder_.write("topology.json", format::topology_json(topology));
  const Outcome plan = folder_.run("stagecraft-plan h200.json topology.json --microbatches 4 -o plan.json");
  EXPECT_EQ(plan.status, 0) << plan.err;
  EXPECT_THAT(plan.err, HasSubstr("estimates for NVIDIA H200 (float32)"));
  const Outcome predict = folder_.run("stagecraft-predict h200.json topology.json plan.json -o prediction.json");
  EXPECT_EQ(predict.status, 0) << predict.err;
  EXPECT_THAT(predict.err,
              AllOf(HasSubstr("step ~"), HasSubstr("by a roofline from times measured on NVIDIA TITAN RTX")));
  EXPECT_THAT(folder_.read("prediction.json"), HasSubstr("\"extrapolated\""));
  const std::string files = " h200.json topology.json plan.json ";
  for (const std::string& command :
       std::vector<std::string>{"explain" + files, "whatif" + files + "--set compute=2x", "diff" + files + "plan.json"})
    EXPECT_THAT(folder_.run("stagecraft-" + command).err,
                HasSubstr("note: the layers' times are estimates for NVIDIA H200"));
  EXPECT_THAT(folder_.run("stagecraft-doctor h200.json").out, HasSubstr("SC210"));
  const Outcome again = estimate("h200.json --device L4 -o -");
  EXPECT_EQ(again.status, 1);
  EXPECT_THAT(again.err, HasSubstr("h200.json: its times are estimates already"));
}

TEST_F(EstimateTool, SaysWhichMathItAssumed) {
  EXPECT_THAT(estimate("graph.json --device H200 --math tf32 -o -").err,
              AllOf(HasSubstr("NVIDIA H200, tf32: 494.5 TFLOP/s"), HasSubstr("NVIDIA TITAN RTX, float32")));
  graph_.allow_tf32 = true;
  graph_.device.name = "NVIDIA A100-SXM4-80GB";
  write(graph_);
  EXPECT_THAT(estimate("graph.json --device H200 -o -").err,
              AllOf(HasSubstr("NVIDIA H200, tf32"), HasSubstr("NVIDIA A100-SXM4-80GB, tf32: 156"),
                    Not(HasSubstr("assumed not"))));
}

// 1e12 operations in 10 ms are 100 TFLOP/s, which no T4 reaches.
TEST_F(EstimateTool, DoubtsTimesThatTheDeviceCannotReach) {
  graph_.layers.front().forward.median = Seconds(0.01);
  graph_.device.name = "Tesla T4";
  write(graph_);
  EXPECT_THAT(estimate("graph.json --device H200 -o -").err,
              HasSubstr("layer \"l0\" reached 100 TFLOP/s in the forward, more than the 8.1 TFLOP/s of Tesla T4"));
}

TEST_F(EstimateTool, DoesWithoutTimesOfAnUnknownDevice) {
  graph_.device = {"AMD EPYC", DeviceKind::Processor, 2};
  write(graph_);
  const Outcome o = estimate("graph.json --device H200 -o out.json");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err,
              HasSubstr("the times of graph.json are not used, because the peak rates of their device are unknown"));
  EXPECT_THAT(folder_.read("out.json"), AllOf(Not(HasSubstr("from_device")), HasSubstr("\"log_spread\": 0.5")));
  const Outcome known = estimate(
      "graph.json --device H200 --from-peak-flops-per-s 1e11 --from-memory-bandwidth-bytes-per-s 2e10 -o out2.json");
  EXPECT_EQ(known.status, 0) << known.err;
  EXPECT_THAT(known.err, HasSubstr("from times on AMD EPYC, float32: 0.1 TFLOP/s, 20 GB/s"));
}

TEST_F(EstimateTool, LearnsFromTheProfileOfAnotherModel) {
  Graph structure = testing::chain_graph({0}, {0});
  structure.layers.front().id = "other";
  structure.layers.front().forward_work = structure.layers.front().backward_work = Work{Flops(1e12), 1000000_B, 3};
  folder_.write("structure.json", format::graph_json(structure));
  const Outcome o = estimate("structure.json --from-profile graph.json --device 'Titan RTX' -o out.json");
  ASSERT_EQ(o.status, 0) << o.err;
  // The same work on the same device as the layers of the profile, 1 s and 2 s.
  const Graph out = format::parse_graph(folder_.read("out.json"), "out.json");
  EXPECT_NEAR(out.layers.front().forward.median.value, 1, 1e-12);
  EXPECT_NEAR(out.layers.front().backward.median.value, 2, 1e-12);
}

// 3 s a microbatch with 2 samples, 5 s with 4: 4 s with 3.
TEST_F(EstimateTool, MakesTimesOfAnotherMicrobatchSize) {
  const auto with = [](std::int64_t samples, double forward) {
    Graph graph = testing::chain_graph({forward}, {2});
    graph.microbatch_samples = samples;
    graph.provenance = {"stagecraft-profile 0.1.0", "AMD EPYC, 2 processors", {}, "", {}};  // an older profile
    return format::graph_json(graph);
  };
  folder_.write("graph-2.json", with(2, 1));
  folder_.write("graph-4.json", with(4, 3));
  const Outcome o = estimate("graph-2.json --more-graphs graph-4.json --microbatch 3 -o graph-3.json");
  ASSERT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, AllOf(HasSubstr("interpolated between profiles with microbatches of 2 and 4 samples"),
                           HasSubstr("forward and backward of a microbatch: 4.00 s")));
  const Graph out = format::parse_graph(folder_.read("graph-3.json"), "graph-3.json");
  EXPECT_EQ(out.microbatch_samples, 3);
  EXPECT_EQ(out.device, (MeasuredDevice{"AMD EPYC", DeviceKind::Processor, 2}));
  EXPECT_EQ(out.provenance.notes.at("command"),
            "stagecraft estimate graph-2.json --more-graphs graph-4.json --microbatch 3 -o graph-3.json");
  const Outcome beyond = estimate("graph-2.json --more-graphs graph-4.json --microbatch 8");
  EXPECT_THAT(beyond.err, AllOf(HasSubstr("extrapolated from"), HasSubstr("microbatch: ~9.00 s")));
  const Outcome alone = estimate("graph-2.json --microbatch 3");
  EXPECT_EQ(alone.status, 1);
  EXPECT_THAT(alone.err, HasSubstr("graph-2.json: there is only the profile with microbatches of 2"));
  EXPECT_EQ(estimate("graph-2.json --microbatch 3 --device H200").status, 2);
  EXPECT_EQ(estimate("graph-2.json --more-graphs graph-4.json --device H200").status, 2);
}

TEST_F(EstimateTool, ListsTheCards) { EXPECT_EQ(estimate("--list").out, cards_text()); }

TEST_F(EstimateTool, SaysWhatIsWrong) {
  const Outcome unknown = estimate("graph.json --device B300");
  EXPECT_EQ(unknown.status, 2);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("--device: unknown card \"B300\", known are V100-SXM2-16GB"),
                                 HasSubstr("give --peak-flops-per-s and --memory-bandwidth-bytes-per-s")));
  const Outcome source = estimate("graph.json --device H200 --from-device B300");
  EXPECT_EQ(source.status, 2);
  EXPECT_THAT(source.err, HasSubstr("--from-device: unknown card \"B300\""));
  EXPECT_EQ(estimate("graph.json").status, 2);
  EXPECT_EQ(estimate("--device H200").status, 2);
  EXPECT_EQ(estimate("graph.json --device H200 --math int4").status, 2);
  EXPECT_EQ(estimate("graph.json --device H200 --peak-flops-per-s -1").status, 2);
  for (Layer& layer : graph_.layers) layer.forward = layer.backward = {};
  graph_.layers.back().forward_work.reset();
  write(graph_);
  const Outcome nothing = estimate("graph.json --device H200");
  EXPECT_EQ(nothing.status, 1);
  EXPECT_THAT(nothing.err, HasSubstr("stagecraft-estimate: graph.json: layer \"l1\" has no counted operations"));
}

/// What profile --structure --without-work writes.
Graph without_work(Graph graph) {
  for (Layer& layer : graph.layers) {
    layer.forward = layer.backward = {};
    layer.forward_work.reset();
    layer.backward_work.reset();
  }
  graph.device = {};
  graph.options = {{"layers", "2"}, {"width", "8"}};
  graph.microbatch_samples = 4;
  return graph;
}

TEST_F(EstimateTool, SaysHowToCountWhatAStructureLacks) {
  folder_.write("bare.json", format::graph_json(without_work(graph_)));
  const std::string missing =
      "stagecraft-estimate: bare.json: layer \"l0\" has no counted operations and bytes (forward_work, "
      "backward_work), ";
  const std::string remedy =
      "; count them with stagecraft profile chain --set layers=2 --set width=8 --microbatch 4 --structure -o "
      "bare.json, "
      "or give a measured profile of the same model as --from-profile [SC2008]\n";
  const Outcome o = estimate("bare.json --device H200");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(o.err, missing + "and no measured time of it can be used" + remedy);

  for (Layer& layer : graph_.layers) layer.id += "x";
  folder_.write("other.json", format::graph_json(graph_));
  EXPECT_EQ(estimate("bare.json --device H200 --from-profile other.json").err,
            missing + "and the measured profile has no time of it" + remedy);

  Graph half = without_work(graph_);
  half.name.clear();
  half.dtype = "bfloat16";
  half.options.clear();
  folder_.write("half.json", format::graph_json(half));
  EXPECT_THAT(estimate("- --device H200 < half.json").err,
              HasSubstr("count them with stagecraft profile MODEL --microbatch 4 --dtype bfloat16 --structure -o "
                        "graph.json, or"));
}

TEST_F(EstimateTool, SaysWhyMeasuredTimesDoNotReplaceCountedWork) {
  folder_.write("bare.json", format::graph_json(without_work(graph_)));
  graph_.device = {"AMD EPYC", DeviceKind::Processor, 2};
  write(graph_);
  EXPECT_THAT(
      estimate("bare.json --device H200 --from-profile graph.json").err,
      AllOf(HasSubstr("no measured time of it can be used: the times of graph.json are not used, because the peak "
                      "rates of their device are unknown (\"AMD EPYC\"); give --from-peak-flops-per-s and "
                      "--from-memory-bandwidth-bytes-per-s, or --from-device; or count them with stagecraft profile"),
            Not(HasSubstr("as --from-profile"))));
  // What is proposed does not replace measured times.
  for (Layer& layer : graph_.layers) layer.forward_work.reset();
  write(graph_);
  EXPECT_THAT(estimate("graph.json --device H200").err,
              HasSubstr("or count them with stagecraft profile chain --structure -o structure.json [SC2008]\n"));
}

TEST_F(EstimateTool, NotesWhereWorkWasNotCounted) {
  const std::string scaled = "have no counted operations and bytes: their times are scaled by the ratio of the devices";
  const std::string unknown = "bare-times.json has no counted operations and bytes, so it does not say how efficient";
  EXPECT_THAT(estimate("graph.json --device H200").err, Not(HasSubstr("no counted operations")));

  // The layers' own times, without their work.
  folder_.write("bare.json", format::graph_json(without_work(graph_)));
  const Outcome own = estimate("bare.json --device H200 --from-profile graph.json");
  EXPECT_EQ(own.status, 0) << own.err;
  EXPECT_THAT(own.err, HasSubstr("note: 2 of the graph's layers " + scaled));

  // Times of the same layers, then of others, from a profile without work.
  Graph times = graph_;
  for (Layer& layer : times.layers) {
    layer.forward_work.reset();
    layer.backward_work.reset();
  }
  folder_.write("bare-times.json", format::graph_json(times));
  EXPECT_THAT(estimate("graph.json --device H200 --from-profile bare-times.json").err, Not(HasSubstr("no counted")));
  graph_.layers.back().id = "other";
  write(graph_);
  const Outcome others = estimate("graph.json --device H200 --from-profile bare-times.json");
  EXPECT_EQ(others.status, 0) << others.err;
  EXPECT_THAT(others.err, HasSubstr("note: " + unknown));
}

TEST_F(EstimateTool, SaysHowToMeasureAProfileWithoutTimes) {
  folder_.write("structure.json", format::graph_json(without_work(graph_)));
  const Outcome o = estimate("graph.json --from-profile structure.json --device H200");
  EXPECT_EQ(o.status, 1);
  EXPECT_EQ(
      o.err,
      "stagecraft-estimate: structure.json: has no measured times; measure the model with stagecraft profile chain "
      "--set layers=2 --set width=8 --microbatch 4 -o structure.json [SC2005]\n");
}

}  // namespace
}  // namespace stagecraft
