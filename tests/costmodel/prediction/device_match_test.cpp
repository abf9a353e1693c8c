#include "costmodel/prediction/device_match.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "costmodel/format/topology_json.h"
#include "costmodel/prediction/predict.h"
#include "tests/support/chains.h"

namespace stagecraft {
namespace {

using testing::chain_graph;
using ::testing::ElementsAre;
using testing::flat_topology;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::one_layer_a_stage;
using ::testing::ThrowsMessage;

Graph measured_on(const MeasuredDevice& device, std::vector<double> slowdown = {}) {
  Graph graph = chain_graph({1}, {2});
  graph.device = device;
  graph.slowdown = std::move(slowdown);
  return graph;
}

Topology of_devices(const std::string& name, DeviceKind kind = DeviceKind::Unknown, int host_processors = 0) {
  Topology topology = flat_topology(8);
  topology.device.name = name;
  topology.device.kind = kind;
  topology.device.host_processors = host_processors;
  return topology;
}

const MeasuredDevice kEpyc{"AMD EPYC", DeviceKind::Processor, 2};
const MeasuredDevice kH100{"NVIDIA H100 80GB HBM3", DeviceKind::Gpu, 64};

TEST(DeviceDifferences, FindsNoneWhereNothingKnownDiffers) {
  for (const MeasuredDevice& device : {kEpyc, kH100, MeasuredDevice{}}) {
    EXPECT_THAT(device_differences(measured_on(device), of_devices("")), IsEmpty());
    EXPECT_THAT(device_differences(measured_on(device), of_devices("device")), IsEmpty());
  }
  EXPECT_THAT(device_differences(measured_on(kEpyc, {1, 2}), of_devices("AMD EPYC", DeviceKind::Processor, 2)),
              IsEmpty());
  EXPECT_THAT(device_differences(measured_on(kEpyc, {1, 2}), of_devices("CPU")), IsEmpty());
  for (const char* name : {"H100-80GB", "NVIDIA H100 80GB HBM3", "GPU of compute capability 9.0", "NVIDIA H100"}) {
    EXPECT_THAT(device_differences(measured_on(kH100), of_devices(name, DeviceKind::Gpu)), IsEmpty()) << name;
    EXPECT_THAT(device_differences(measured_on({}), of_devices(name)), IsEmpty()) << name;
  }
}

TEST(DeviceDifferences, NamesKindsAndModelsThatDiffer) {
  EXPECT_THAT(
      device_differences(measured_on(kEpyc), of_devices("H100-80GB", DeviceKind::Gpu)),
      ElementsAre("the graph was measured on a processor (AMD EPYC), the topology's devices are GPUs (H100-80GB)"));
  // If no kind is stated, it follows from the name.
  EXPECT_THAT(
      device_differences(measured_on(kEpyc), of_devices("H100-80GB")),
      ElementsAre("the graph was measured on a processor (AMD EPYC), the topology's devices are GPUs (H100-80GB)"));
  EXPECT_THAT(
      device_differences(measured_on(kH100), of_devices("CPU")),
      ElementsAre("the graph was measured on a GPU (NVIDIA H100 80GB HBM3), the topology's devices are processors "
                  "(CPU)"));
  EXPECT_THAT(device_differences(measured_on(kH100), of_devices("NVIDIA A100-SXM4-80GB", DeviceKind::Gpu)),
              ElementsAre("the graph was measured on \"NVIDIA H100 80GB HBM3\", the topology's devices are \"NVIDIA "
                          "A100-SXM4-80GB\""));
  EXPECT_THAT(device_differences(measured_on(kEpyc), of_devices("Intel(R) Xeon(R) CPU @ 2.20GHz")),
              ElementsAre(HasSubstr("the graph was measured on \"AMD EPYC\"")));
}

TEST(DeviceDifferences, GivesASlowdownToHostsWithAsManyProcessorsOnly) {
  EXPECT_THAT(device_differences(measured_on(kEpyc, {1, 2}), of_devices("AMD EPYC", DeviceKind::Processor, 64)),
              ElementsAre("the graph's slowdown was measured on a host of 2 processors, the topology's hosts have 64"));
  EXPECT_THAT(device_differences(measured_on(kEpyc), of_devices("AMD EPYC", DeviceKind::Processor, 64)), IsEmpty());
  EXPECT_THAT(
      device_differences(measured_on({}, {1, 2}), of_devices("GPU", DeviceKind::Gpu)),
      ElementsAre("the graph has a slowdown of ranks that share a host's processors, the topology's devices are "
                  "GPUs (GPU)"));
  EXPECT_THAT(device_differences(measured_on({}, {1, 1}), of_devices("GPU", DeviceKind::Gpu)), IsEmpty());
}

TEST(DeviceDifferences, ReadsTheProvenanceOfOlderDocuments) {
  Graph graph = measured_on({}, {1, 2});
  graph.provenance.tool = "stagecraft-profile 0.1.0";
  graph.provenance.device = "AMD EPYC, 2 processors";
  EXPECT_EQ(measured_device(graph), kEpyc);
  Topology topology = of_devices("AMD EPYC");
  topology.provenance.tool = "stagecraft-links 0.1.0";
  topology.provenance.device = "AMD EPYC, 2 processors";
  EXPECT_EQ(described_device(topology), kEpyc);
  EXPECT_THAT(device_differences(graph, topology), IsEmpty());
  topology.provenance.device = "AMD EPYC, 4 processors";
  EXPECT_THAT(device_differences(graph, topology),
              ElementsAre(HasSubstr("of 2 processors, the topology's hosts have 4")));
  graph.provenance.device = "NVIDIA H200";
  graph.provenance.notes["uuid"] = "GPU-1";
  EXPECT_EQ(measured_device(graph), (MeasuredDevice{"NVIDIA H200", DeviceKind::Gpu, 0}));
  graph.provenance.tool = "somebody";
  EXPECT_EQ(measured_device(graph), MeasuredDevice{});
  for (const char* text :
       {"", "processors", ", processors", "x, many processors", "x, 0 processors", "x, 99999999999 processors"}) {
    Graph other = measured_on({});
    other.provenance.tool = "stagecraft-profile 0.1.0";
    other.provenance.device = text;
    EXPECT_EQ(measured_device(other), MeasuredDevice{}) << text;
  }
}

// What is known wins: the topology's kind, then its device's name, then the graph's.
TEST(TakeKind, TakesThatOfTheGraphWhereTheTopologyHasNone) {
  const auto kind = [](Topology topology, const MeasuredDevice& device) {
    take_kind(topology, measured_on(device));
    return topology.device.kind;
  };
  EXPECT_EQ(kind(of_devices(""), kH100), DeviceKind::Gpu);
  EXPECT_EQ(kind(of_devices(""), kEpyc), DeviceKind::Processor);
  EXPECT_EQ(kind(of_devices("Xeon CPU"), kH100), DeviceKind::Processor);
  EXPECT_EQ(kind(of_devices("x", DeviceKind::Processor), kH100), DeviceKind::Processor);
  EXPECT_EQ(kind(of_devices(""), MeasuredDevice{}), DeviceKind::Unknown);
}

TEST(AcceptedDifferences, DropsWhatBelongsToTheHost) {
  Graph graph = measured_on(kEpyc, {1, 2});
  Layer input;
  input.id = input.name = "data";
  input.kind = kInputKind;
  input.forward = {0.5_s, {}, 7};
  graph.layers.push_back(input);
  graph.edges.push_back({1, 0, {}});
  const Topology gpus = of_devices("H100-80GB", DeviceKind::Gpu);
  const Graph before = graph;
  try {
    (void)accepted_differences(graph, gpus, false);
    FAIL();
  } catch (const std::invalid_argument& e) { EXPECT_THAT(e.what(), HasSubstr("--accept-other-device")); }
  EXPECT_EQ(graph, before);
  EXPECT_THAT(accepted_differences(graph, gpus, true), HasSubstr("measured on a processor"));
  EXPECT_THAT(graph.slowdown, IsEmpty());
  EXPECT_EQ(graph.layers[1].forward, Timing{});
  EXPECT_EQ(graph.layers[0], before.layers[0]);
  Graph same = before;
  EXPECT_EQ(accepted_differences(same, of_devices("AMD EPYC"), true), "");
  EXPECT_EQ(same, before);
}

TEST(SlowdownAssumption, IsToldWhereTheNumberOfProcessorsIsUnknown) {
  EXPECT_THAT(slowdown_assumption(measured_on(kEpyc, {1, 2}), of_devices("")),
              HasSubstr("which has 2 processors: the topology does not say how many processors its hosts have"));
  EXPECT_EQ(slowdown_assumption(measured_on(kEpyc), of_devices("")), "");
  EXPECT_EQ(slowdown_assumption(measured_on(kEpyc, {1, 2}), of_devices("AMD EPYC", DeviceKind::Processor, 2)), "");
}

TEST(DeviceKind, IsAWordInDocuments) {
  std::string text = format::topology_json(of_devices("card", DeviceKind::Gpu, 8));
  EXPECT_THAT(text, HasSubstr("\"kind\": \"gpu\""));
  EXPECT_THAT(text, HasSubstr("\"host_processors\": 8"));
  text.replace(text.find("\"gpu\""), 5, "\"tpu\"");
  EXPECT_THROW(
      {
        try {
          (void)format::parse_topology(text, "t.json");
        } catch (const FormatError& e) {
          EXPECT_STREQ(e.what(), "t.json: /device/kind: unknown kind \"tpu\", known are processor, gpu");
          throw;
        }
      },
      FormatError);
}

/// `count` devices, all from `first` on of type "slow".
Topology mixed(int count, int first) {
  Topology out = flat_topology(count);
  out.others = {{first, count - first, {.name = "slow", .memory = std::nullopt}}};
  return out;
}

double step(const Graph& graph, const Topology& topology, const Plan& plan) {
  return std::get<Prediction>(predict(graph, topology, BoundPlan(plan))).iteration.value;
}

TEST(WithProfile, TimesEachStageOnItsType) {
  const Graph graph = chain_graph({1, 1}, {2, 2});
  const Topology topology = mixed(2, 1);
  const Plan plan = one_layer_a_stage(graph, topology, {1, 1}, "gpipe", 1);
  EXPECT_DOUBLE_EQ(step(graph, topology, plan), 6);  // both fast: 1 + 1 + 2 + 2
  // Stage 1 on the slow type: 1 + 3 + 5 + 2.
  EXPECT_DOUBLE_EQ(step(with_profile(graph, "slow", chain_graph({3, 3}, {5, 5})), topology, plan), 11);
  Plan turned = plan;  // stage 0 on the slow type
  std::swap(turned.stages[0].devices, turned.stages[1].devices);
  EXPECT_DOUBLE_EQ(step(with_profile(graph, "slow", chain_graph({3, 30}, {5, 50})), topology, turned), 11);
}

TEST(WithProfile, TakesTheSlowestTypeOfAStagesReplicas) {
  const Graph graph = with_profile(chain_graph({1}, {2}), "slow", chain_graph({3}, {5}));
  const Topology topology = mixed(2, 1);
  EXPECT_DOUBLE_EQ(step(graph, topology, one_layer_a_stage(graph, topology, {2}, "1f1b", 4)), 16);  // 2 * 8
}

TEST(WithProfile, CountsTheMemoryOfEachTypeAgainstItsOwn) {
  const Graph small = chain_graph({1, 1}, {2, 2}, 0_B, 100_B);
  Graph large = small;
  for (Layer& layer : large.layers) layer.workspace_bytes = 1000_B;
  Topology topology = mixed(2, 1);
  topology.device.memory = 300_B;
  topology.others[0].device.memory = 2000_B;
  const Plan plan = one_layer_a_stage(small, topology, {1, 1}, "gpipe", 1);
  auto stages = std::get<Prediction>(predict(with_profile(small, "slow", large), topology, BoundPlan(plan))).stages;
  EXPECT_EQ(stages[0].memory.total, 200_B);   // parameters and gradients
  EXPECT_EQ(stages[1].memory.total, 1100_B);  // parameters and the workspace of its type, in which gradients fit
  EXPECT_TRUE(stages[0].fits);
  EXPECT_TRUE(stages[1].fits);
  topology.others[0].device.memory = 1100_B;
  stages = std::get<Prediction>(predict(with_profile(small, "slow", large), topology, BoundPlan(plan))).stages;
  EXPECT_TRUE(stages[0].fits);
  EXPECT_FALSE(stages[1].fits);
}

TEST(WithProfile, RefusesAnotherModel) {
  const Graph one = chain_graph({1, 1}, {2, 2});
  const auto refusal = [&](const Graph& other) {
    try {
      (void)with_profile(one, "slow", other);
    } catch (const std::invalid_argument& e) { return std::string(e.what()); }
    return std::string();
  };
  EXPECT_THAT(refusal(chain_graph({1}, {2})),
              HasSubstr("the graph for \"slow\" has 1 layers, the graph 2: it describes another model"));
  Graph other = one;
  other.layers[1].id = "x";
  EXPECT_THAT(refusal(other), HasSubstr("has layer \"x\" where the graph has \"l1\""));
  other = one;
  other.layers[1].parameter_bytes = 4_B;
  EXPECT_THAT(refusal(other), HasSubstr("has different outputs or parameters in layer \"l1\""));
  other = one;
  other.microbatch_samples = 8;
  EXPECT_THAT(refusal(other), HasSubstr("has microbatches of 8 samples, the graph of an unknown number of"));
  const Graph both = with_profile(one, "slow", one);
  EXPECT_THAT([&] { (void)with_profile(both, "slow", one); },
              ThrowsMessage<std::invalid_argument>("there are two graphs for \"slow\""));
}

TEST(TypesOf, NamesEachTypeOnce) {
  const Topology topology = mixed(4, 2);
  EXPECT_THAT(types_of(topology, {0, 1}), ElementsAre(topology.device.name));
  EXPECT_THAT(types_of(topology, {3, 0, 2}), ElementsAre(topology.device.name, "slow"));
}

TEST(DeviceDifferences, NamesTypesWithoutAProfile) {
  const Graph graph = chain_graph({1, 1}, {2, 2});
  EXPECT_THAT(device_differences(graph, mixed(2, 1)), ElementsAre(HasSubstr("add --graph-for slow=GRAPH")));
  EXPECT_THAT(device_differences(with_profile(graph, "slow", graph), mixed(2, 1)), IsEmpty());
  Graph other = graph;
  other.device.name = "NVIDIA H100";
  EXPECT_THAT(device_differences(with_profile(graph, "slow", other), mixed(2, 1)),
              ElementsAre("the graph for \"slow\" was measured on \"NVIDIA H100\""));
}

TEST(Validate, RefusesRangesOfDevicesThatCannotBe) {
  const auto refusal = [](std::vector<DeviceRange> ranges) {
    Topology topology = flat_topology(4);
    topology.others = std::move(ranges);
    try {
      validate(topology);
    } catch (const std::invalid_argument& e) { return std::string(e.what()); }
    return std::string();
  };
  const Device slow{.name = "slow", .memory = std::nullopt};
  EXPECT_EQ(refusal({{0, 2, slow}, {2, 2, slow}}), "");
  EXPECT_EQ(refusal({{3, 2, slow}}), "devices of type \"slow\": device 4 does not exist, there are 4");
  EXPECT_EQ(refusal({{1, 2, slow}, {2, 1, slow}}), "devices of type \"slow\": the first is below 3");
  EXPECT_EQ(refusal({{1, 0, slow}}), "devices of type \"slow\": the count is below 1");
  Device same = flat_topology(1).device;
  EXPECT_THAT(refusal({{1, 1, same}}), HasSubstr("that is the type of the topology's other devices"));
}

}  // namespace
}  // namespace stagecraft
