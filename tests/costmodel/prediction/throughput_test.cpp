#include "costmodel/prediction/predict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/plan.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using testing::flat_topology;
using ::testing::HasSubstr;
using testing::one_layer_a_stage;

constexpr const char* kH100 = "NVIDIA H100 80GB HBM3";

/// A layer that input `shape` of `dtype` feeds, and one that computes the loss from it and the labels: 4 samples a
/// microbatch, 2e12 operations forward and 4e12 backward.
Graph text_model(std::vector<std::int64_t> shape = {4, 100}, const std::string& dtype = "int64") {
  Graph graph = chain_graph({1, 1}, {2, 2});
  graph.microbatch_samples = 4;
  graph.dtype = "bfloat16";
  graph.device.name = kH100;
  for (Layer& layer : graph.layers) {
    layer.forward_work = Work{Flops(1e12), 1_B, 1};
    layer.backward_work = Work{Flops(2e12), 1_B, 1};
  }
  for (const int reader : {0, 1}) {
    Layer input;
    input.id = reader == 0 ? "tokens" : "labels";
    input.kind = kInputKind;
    input.outputs = {{800_B, reader == 0 ? shape : std::vector<std::int64_t>{4, 999}, dtype, false}};
    graph.layers.push_back(input);
    graph.edges.push_back({to_int(graph.layers.size()) - 1, reader, 0});
  }
  return graph;
}

SampleWork work_of(const Graph& graph, int devices = 2) {
  const Topology topology = flat_topology(devices);
  Partition partition{{0, 0, -1, -1}, {devices}};
  return sample_work(graph, topology, make_plan(graph, topology, partition, {}));
}

// A sample: 3 operations of 1e12 in each of 2 layers, over 4 samples. Two H100 have 2 * 989.5e12 operations per second.
TEST(SampleWork, CountsTokensOperationsAndThePeakOfAllDevices) {
  const SampleWork work = work_of(text_model());
  EXPECT_EQ(work.tokens, 100);
  EXPECT_EQ(work.flops, Flops(6e12 / 4));
  EXPECT_EQ(work.peak, FlopsPerSecond(2 * 989.5e12));
  EXPECT_EQ(work.peak_of, "NVIDIA H100 80GB HBM3 (bfloat16)");
}

// 999 labels a sample, which only the last layer reads, are no tokens; nor are values, pictures, or a column of
// classes.
TEST(SampleWork, TakesForTokensOnlySequencesOfIntegers) {
  EXPECT_EQ(work_of(text_model({100, 4})).tokens, 100);  // time first
  EXPECT_FALSE(work_of(text_model({4, 100}, "float32")).tokens);
  EXPECT_FALSE(work_of(text_model({4, 3, 100})).tokens);
  EXPECT_FALSE(work_of(text_model({4, 1})).tokens);
  EXPECT_FALSE(work_of(text_model({4})).tokens);
}

TEST(SampleWork, CountsNoOperationsIfALayerHasNone) {
  Graph graph = text_model();
  graph.layers[1].backward_work.reset();
  EXPECT_FALSE(work_of(graph).flops);
  EXPECT_FALSE(work_of(graph).peak);
  graph.layers[1].forward_work.reset();
  EXPECT_FALSE(work_of(graph).flops);
}

TEST(SampleWork, CountsTheForwardOnlyIfThePlanOnlyEvaluates) {
  const Graph graph = text_model();
  const Topology topology = flat_topology(1);
  const Plan plan = make_plan(graph, topology, {{0, 0, -1, -1}, {1}}, {.schedule = "forward"});
  EXPECT_EQ(sample_work(graph, topology, plan).flops, Flops(2e12 / 4));
}

// Recomputation repeats forwards; the model's operations stay the same.
TEST(SampleWork, LeavesOutWhatRecomputationRepeats) {
  const Graph graph = text_model();
  const Topology topology = flat_topology(1);
  const Plan plan = make_plan(graph, topology, {{0, 0, -1, -1}, {1}}, {.recompute = true});
  EXPECT_EQ(sample_work(graph, topology, plan).flops, Flops(6e12 / 4));
}

// The peaks of an H100 for PCIe and for SXM differ, those of all A100 do not. 19.5 TFLOP/s in float32, 156 in TF32.
TEST(SampleWork, StatesAPeakOnlyWhereTheKindOfDeviceIsKnown) {
  Graph graph = text_model();
  for (const char* name : {"H100", "AMD EPYC 9654", "NVIDIA H100 NVL"}) {
    graph.device.name = name;
    EXPECT_FALSE(work_of(graph).peak) << name;
    EXPECT_TRUE(work_of(graph).flops) << name;
  }
  graph.device.name = "A100";
  graph.dtype = "float32";
  EXPECT_EQ(work_of(graph, 1).peak, FlopsPerSecond(19.5e12));
  graph.allow_tf32 = true;
  EXPECT_EQ(work_of(graph, 1).peak, FlopsPerSecond(156e12));
  EXPECT_EQ(work_of(graph, 1).peak_of, "A100 (tf32)");
  graph.dtype = "float64";
  EXPECT_FALSE(work_of(graph, 1).peak);
}

TEST(SampleWork, TakesThePeakOfAnEstimate) {
  Graph graph = text_model();
  graph.device.name = "AMD EPYC 9654";
  graph.estimate.emplace();
  graph.estimate->math = "float32";
  graph.estimate->peak = FlopsPerSecond(5e12);
  EXPECT_EQ(work_of(graph).peak, FlopsPerSecond(10e12));
  EXPECT_EQ(work_of(graph).peak_of, "AMD EPYC 9654 (float32)");
}

// An H100 has 989.5e12, an A100 312e12.
TEST(SampleWork, AddsThePeaksOfDevicesOfSeveralKinds) {
  Graph graph = text_model();
  Topology topology = flat_topology(2);
  topology.device.name = kH100;
  topology.others = {{1, 1, topology.device}};
  topology.others[0].device.name = "A100-SXM-80GB";
  DeviceProfile slower;
  slower.type = "A100-SXM-80GB";
  slower.device.name = "NVIDIA A100-SXM4-80GB";
  slower.layers = graph.layers;
  graph.profiles = {slower};
  const SampleWork work = sample_work(graph, topology, make_plan(graph, topology, {{0, 1, -1, -1}, {1, 1}}, {}));
  EXPECT_EQ(work.peak, FlopsPerSecond(989.5e12 + 312e12));
  EXPECT_EQ(work.peak_of, "NVIDIA A100-SXM4-80GB (bfloat16) and NVIDIA H100 80GB HBM3 (bfloat16)");
}

// 20 samples per second: 2000 tokens and 30e12 operations per second, 3 % of 1000e12.
TEST(WorkRates, MultiplyTheWorkOfASample) {
  const WorkRates rates = work_rates({100, Flops(1.5e12), FlopsPerSecond(1e15), "device (bfloat16)"}, 20);
  EXPECT_EQ(rates.tokens_per_s, 2000);
  EXPECT_EQ(rates.flops_per_s, FlopsPerSecond(30e12));
  EXPECT_DOUBLE_EQ(*rates.peak_share, 0.03);
  EXPECT_EQ(work_rates_text(rates, 1), "2000 tokens per second, 30.0 TFLOP/s, 3.0 % of the peak of device (bfloat16)");
  EXPECT_EQ(work_rates_text(rates, 2, "~"),
            "~2000 tokens per second, ~15.0 TFLOP/s per device, ~3.0 % of the peak of device (bfloat16)");
  const WorkRates faster = scaled(rates, 2);
  EXPECT_EQ(faster.tokens_per_s, 4000);
  EXPECT_EQ(faster.flops_per_s, FlopsPerSecond(60e12));
  EXPECT_DOUBLE_EQ(*faster.peak_share, 0.06);
  EXPECT_EQ(work_rates({}, 20), WorkRates{});
  EXPECT_EQ(work_rates_text({}, 1), "");
}

TEST(LowShare, IsExplainedByIdleDevicesOrSlowLayers) {
  WorkRates rates{.peak_share = 0.086, .peak_of = "device"};
  EXPECT_THAT(low_share_text(rates, 0.1), HasSubstr("8.6 % of the peak is low"));
  EXPECT_THAT(low_share_text(rates, 0.1), HasSubstr("the layers themselves are slow"));
  EXPECT_THAT(low_share_text(rates, 0.6), HasSubstr("the devices are idle for 60 % of the step"));
  rates.peak_share = 0.25;
  EXPECT_EQ(low_share_text(rates, 0.6), "");
  EXPECT_EQ(low_share_text({}, 0.6), "");
}

// One microbatch of 4 samples takes 6 s on one device: 2/3 samples, 66.7 tokens and 1e12 operations per second.
TEST(Predict, StatesThroughputInTokensAndOperations) {
  const Graph graph = text_model();
  const Topology topology = flat_topology(1);
  const Plan plan = make_plan(graph, topology, {{0, 0, -1, -1}, {1}}, {.microbatches = 1});
  const auto p = std::get<Prediction>(predict(graph, topology, BoundPlan(plan)));
  EXPECT_DOUBLE_EQ(*p.samples_per_s, 4.0 / 6);
  EXPECT_DOUBLE_EQ(*p.rates.tokens_per_s, 400.0 / 6);
  EXPECT_DOUBLE_EQ(p.rates.flops_per_s->value, 1e12);
  EXPECT_DOUBLE_EQ(*p.rates.peak_share, 1 / 989.5);
  EXPECT_EQ(rates_lines(p, ""),
            "66.7 tokens per second, 1.00 TFLOP/s, 0.1 % of the peak of NVIDIA H100 80GB HBM3 (bfloat16)\n"
            "note: 0.1 % of the peak is low (large transformers reach 40 to 50 %): the layers themselves are slow; "
            "fused kernels or larger microbatches may help\n");
}

}  // namespace
}  // namespace stagecraft
