#include "partitioner/remedies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <stdexcept>

#include "tests/support/chains.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

/// Five layers of 8 bytes of output, measured with microbatches of 8 samples.
Graph five_layers() {
  Graph graph = testing::chain_graph({1, 1, 1, 1, 1}, {2, 2, 2, 2, 2}, 8_B);
  graph.microbatch_samples = 8;
  return graph;
}

const Topology kTwo = testing::flat_topology(2);

/// What was tried, as text.
std::string what(const Graph& graph, const Topology& topology, const PlanSettings& settings) {
  std::string out =
      std::to_string(*graph.microbatch_samples) + " samples, " + std::to_string(device_count(topology)) + " devices";
  if (settings.recompute) out += ", recompute " + std::to_string(settings.recompute_every);
  return out;
}

TEST(RemediesText, TriesEachRemedyUntilOneOfItsWaysFits) {
  std::vector<std::string> tried;
  const NeedOf never = [&](const Graph& graph, const Topology& topology, const PlanSettings& settings) {
    tried.push_back(what(graph, topology, settings));
    return std::optional<Bytes>(1000_B);
  };
  (void)remedies_text(five_layers(), kTwo, {}, 10_B, never);
  EXPECT_THAT(tried, ElementsAre("8 samples, 2 devices, recompute 0", "8 samples, 2 devices, recompute 1",
                                 "8 samples, 2 devices, recompute 2", "8 samples, 2 devices, recompute 4",
                                 "4 samples, 2 devices", "2 samples, 2 devices", "1 samples, 2 devices",
                                 "8 samples, 4 devices", "8 samples, 8 devices", "8 samples, 16 devices",
                                 "1 samples, 2 devices, recompute 0", "1 samples, 2 devices, recompute 1",
                                 "1 samples, 2 devices, recompute 2", "1 samples, 2 devices, recompute 4"));
}

TEST(RemediesText, NamesTheFirstWayOfEachRemedyThatFits) {
  // 100 bytes per sample, divided among the devices; recomputation takes half, in segments of two a quarter.
  const NeedOf need = [](const Graph& graph, const Topology& topology, const PlanSettings& settings) {
    std::int64_t bytes = 100 * *graph.microbatch_samples * 2 / device_count(topology);
    if (settings.recompute) bytes /= settings.recompute_every == 2 ? 4 : 2;
    return std::optional<Bytes>(Bytes(bytes));
  };
  const std::string text = remedies_text(five_layers(), kTwo, {}, 250_B, need);
  EXPECT_THAT(text, AllOf(StartsWith("; "), HasSubstr("--recompute-every 2 (200 B)"),
                          HasSubstr("2 samples instead of 8 (200 B)"), HasSubstr("8 devices instead of 2 (200 B)"),
                          Not(HasSubstr("not fit"))));
}

TEST(RemediesText, NamesTheLeastOfEachRemedyThatDoesNotFit) {
  const NeedOf need = [](const Graph& graph, const Topology& topology, const PlanSettings& settings) {
    if (settings.recompute) return std::optional<Bytes>(Bytes(settings.recompute_every == 1 ? 500 : 700));
    return std::optional<Bytes>(Bytes(100 * *graph.microbatch_samples * 2 / device_count(topology)));
  };
  // One sample per microbatch fits in 100 bytes, and so do 16 devices.
  const std::string text = remedies_text(five_layers(), kTwo, {}, 100_B, need);
  EXPECT_THAT(text, AllOf(HasSubstr("1 sample instead of 8 (100 B)"), HasSubstr("16 devices instead of 2 (100 B)"),
                          HasSubstr("not fit either: --recompute-every 1 (500 B)")));
}

TEST(RemediesText, SaysNothingWhereNoRequestHasAPlan) {
  const NeedOf none = [](const Graph&, const Topology&, const PlanSettings&) { return std::optional<Bytes>(); };
  EXPECT_EQ(remedies_text(five_layers(), kTwo, {}, 10_B, none), "");
  const NeedOf refused = [](const Graph&, const Topology&, const PlanSettings&) -> std::optional<Bytes> {
    throw std::invalid_argument("no");
  };
  EXPECT_EQ(remedies_text(five_layers(), kTwo, {}, 10_B, refused), "");
}

TEST(RemediesText, OffersNoUselessRecomputation) {
  const NeedOf need = [](const Graph&, const Topology&, const PlanSettings& settings) {
    return std::optional<Bytes>(Bytes(settings.recompute ? 1 : 1000));
  };
  PlanSettings segments;
  segments.recompute = true;
  segments.recompute_every = 2;
  EXPECT_THAT(remedies_text(five_layers(), kTwo, segments, 10_B, need), Not(HasSubstr("--recompute")));
  PlanSettings whole;
  whole.recompute = true;  // segments can still help
  EXPECT_THAT(remedies_text(five_layers(), kTwo, whole, 10_B, need), HasSubstr("would fit: --recompute-every 1 (1 B)"));
  PlanSettings forward;
  forward.schedule = "forward";
  EXPECT_THAT(remedies_text(five_layers(), kTwo, forward, 10_B, need), Not(HasSubstr("--recompute")));
}

TEST(RemediesText, TriesNoSmallerMicrobatchWhereTheGraphStatesNone) {
  Graph graph = five_layers();
  graph.microbatch_samples.reset();
  int calls = 0;
  const NeedOf never = [&](const Graph& g, const Topology&, const PlanSettings&) {
    EXPECT_FALSE(g.microbatch_samples.has_value());
    ++calls;
    return std::optional<Bytes>(1000_B);
  };
  EXPECT_THAT(remedies_text(graph, kTwo, {}, 10_B, never), Not(HasSubstr("sample")));
  EXPECT_EQ(calls, 4 + 3);  // four ways of recomputation, three numbers of devices
}

TEST(RemediesText, TriesNoMoreThan4096Devices) {
  const NeedOf need = [](const Graph&, const Topology& topology, const PlanSettings&) {
    EXPECT_LE(device_count(topology), 4096);
    return std::optional<Bytes>(1000_B);
  };
  EXPECT_THAT(remedies_text(five_layers(), testing::flat_topology(2048), {}, 10_B, need),
              HasSubstr("4096 devices instead of 2048"));
  EXPECT_THAT(remedies_text(five_layers(), testing::flat_topology(4096), {}, 10_B, need), Not(HasSubstr("devices")));
}

TEST(RemediesText, AddsGroupsOfTheOutermostLevel) {
  Topology topology = kTwo;
  topology.levels.push_back({"cluster", 3, {BytesPerSecond(1e9), 0_s, {}, {}}});
  std::vector<std::vector<int>> counts;
  const NeedOf never = [&](const Graph&, const Topology& t, const PlanSettings& settings) {
    if (!settings.recompute) counts.push_back({t.levels[0].count, t.levels[1].count});
    return std::optional<Bytes>(1000_B);
  };
  Graph graph = five_layers();
  graph.microbatch_samples = 1;
  (void)remedies_text(graph, topology, {}, 10_B, never);
  EXPECT_THAT(counts, ElementsAre(ElementsAre(2, 6), ElementsAre(2, 12), ElementsAre(2, 24)));
}

TEST(WithSamples, TakesActivationsInProportionAndLeavesTheRest) {
  Graph graph = five_layers();
  Layer& layer = graph.layers[0];
  layer.outputs[0].bytes = 80_B;
  layer.saved_bytes = 41_B;
  layer.workspace_bytes = 7_B;
  layer.saved_for_backward_bytes = 8_B;
  layer.gradient_bytes = 64_B;
  layer.parameter_bytes = 64_B;
  const Graph found = with_samples(graph, 2);
  const Layer& small = found.layers[0];
  EXPECT_EQ(found.microbatch_samples, 2);
  EXPECT_EQ(small.outputs[0].bytes, 20_B);
  EXPECT_EQ(small.saved_bytes, 11_B);     // 10.25, rounded up
  EXPECT_EQ(small.workspace_bytes, 2_B);  // 1.75
  EXPECT_EQ(small.saved_for_backward_bytes, 2_B);
  EXPECT_EQ(small.gradient_bytes, 64_B);
  EXPECT_EQ(small.parameter_bytes, 64_B);
  EXPECT_EQ(small.forward.median, layer.forward.median);
  EXPECT_EQ(found.layers[1].saved_bytes, std::nullopt);
}

// The result is ceil(bytes * samples / before), the smallest number that is not less than the exact quotient.
TEST(WithSamples, RoundsUp) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    std::mt19937_64 random(seed);
    Graph graph = five_layers();
    const auto before = static_cast<std::int64_t>(1 + random() % 1000);
    const auto samples = static_cast<std::int64_t>(1 + random() % static_cast<std::uint64_t>(before));
    const auto bytes = static_cast<std::int64_t>(random() >> (14 + random() % 40));  // up to 2^50
    graph.microbatch_samples = before;
    graph.layers[0].outputs[0].bytes = Bytes(bytes);
    const std::int64_t found = with_samples(graph, samples).layers[0].outputs[0].bytes.value;
    EXPECT_GE(found * before, bytes * samples) << "seed " << seed;
    EXPECT_LT((found - 1) * before, bytes * samples) << "seed " << seed;
  }
}

TEST(WithSamples, DoesNotOverflowForTheLargestTensors) {
  Graph graph = five_layers();
  graph.microbatch_samples = 1 << 20;
  graph.layers[0].outputs[0].bytes = Bytes(std::int64_t{1} << 60);  // times the samples: 2^79
  EXPECT_EQ(with_samples(graph, 1 << 19).layers[0].outputs[0].bytes, Bytes(std::int64_t{1} << 59));
}

}  // namespace
}  // namespace stagecraft::partitioner
