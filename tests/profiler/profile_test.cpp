#include "profiler/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "costmodel/format/graph_json.h"
#include "costmodel/index.h"
#include "executor/device/machine/processor.h"
#include "executor/device/machine/provenance.h"
#include "executor/intake/layer_sources.h"

namespace stagecraft::profiler {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using ::testing::ThrowsMessage;

/// The smallest number of samples that has a spread.
ProfileOptions hasty() {
  ProfileOptions options;
  options.microbatch_samples = 2;
  options.warmup = 1;
  options.rule.fewest = 5;
  options.rule.least = 5;
  options.rule.most_seconds = 0;
  return options;
}

Profile profile(const std::string& name, const std::map<std::string, std::string>& set,
                const ProfileOptions& options = hasty()) {
  const model::Model model = intake::build_model(name, set);
  return profile_model(model, *data::make_data_source("synthetic", model, 1), options);
}

const Layer& find(const Graph& graph, const std::string& id) { return graph.layers[to_index(layer_index(graph, id))]; }

std::vector<std::string> sources_of(const Graph& graph, const std::string& id) {
  std::vector<std::string> out;
  for (const Edge& edge : graph.edges) {
    if (edge.destination == layer_index(graph, id)) out.push_back(graph.layers[to_index(edge.source)].id);
  }
  return out;
}

const std::map<std::string, std::string> kTiny{{"inputs", "4"}, {"width", "8"}, {"layers", "2"}, {"classes", "3"}};

// ---- independent of time: a tiny mlp by hand, two samples

TEST(ProfileModel, ReportsLayersAndEdges) {
  const Graph graph = profile("mlp", kTiny).graph;
  EXPECT_EQ(graph.name, "mlp");
  EXPECT_EQ(graph.options, kTiny);
  EXPECT_EQ(graph.microbatch_samples, 2);
  EXPECT_EQ(graph.dtype, "float32");
  EXPECT_EQ(graph.optimizer, "sgd");
  EXPECT_EQ(graph.threads, 1);
  std::vector<std::string> ids;
  for (const Layer& layer : graph.layers) ids.push_back(layer.id);
  EXPECT_THAT(ids, ElementsAre("input:image", "input:target", "fc1", "relu1", "fc2", "loss"));
  EXPECT_THAT(sources_of(graph, "fc1"), ElementsAre("input:image"));
  EXPECT_THAT(sources_of(graph, "relu1"), ElementsAre("fc1"));
  EXPECT_THAT(sources_of(graph, "fc2"), ElementsAre("relu1"));
  EXPECT_THAT(sources_of(graph, "loss"), ElementsAre("fc2", "input:target"));
}

TEST(ProfileModel, MarksInputs) {
  const Graph graph = profile("mlp", kTiny).graph;
  EXPECT_TRUE(is_input(find(graph, "input:image")));
  EXPECT_TRUE(is_input(find(graph, "input:target")));
  EXPECT_FALSE(is_input(find(graph, "fc1")));
  EXPECT_THAT(find(graph, "input:image").outputs, ElementsAre(Output{Bytes(2 * 4 * 4), {2, 4}, "float32", false}));
  EXPECT_THAT(find(graph, "input:target").outputs, ElementsAre(Output{Bytes(2 * 8), {2}, "int64", false}));
}

TEST(ProfileModel, ReportsActivationAndParameterBytes) {
  const Graph graph = profile("mlp", kTiny).graph;
  // Two samples times 4 x 8 multiply-adds; the backward's gradient of the weight is as many, the input needs none. It
  // adds 32 + 8 gradients to those of the microbatch before and sums 2 x 8 values for the bias.
  EXPECT_EQ(find(graph, "fc1").forward_work->flops, Flops(2 * 2 * 4 * 8));
  EXPECT_EQ(find(graph, "fc1").backward_work->flops, Flops(2 * 2 * 4 * 8 + 32 + 8 + 2 * 8));
  // The relu saves its result, the loss that of its log_softmax.
  EXPECT_THAT(find(graph, "fc1").outputs, ElementsAre(Output{Bytes(2 * 8 * 4), {2, 8}, "float32", true, false}));
  EXPECT_THAT(find(graph, "relu1").outputs, ElementsAre(Output{Bytes(2 * 8 * 4), {2, 8}, "float32", true, true}));
  EXPECT_THAT(find(graph, "fc2").outputs, ElementsAre(Output{Bytes(2 * 3 * 4), {2, 3}, "float32", true, false}));
  EXPECT_THAT(find(graph, "loss").outputs, ElementsAre(Output{Bytes(4), {}, "float32", true, false}));
  EXPECT_EQ(find(graph, "fc1").parameters, 4 * 8 + 8);
  EXPECT_EQ(find(graph, "fc1").parameter_bytes, Bytes((4 * 8 + 8) * 4));
  EXPECT_EQ(find(graph, "relu1").parameter_bytes, Bytes(0));
  EXPECT_EQ(find(graph, "fc2").parameters, 8 * 3 + 3);
}

TEST(ProfileModel, ReportsSavedBytes) {
  const Graph graph = profile("mlp", kTiny).graph;
  const auto saved = [&](const char* id) { return find(graph, id).saved_bytes->value; };
  constexpr std::int64_t hidden = 2 * 8 * 4, logits = 2 * 3 * 4, scalar = 4;
  // fc1 saves the image, which existed before, and adds its output.
  EXPECT_EQ(saved("fc1"), hidden);
  // relu1 saves its output; fc1's output is no longer needed and is released.
  EXPECT_EQ(saved("relu1"), hidden - hidden);
  // fc2 saves relu1's output, which is already counted, and adds its own.
  EXPECT_EQ(saved("fc2"), logits);
  // The loss saves log_softmax's output and the sum of the weights, adds the loss, and releases fc2's output.
  EXPECT_EQ(saved("loss"), logits + scalar + scalar - logits);
}

TEST(ProfileModel, ReportsTheLargestTransientBytes) {
  const Graph graph = profile("mlp", kTiny).graph;
  const auto workspace = [&](const char* id) { return find(graph, id).workspace_bytes->value; };
  // The forward of relu1 holds both fc1's output and its own until the end.
  EXPECT_GE(workspace("relu1"), 2 * 8 * 4);
  // The backward of fc1 computes the weight's gradient, then accumulates it.
  EXPECT_GE(workspace("fc1"), 4 * 8 * 4);
  for (const char* id : {"fc1", "relu1", "fc2", "loss"}) EXPECT_LE(workspace(id), 1024) << id;  // an upper bound
}

TEST(ProfileModel, ReportsTheTwoPartsOfEachBackward) {
  const Graph graph = profile("mlp", kTiny).graph;
  const auto parts = [&](const char* id) { return *find(graph, id).backward_parts; };
  // The image needs no gradient; relu1 and the loss have no weights.
  EXPECT_EQ(parts("fc1").inputs.median, Seconds(0));
  EXPECT_EQ(parts("fc1").weights, find(graph, "fc1").backward);
  for (const char* id : {"relu1", "loss"}) {
    EXPECT_EQ(parts(id).inputs, find(graph, id).backward) << id;
    EXPECT_EQ(parts(id).weights.median, Seconds(0)) << id;
  }
  EXPECT_TRUE(parts("fc2").separable);
  for (const Timing& part : {parts("fc2").inputs, parts("fc2").weights}) {
    EXPECT_GT(part.median, Seconds(0));
    EXPECT_GE(part.count, 5);
    EXPECT_TRUE(part.spread);
  }
  EXPECT_FALSE(find(graph, "input:image").backward_parts);
}

TEST(ProfileModel, ReportsWhatAddingToGradientsTakes) {
  ProfileOptions options = hasty();
  options.rule.fewest = options.rule.least = 40;
  // With two samples, a product of 1024 x 1024 takes about as long as adding its 4 MiB to a gradient.
  const Graph graph =
      profile("mlp", {{"inputs", "1024"}, {"width", "1024"}, {"layers", "2"}, {"classes", "3"}}, options).graph;
  const Layer& wide = find(graph, "fc1");
  ASSERT_TRUE(wide.accumulation);
  EXPECT_GT(wide.accumulation->median, Seconds(0));
  EXPECT_LT(wide.accumulation->median, wide.backward.median);
  EXPECT_EQ(wide.accumulation->count, 20) << "every second sample";
  EXPECT_FALSE(find(graph, "relu1").accumulation) << "has no parameters";
  EXPECT_FALSE(profile("mlp", kTiny).graph.layers[1].accumulation) << "two pairs say nothing";
}

TEST(ProfileModel, RunsSeveralMicrobatchesInFlight) {
  const Profile measured = profile("mlp", kTiny);
  ASSERT_TRUE(measured.graph.in_flight_slowdown);
  EXPECT_EQ(measured.graph.in_flight_slowdown->microbatches, 4);
  EXPECT_GE(measured.graph.in_flight_slowdown->factor, 1);
  EXPECT_THAT(measured.cut, IsEmpty());
  ProfileOptions options = hasty();
  options.most_seconds = 1e-9;
  const Profile brief = profile("mlp", kTiny, options);
  EXPECT_FALSE(brief.graph.in_flight_slowdown);
  EXPECT_THAT(brief.cut, Contains("in-flight slowdown"));
}

TEST(ProfileModel, ReportsTheOptimizersState) {
  ProfileOptions options = hasty();
  options.optimizer.name = "adam";
  const Graph graph = profile("mlp", kTiny, options).graph;
  EXPECT_EQ(graph.optimizer, "adam");
  EXPECT_EQ(graph.optimizer_state_values, 2);
}

TEST(ProfileModel, ReportsBothPathsAroundAResidualBlock) {
  const Graph graph = profile("resnet18", {{"image", "32"}, {"channels", "4"}, {"classes", "10"}}).graph;
  validate(graph);
  EXPECT_THAT(sources_of(graph, "layer1.0.add"), ElementsAre("layer1.0.bn2", "maxpool"));
  EXPECT_THAT(sources_of(graph, "layer1.1.add"), ElementsAre("layer1.1.bn2", "layer1.0.relu"));
  EXPECT_THAT(sources_of(graph, "layer2.0.add"), ElementsAre("layer2.0.bn2", "layer2.0.downsample.1"));
}

TEST(ProfileModel, ReportsTiedParameters) {
  const Graph graph =
      profile("gpt", {{"layers", "1"}, {"width", "16"}, {"heads", "2"}, {"vocabulary", "32"}, {"sequence", "4"}}).graph;
  int holders = 0;
  for (const Layer& layer : graph.layers) {
    for (const TiedParameter& tied : layer.tied) {
      ++holders;
      EXPECT_EQ(tied.bytes, Bytes(32 * 16 * 4)) << layer.id << " " << tied.name;
    }
  }
  EXPECT_EQ(holders, 2);  // the embedding and the head
  EXPECT_EQ(find(graph, "embedding").tied, find(graph, "lm_head").tied);
}

TEST(ProfileModel, GivesAGraphThatIsReadBack) {
  for (const char* name : {"mlp", "convnet"}) {
    Profile profiled = profile(name, {});
    profiled.graph.provenance = device::provenance_here("a test");
    validate(profiled.graph);
    EXPECT_EQ(format::parse_graph(format::graph_json(profiled.graph), "graph.json"), profiled.graph) << name;
  }
}

// ---- dependent on time

TEST(ProfileModel, TimesEveryLayerInEachIteration) {
  const Profile profiled = profile("convnet", {});
  EXPECT_EQ(profiled.unmapped, 0);
  EXPECT_EQ(profiled.stop, Stop::Time);
  EXPECT_EQ(profiled.graph.iteration->count, 5);
  for (const Layer& layer : profiled.graph.layers) {
    if (is_input(layer)) continue;
    EXPECT_EQ(layer.forward.count, 5) << layer.id;
    EXPECT_GT(layer.forward.median, Seconds(0)) << layer.id;
    EXPECT_EQ(layer.backward.count, 5) << layer.id;
    EXPECT_GT(layer.backward.median, Seconds(0)) << layer.id;
    EXPECT_EQ(layer.update.has_value(), layer.parameter_bytes > Bytes(0)) << layer.id;
  }
}

TEST(ProfileModel, SumsTheLayers) {
  const Profile profiled = profile("mlp", kTiny);
  Seconds sum;
  for (const Layer& layer : profiled.graph.layers) {
    if (is_input(layer)) continue;
    sum += layer.forward.median + layer.backward.median + (layer.update ? layer.update->median : Seconds(0));
  }
  EXPECT_NEAR(profiled.sum.value, sum.value, 1e-12);
  EXPECT_GT(profiled.watched, Seconds(0));
  EXPECT_NEAR(profiled.closure(), sum / profiled.graph.iteration->median - 1, 1e-9);
}

TEST(ProfileModel, HasSharesAndResidualsThatAddUpToTheWatchedSteps) {
  for (const char* name : {"mlp", "convnet"}) {
    const Profile profiled = profile(name, {});
    const ProfileQuality& quality = *profiled.graph.quality;
    std::int64_t sum = quality.data_wait_ns + quality.unattributed_ns;
    for (const Layer& layer : profiled.graph.layers) {
      for (const auto* share : {&layer.forward_share, &layer.backward_share, &layer.update_share})
        sum += *share ? (*share)->share_ns : 0;
    }
    EXPECT_EQ(sum, quality.watched_ns) << name;
    EXPECT_EQ(quality.clock, "host");
    EXPECT_EQ(quality.steps, 5);
    EXPECT_TRUE(quality.trusted);
    EXPECT_FALSE(quality.debiased);
  }
}

TEST(ProfileModel, RunsLayersAloneWhenTold) {
  ProfileOptions options = hasty();
  options.isolated = true;
  options.isolated_seconds = 0.001;
  const Profile profiled = profile("mlp", kTiny, options);
  for (const Layer& layer : profiled.graph.layers) {
    if (is_input(layer)) continue;
    EXPECT_GT(layer.forward_share->isolated->median, Seconds(0)) << layer.id;
    EXPECT_GT(layer.backward_share->isolated->median, Seconds(0)) << layer.id;
  }
}

TEST(ProfileModel, AddsMemoryUpToTheAllocatorsPeak) {
  const Graph graph = profile("mlp", kTiny).graph;
  EXPECT_EQ(find(graph, "fc1").gradient_bytes, Bytes((4 * 8 + 8) * 4));
  EXPECT_EQ(find(graph, "relu1").gradient_bytes, Bytes(0));
  EXPECT_EQ(graph.quality->summed_peak_bytes, graph.quality->allocator_peak_bytes);
}

TEST(Profile, ReportsHowMuchOfAnIterationTheMediansOmit) {
  // Layers with medians of 3 s and 6 s, 10 s together in the median watched iteration, 8 s unwatched.
  Profile profiled;
  profiled.sum = Seconds(9);
  profiled.watched = Seconds(10);
  profiled.graph.iteration = Timing{Seconds(8), {}, 1};
  EXPECT_NEAR(profiled.interruption(), 0.1, 1e-15);
  EXPECT_NEAR(profiled.closure(), 0.125, 1e-15);
}

TEST(ProfileModel, MeasuresTheSlowdownOfRanksAtOnce) {
  ProfileOptions options = hasty();
  options.concurrent = 2;
  const Graph graph = profile("mlp", kTiny, options).graph;
  ASSERT_EQ(graph.slowdown.size(), 2U);
  EXPECT_EQ(graph.slowdown[0], 1);
  EXPECT_GE(graph.slowdown[1], 1);
}

// On any machine, a nanosecond is over before the first iteration begins.
TEST(ProfileModel, TakesOneSampleAndSaysWhatItLeftOutOnceTimeIsUp) {
  ProfileOptions options = hasty();
  options.warmup = 3;
  options.concurrent = 2;
  options.isolated = true;
  options.rule.most_seconds = 20;
  options.most_seconds = 1e-9;
  const Profile profiled = profile("mlp", kTiny, options);
  EXPECT_EQ(profiled.stop, Stop::Time);
  EXPECT_EQ(profiled.graph.iteration->count, 1);
  EXPECT_EQ(find(profiled.graph, "fc1").forward.count, 1);
  EXPECT_GT(find(profiled.graph, "fc1").forward.median, Seconds(0));
  EXPECT_TRUE(profiled.graph.slowdown.empty());
  EXPECT_GT(profiled.seconds, 1e-9);
  EXPECT_THAT(profiled.cut,
              ElementsAre("warm-up of 3 iterations (1)", "bytes saved for backward", "slowdown of 2 ranks",
                          "in-flight slowdown", "backwards in two parts", "layers alone"));
  // Memory is measured except for the bytes saved for backward; operators are counted as ever.
  const Graph whole = profile("mlp", kTiny).graph;
  EXPECT_FALSE(find(profiled.graph, "relu1").saved_for_backward_bytes);
  EXPECT_EQ(find(profiled.graph, "relu1").saved_bytes, find(whole, "relu1").saved_bytes);
  EXPECT_EQ(profiled.graph.quality->summed_peak_bytes, whole.quality->summed_peak_bytes);
  EXPECT_EQ(profiled.graph.quality->allocator_peak_bytes, whole.quality->allocator_peak_bytes);
  for (const Layer& layer : profiled.graph.layers) {
    EXPECT_EQ(layer.forward_work.has_value(), !is_input(layer)) << layer.id;
    EXPECT_EQ(layer.forward_work, find(whole, layer.id).forward_work) << layer.id;
    EXPECT_EQ(layer.backward_work, find(whole, layer.id).backward_work) << layer.id;
  }
}

TEST(ProfileModel, LeavesNothingOutWhereTimeIsEnough) {
  ProfileOptions options = hasty();
  options.concurrent = 2;
  EXPECT_TRUE(profile("mlp", kTiny, options).cut.empty());
}

TEST(ProfileModel, SaysWhatItIsAt) {
  const model::Model model = intake::build_model("mlp", kTiny);
  ProfileOptions options = hasty();
  options.concurrent = 2;
  std::vector<std::string> phases;
  (void)profile_model(model, *data::make_data_source("synthetic", model, 1), options, [&](const ProfileProgress& p) {
    if (phases.empty() || phases.back() != p.phase) phases.push_back(p.phase);
  });
  std::vector<std::string> expected{"warm-up", "memory", "measuring"};
  for (int round = 0; round < 5; ++round) expected.insert(expected.end(), {"1 at once", "2 at once"});
  expected.insert(expected.end(), {"several microbatches in flight", "backward in two parts: fc2"});
  EXPECT_EQ(phases, expected);
}

TEST(ProfileModel, AllowsSlowModelsMoreTime) {
  ProfileOptions options;
  options.most_seconds = 30;
  EXPECT_EQ(seconds_allowed(options, 2), 30);
  options.most_seconds_if_slow = 300;
  EXPECT_EQ(seconds_allowed(options, 0.5), 30);
  EXPECT_EQ(seconds_allowed(options, 2), 100);
  options.concurrent = 3;
  EXPECT_EQ(seconds_allowed(options, 2), 250);
  EXPECT_EQ(seconds_allowed(options, 3), 300);
  options.placement.device = c10::Device(c10::kCUDA, 0);
  EXPECT_EQ(seconds_allowed(options, 3), 150) << "GPUs measure no concurrent ranks";
}

TEST(ProfileModel, ExtendsItsLimitForASlowModel) {
  ProfileOptions options = hasty();
  options.warmup = 3;
  options.most_seconds = 1e-9;
  options.most_seconds_if_slow = 20;
  const Profile profiled = profile("mlp", kTiny, options);
  EXPECT_THAT(profiled.cut, Not(Contains(StartsWith("warm-up"))));
  EXPECT_THAT(profiled.cut, Not(Contains("bytes saved for backward")));
}

// Long enough for the counters of processor time; nothing else is assumed of the machine.
TEST(ProfileModel, RecordsTheMachinesConditions) {
  ProfileOptions options = hasty();
  options.rule.fewest = 1'000'000;
  options.rule.most_seconds = 0.7;
  const Graph graph = profile("mlp", kTiny, options).graph;
  ASSERT_TRUE(graph.conditions.yardstick);
  EXPECT_EQ(graph.conditions.yardstick->threads, 1);
  EXPECT_EQ(graph.conditions.yardstick->works.size(), 2U);
  for (const YardstickTimes& times : graph.conditions.yardstick->works) {
    EXPECT_EQ(times.readings, 2) << times.work;
    EXPECT_LT(times.slowest, Seconds(0.5)) << times.work;
  }
  if (!device::processor_moment().machine) GTEST_SKIP() << "no /proc/stat";
  ASSERT_EQ(graph.conditions.hosts.size(), 1U);
  EXPECT_GT(graph.conditions.hosts.front().ours, 0);
  EXPECT_EQ(format::parse_graph(format::graph_json(graph), "graph.json"), graph);
}

TEST(ProfileModel, RefusesOptionsOutOfRange) {
  const auto refuses = [](const std::function<void(ProfileOptions&)>& change, const std::string& message) {
    ProfileOptions options = hasty();
    change(options);
    EXPECT_THAT([&] { (void)profile("mlp", kTiny, options); },
                ThrowsMessage<std::invalid_argument>(HasSubstr(message)));
  };
  refuses([](auto& o) { o.microbatch_samples = 0; }, "the microbatch is 0, must be at least 1");
  refuses([](auto& o) { o.threads = 0; }, "the number of threads is 0, must be at least 1");
  refuses([](auto& o) { o.concurrent = 0; }, "the number of concurrent ranks is 0, must be at least 1");
  refuses([](auto& o) { o.warmup = -1; }, "the warm-up is -1, must be at least 0");
  refuses([](auto& o) { o.rule.fewest = 0; }, "the minimum number of samples is 0, must be at least 1");
  refuses([](auto& o) { o.optimizer.name = "magic"; }, "unknown optimizer \"magic\", known are");
}

}  // namespace
}  // namespace stagecraft::profiler
