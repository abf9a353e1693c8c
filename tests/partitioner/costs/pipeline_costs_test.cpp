#include "partitioner/costs/pipeline_costs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "costmodel/bound_plan.h"
#include "costmodel/links/collectives.h"
#include "costmodel/prediction/memory.h"
#include "partitioner/bounds/least_step.h"
#include "partitioner/bounds/path_bound.h"
#include "partitioner/bounds/trip_bound.h"
#include "partitioner/candidate.h"
#include "partitioner/cost_model.h"
#include "tests/partitioner/bounds/bounds.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

Seconds bound_of(const Graph& graph, const Topology& topology, const PlanSettings& settings, const Split& split) {
  return PipelineCosts(graph, topology, settings).lower_bound(split).value();
}

/// Two stages of 1 + 2 s, 3 microbatches, free links: (3 + 2 - 1) (1 + 2) = 12 s under 1F1B and GPipe alike.
TEST(PipelineCosts, BoundsAUniformPipelineByItsClosedForm) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  const Topology topology = testing::flat_topology(2);
  for (const char* schedule : {"1f1b", "gpipe"}) {
    EXPECT_EQ(bound_of(graph, topology, settings_of(schedule, 3), {{0, 1}, {1, 1}}), 12_s) << schedule;
  }
}

/// A message of 1e9 bytes takes 1 s: the first microbatch is 1 + 1 + 1 + 2 + 1 + 2 = 8 s under way.
TEST(PipelineCosts, CountsMessagesThereAndBack) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2}, Bytes(1'000'000'000));
  EXPECT_EQ(bound_of(graph, testing::flat_topology(2), settings_of("1f1b", 1), {{0, 1}, {1, 1}}), 8_s);
}

/// A layer of 1 + 1 s. The host loads a microbatch in 5 s: 6 microbatches take 30 s on one device, and 10 s on three.
TEST(PipelineCosts, CountsTheLoadingOfData) {
  Graph graph = testing::chain_graph({1}, {1});
  Layer& data = graph.layers.emplace_back();
  data.id = data.name = "data";
  data.kind = kInputKind;
  data.forward.count = 1;
  data.loading = Timing{Seconds(5), {}, 1};
  graph.edges.push_back({to_int(graph.layers.size()) - 1, 0, {}});
  const PipelineCosts costs(graph, testing::flat_topology(3), settings_of("gpipe", 6));
  EXPECT_NEAR(costs.lower_bound({{0}, {1}})->value, 30, 1e-6);
  EXPECT_NEAR(costs.lower_bound({{0}, {3}})->value, 10, 1e-6);
  EXPECT_NEAR(least_computation(costs).value, 10, 1e-6) << "on three devices";
  const auto trips = TripBound::of(costs, {}, 100);
  EXPECT_EQ(trips->refutes(Seconds(14.99), 2, kNoStop), true) << "on two devices";
  EXPECT_EQ(trips->refutes(Seconds(15), 2, kNoStop), false);
  const auto path = PathBound::of(costs, {}, 100);
  EXPECT_EQ(path->refutes(Seconds(14.99), 2, kNoStop), true);
  EXPECT_EQ(path->refutes(Seconds(15), 2, kNoStop), false);
}

/// Two replicas share 4 microbatches of 3 s, then sum 1e9 bytes in 2 (2 - 1) / 2 s.
TEST(PipelineCosts, CountsTheSumOfGradients) {
  const Graph graph = testing::chain_graph({1}, {2}, Bytes(0), Bytes(1'000'000'000));
  EXPECT_EQ(bound_of(graph, testing::flat_topology(2), settings_of("1f1b", 4), {{0}, {2}}), 7_s);
}

/// With steps that overlap only the computation of the busiest device counts: 4 microbatches of 3 s over 2 devices,
/// less 1 %.
TEST(PipelineCosts, CountsComputationAloneWhereStepsOverlap) {
  const Graph graph = testing::chain_graph({1}, {2}, Bytes(1000), Bytes(1'000'000'000));
  EXPECT_DOUBLE_EQ(bound_of(graph, testing::flat_topology(2), settings_of("pipedream", 4), {{0}, {2}}).value, 0.99 * 6);
}

/// 3 of 2 x 2 devices: two of them in one group, which sum half the bytes at 1 GB/s each way, 1 s; and half of that is
/// left for two groups at 0.1 GB/s, 5 s.
TEST(PipelineCosts, SpreadTheSumOfGradientsOverGroups) {
  Topology topology = testing::flat_topology(2);
  topology.levels.push_back({"rack", 2, {BytesPerSecond(1e8), Seconds(0), {}, {}}});
  const PipelineCosts costs(testing::chain_graph({1}, {2}), topology, settings_of("1f1b", 4));
  EXPECT_NEAR(costs.least_reduce(Bytes(1'000'000'000), 2, 0_s).value, 1, 1e-6);
  EXPECT_NEAR(costs.least_reduce(Bytes(1'000'000'000), 3, 0_s).value, 6, 1e-6);
  // Devices 1 and 2 are in two groups: all bytes at 0.1 GB/s.
  EXPECT_NEAR(costs.least_reduce(Bytes(1'000'000'000), 2, 0_s, 0).value, 1, 1e-6);
  EXPECT_NEAR(costs.least_reduce(Bytes(1'000'000'000), 2, 0_s, 1).value, 10, 1e-6);
}

/// 1e9 bytes take two devices 1 s, in however many buckets, of which none begins before the last backward.
TEST(PipelineCosts, SumBucketsAfterTheLastBackwardBegins) {
  PlanSettings settings = settings_of("1f1b", 4);
  settings.gradient_bucket_bytes = Bytes(100'000'000);
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  const Bytes bytes(1'000'000'000);
  const PipelineCosts costs(graph, testing::flat_topology(2), settings);
  EXPECT_DOUBLE_EQ(costs.least_reduce(bytes, 2, 0.25_s).value, 0.75);
  EXPECT_EQ(costs.least_reduce(bytes, 2, 2_s), 0_s);
  EXPECT_EQ(costs.least_reduce(bytes, 1, 0.25_s), 0_s);
  settings.schedule = "zb-h1";
  EXPECT_EQ(PipelineCosts(graph, testing::flat_topology(2), settings).least_reduce(bytes, 2, 0.25_s), 0_s);
}

/// No devices on several levels sum gradients in less.
TEST(PipelineCosts, NeverExceedTheSumOfGradientsOfAnyDevices) {
  for (unsigned seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Topology topology =
        testing::flat_topology(1 + static_cast<int>(random() % 9), 1e6 * (1 + static_cast<double>(random() % 9)),
                               0.001 * static_cast<double>(random() % 3));
    if (seed % 2 == 0) topology.device.kind = DeviceKind::Gpu;
    if (seed % 5 == 0) {
      topology.levels[0].link.reduce_scatter[2] = {{{Bytes(1000), Seconds(0.01)}}};
      topology.levels[0].link.all_gather[2] = {{{Bytes(1000), Seconds(0.02)}}};
    }
    for (unsigned level = 1 + random() % 2; level > 0; --level) {
      topology.levels.push_back({"group",
                                 1 + static_cast<int>(random() % 4),
                                 {BytesPerSecond(1e5 * (1 + static_cast<double>(random() % 90))),
                                  Seconds(0.001 * static_cast<double>(random() % 3)),
                                  {},
                                  {}}});
    }
    const int all = device_count(topology);
    const PipelineCosts costs(testing::chain_graph({1}, {2}), topology, settings_of("1f1b", 100));
    std::vector<int> devices(static_cast<std::size_t>(all));
    std::iota(devices.begin(), devices.end(), 0);
    const Bytes bytes(1 + static_cast<std::int64_t>(random() % 10'000'000));
    for (int i = 0; i < 10; ++i) {
      std::ranges::shuffle(devices, random);
      const auto count = static_cast<std::ptrdiff_t>(1 + random() % static_cast<unsigned>(all));
      const std::vector<int> some(devices.begin(), devices.begin() + count);
      EXPECT_LE(costs.least_reduce(bytes, static_cast<int>(count), 0_s).value,
                all_reduce_time(bytes, some, topology).value * (1 + 1e-9));
      const int first = static_cast<int>(random() % static_cast<unsigned>(all - count + 1));
      std::vector<int> next(static_cast<std::size_t>(count));
      std::iota(next.begin(), next.end(), first);
      const Seconds in_order = costs.least_reduce(bytes, static_cast<int>(count), 0_s, first);
      EXPECT_LE(in_order.value, all_reduce_time(bytes, next, topology).value * (1 + 1e-9));
      EXPECT_GE(in_order, costs.least_reduce(bytes, static_cast<int>(count), 0_s));
    }
  }
}

/// Nor in buckets of any sizes, rounded down to whole bytes at each level.
TEST(PipelineCosts, NeverExceedTheSumOfBuckets) {
  for (unsigned seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
    Topology topology = testing::flat_topology(1 + below(9), 1e3 * (1 + below(9)), 0.25 * below(3));
    if (seed % 2 == 0) topology.device.kind = DeviceKind::Gpu;
    for (int level = below(3); level > 0; --level)
      topology.levels.push_back({"group", 1 + below(4), {BytesPerSecond(1e2 * (1 + below(90))), Seconds(0), {}, {}}});
    PlanSettings settings = settings_of("1f1b", 100);
    settings.gradient_bucket_bytes = Bytes(1 + below(50));
    const std::vector<double> ones(8, 1);
    const PipelineCosts costs(testing::chain_graph(ones, ones), topology, settings);
    std::vector<int> devices(static_cast<std::size_t>(device_count(topology)));
    std::iota(devices.begin(), devices.end(), 0);
    std::ranges::shuffle(devices, random);
    devices.resize(1 + random() % devices.size());
    Bytes bytes;
    Seconds time;
    for (int left = 1 + below(8); left > 0; --left) {  // only the last bucket may be smaller
      const Bytes part = left > 1 ? *settings.gradient_bucket_bytes + Bytes(below(30)) : Bytes(1 + below(60));
      bytes += part;
      time += all_reduce_time(part, devices, topology);
    }
    EXPECT_LE(costs.least_reduce(bytes, static_cast<int>(devices.size()), 0_s).value, time.value * (1 + 1e-9));
  }
}

/// Of stages that have more bytes, or a longer backward, none takes less with that backward.
TEST(PipelineCosts, NeverExceedTheSumOfGradientsOfLargerStages) {
  for (unsigned seed = 1; seed <= 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](int count) { return static_cast<int>(random() % static_cast<unsigned>(count)); };
    Topology topology = testing::flat_topology(4, 1e3 * (1 + below(9)));
    if (below(2) == 0) topology.levels.push_back({"group", 2, {BytesPerSecond(1e3 * (1 + below(9))), 0_s, {}, {}}});
    PlanSettings settings = settings_of("1f1b", 100);
    if (below(2) == 0) settings.gradient_bucket_bytes = Bytes(1 + below(50));
    if (below(2) == 0) {
      for (const int bytes : {0, 100, 300}) {
        topology.levels.front().link.all_reduce[3].points.push_back({Bytes(bytes), Seconds(0.01 * below(20))});
      }
    }
    const std::vector<double> ones(8, 1);
    const PipelineCosts costs(testing::chain_graph(ones, ones), topology, settings);
    const Bytes bytes(1 + below(400));
    const Seconds backward(0.01 * below(30));
    for (int replicas = 2; replicas <= 4; ++replicas) {
      const Seconds least = costs.least_reduce_of_more(bytes, replicas, backward) + backward;
      for (int more = 0; more < 30; ++more) {
        const Seconds longer = backward + Seconds(0.01 * below(10));
        const Seconds all = costs.least_reduce(bytes + Bytes(below(400)), replicas, longer) + longer;
        ASSERT_LE(least.value, all.value * (1 + 1e-9));
      }
    }
  }
}

TEST(PipelineCosts, HaveNoBoundForWhatTheScheduleCannotRun) {
  const Graph graph = testing::chain_graph({1, 1}, {2, 2});
  const PipelineCosts costs(graph, testing::flat_topology(4), settings_of("interleaved-1f1b", 3));
  EXPECT_EQ(costs.lower_bound({{0, 1}, {2, 1}}), std::nullopt);
  const PipelineCosts one_stage(graph, testing::flat_topology(4), settings_of("zb-h1", 3));
  EXPECT_EQ(one_stage.lower_bound({{0, 1}, {1, 1}, 2}), std::nullopt);
}

TEST(PipelineCosts, HaveNoBoundForReplicasOfABufferThatNobodyCanReplay) {
  Graph graph = testing::chain_graph({1, 1}, {2, 2});
  graph.layers[1].replicable = false;
  const Topology topology = testing::flat_topology(4);
  const PipelineCosts costs(graph, topology, settings_of("1f1b", 4));
  EXPECT_EQ(costs.lower_bound({{0, 1}, {1, 2}}), std::nullopt);
  EXPECT_NE(costs.lower_bound({{0, 1}, {2, 1}}), std::nullopt);
  EXPECT_TRUE(costs.can_run({{}, {2, 1}}));
  EXPECT_FALSE(costs.can_run({{}, {2, 2}}));
  EXPECT_NE(PipelineCosts(graph, topology, settings_of("forward", 4)).lower_bound({{0, 1}, {1, 2}}), std::nullopt);
}

Topology random_topology(std::mt19937& random) {
  const double bandwidth = 1e5 * static_cast<double>(1 + random() % 500);
  Topology out =
      testing::flat_topology(2 + static_cast<int>(random() % 3), bandwidth, 0.0005 * static_cast<double>(random() % 4));
  if (random() % 2 == 0) out.levels.push_back({"rack", 2, {BytesPerSecond(bandwidth / 3), Seconds(0.001), {}, {}}});
  if (random() % 4 == 0) {
    for (const int ranks : {2, 3}) {  // not monotone
      out.levels.front().link.all_reduce[ranks] =
          Curve{{{Bytes(1000), Seconds(0.002)}, {Bytes(40'000), Seconds(0.001)}, {Bytes(900'000), Seconds(0.01)}}};
    }
  }
  if (random() % 4 == 0)
    out.levels.front().link.send_receive = Curve{{{Bytes(2000), Seconds(0.001)}, {Bytes(9000), Seconds(0.004)}}};
  return out;
}

PlanSettings random_settings(std::mt19937& random, const std::string& schedule) {
  PlanSettings out = settings_of(schedule, 1 + static_cast<int>(random() % 6));
  if (schedule != "forward" && random() % 4 == 0) out.recompute = true;
  if (out.recompute && random() % 2 == 0) out.recompute_every = 1 + static_cast<int>(random() % 3);
  if (random() % 4 == 0) out.gradient_bucket_bytes = Bytes(1 + static_cast<std::int64_t>(random() % 100'000));
  if (random() % 4 == 0 && schedule_by_name(schedule).weights == Weights::Flushed)
    out.sharding = static_cast<StateSharding>(1 + random() % 3);
  return out;
}

/// What a stage holds by the shape alone is what its list says.
TEST(PipelineCosts, KnowsWhatStagesHold) {
  const Graph graph = testing::chain_graph(std::vector<double>(8, 1.0), std::vector<double>(8, 1.0));
  for (const char* const schedule : {"1f1b", "gpipe", "zb-h1", "interleaved-1f1b"}) {
    for (const int microbatches : {2, 4, 8, 12, 60}) {
      PlanSettings settings;
      settings.schedule = schedule;
      settings.microbatches = microbatches;
      const PipelineCosts costs(graph, testing::flat_topology(8), settings);
      for (const std::vector<int>& replicas :
           {std::vector<int>{1, 1, 1, 1}, std::vector<int>{2, 2}, std::vector<int>{3, 1, 2}, std::vector<int>{1}}) {
        const bool replicated = std::ranges::any_of(replicas, [](int r) { return r > 1; });
        Split split;
        split.replicas = replicas;
        if ((replicated && microbatches < 3) || !costs.can_run(split)) continue;
        PipelineShape shape;
        shape.stages = static_cast<int>(replicas.size());
        shape.microbatches = microbatches;
        shape.replicas = replicas;
        shape.warmups = warmup_counts(replicas);
        const auto lists = compute_lists(costs.schedule(), shape);
        const std::vector<int> first = first_ranks(replicas, shape.stages, Placement::Loop);
        const std::vector<int> held = costs.held(split);
        for (int s = 0; s < shape.stages; ++s)
          EXPECT_EQ(held[to_index(s)], in_flight(lists[to_index(first[to_index(s)])], s)) << schedule << " " << s;
        for (const bool splits : {false, true}) {
          const std::vector<int> later = costs.held_later(split, splits);
          for (int s = 0; s < shape.stages; ++s)
            EXPECT_EQ(later[to_index(s)], in_flight(lists[to_index(first[to_index(s)])], s, splits, /*later=*/true))
                << schedule << " " << s;
        }
      }
    }
  }
}

/// With several stages on a device, too, and with the fewer microbatches of which it looks at the lists.
TEST(PipelineCosts, KnowsWhatChunksHold) {
  const Graph graph = testing::chain_graph(std::vector<double>(16, 1.0), std::vector<double>(16, 1.0));
  for (const int microbatches : {4, 8, 12, 24, 60, 120}) {
    PlanSettings settings;
    for (const char* const schedule :
         {"interleaved-1f1b", "looped-bfs", "interleaved-zb", "zb-v", "v-half", "v-min", "dualpipev"}) {
      settings.schedule = schedule;
      settings.microbatches = microbatches;
      const PipelineCosts costs(graph, testing::flat_topology(8), settings);
      for (const int positions : {1, 2, 3, 4}) {
        for (const int chunks : {1, 2, 3, 4}) {
          const int replicas = 1 + chunks % 2;
          PipelineShape shape;
          shape.stages = positions * chunks;
          shape.chunks = chunks;
          shape.microbatches = microbatches;
          shape.replicas.assign(to_index(shape.stages), replicas);
          shape.warmups = warmup_counts(shape.replicas);
          Split split;
          split.replicas = shape.replicas;
          split.chunks = chunks;
          if (!costs.can_run(split)) continue;
          const auto lists = compute_lists(costs.schedule(), shape);
          const std::vector<int> held = costs.held(split);
          for (int s = 0; s < shape.stages; ++s)
            EXPECT_EQ(held[to_index(s)], in_flight(lists[to_index(costs.position_of(split, s) * replicas)], s))
                << schedule << " " << positions << " " << chunks;
        }
      }
    }
  }
}

/// No bound of a plan exceeds what the simulator says, whatever the graph, links, schedule and plan.
TEST(PipelineCosts, BoundIsNeverAboveTheSimulation) {
  const CostModel model = simulated_costs();
  int compared = 0;
  double tightness = 0;
  for (unsigned seed = 1; seed <= 600; ++seed) {
    std::mt19937 random(seed);
    Graph graph = testing::branching_graph(random, 2 + static_cast<int>(random() % 4));
    if (random() % 4 == 0) {
      graph.slowdown = {1, 1.3};
      graph.iteration = Timing{Seconds(0.3), {}, 0};
    }
    const Topology topology = random_topology(random);
    const char* const schedules[] = {"1f1b",      "gpipe",         "zb-h1",      "forward",        "interleaved-1f1b",
                                     "pipedream", "pipedream-2bw", "looped-bfs", "interleaved-zb", "zb-v",
                                     "v-half",    "dualpipev"};
    const std::string schedule = schedules[seed % std::size(schedules)];
    const PlanSettings settings = random_settings(random, schedule);
    const PipelineCosts costs(graph, topology, settings);
    std::mt19937 places(seed);
    const bool chunked = schedule_by_name(schedule).chunked;
    testing::each_partition(graph, chunked ? 8 : 4, [&](const Partition& partition) {
      if (random() % 8 != 0) return;
      Candidate candidate;
      candidate.partition = partition;
      candidate.chunks = chunked && partition.replicas.size() % 2 == 0 ? 2 : 1;
      const Split split = costs.split_of(partition, candidate.chunks);
      EXPECT_EQ(costs.partition(split), partition);
      const std::optional<Seconds> bound = costs.lower_bound(split);
      Plan plan;
      try {
        plan = plan_of_candidate(graph, topology, candidate, settings);
      } catch (const std::invalid_argument&) { return; }
      ASSERT_TRUE(bound.has_value()) << "seed " << seed;
      EXPECT_LE(*costs.lower_bound(split, {}, Seconds(0)), *bound) << "seed " << seed;
      const BoundPlan bound_plan(plan);
      const auto predicted = model.predict(graph, topology, bound_plan);
      if (std::holds_alternative<Infeasible>(predicted)) return;
      const double step = std::get<Prediction>(predicted).iteration.value;
      EXPECT_LE(bound->value, step * (1 + 1e-9)) << "seed " << seed << " " << schedule;
      if (candidate.chunks == 1) {  // the same stages on other devices
        std::vector<int> devices(to_index(device_count(topology)));
        std::iota(devices.begin(), devices.end(), 0);
        std::ranges::shuffle(devices, places);
        auto next = devices.begin();
        for (Stage& stage : plan.stages) {
          for (int& device : stage.devices) device = *next++;
          candidate.devices.push_back(stage.devices);
        }
        const auto placed = model.predict(graph, topology, BoundPlan(plan));
        if (const auto* prediction = std::get_if<Prediction>(&placed)) {
          EXPECT_LE(costs.lower_bound(split, candidate.devices)->value, prediction->iteration.value * (1 + 1e-9))
              << "seed " << seed << " " << schedule;
        }
      }
      EXPECT_LE(costs.least_memory(split), model.memory(graph, topology, bound_plan).peak)
          << "seed " << seed << " " << schedule;
      ++compared;
      tightness += step > 0 ? bound->value / step : 1;
    });
  }
  EXPECT_GT(compared, 2500);
  EXPECT_GT(tightness / compared, 0.9);
}

}  // namespace
}  // namespace stagecraft::partitioner
