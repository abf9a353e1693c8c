#include "partitioner/strategies/optimal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "partitioner/bounds/least_step.h"
#include "partitioner/candidate.h"
#include "partitioner/search/search_time.h"
#include "partitioner/strategies/auto.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"
#include "tests/support/pipedream_cases.h"
#include "tests/support/places.h"

namespace stagecraft::partitioner {
namespace {

Constraints random_constraints(std::mt19937& random) {
  const char* const schedules[] = {
      "1f1b",       "1f1b",           "gpipe", "zb-h1", "forward",  "pipedream", "pipedream-2bw", "interleaved-1f1b",
      "looped-bfs", "interleaved-zb", "zb-v",  "v-min", "dualpipev"};
  Constraints out;
  out.plan.schedule = schedules[random() % std::size(schedules)];
  out.plan.microbatches = 1 + static_cast<int>(random() % 6);
  if (random() % 5 == 0) out.stages = 1 + static_cast<int>(random() % 3);
  if (random() % 4 == 0) out.memory_limit = Bytes(100'000 + static_cast<std::int64_t>(random() % 900'000));
  if (out.plan.schedule != "forward" && random() % 5 == 0) out.plan.recompute = true;
  if (random() % 6 == 0) out.plan.gradient_bucket_bytes = Bytes(50'000);
  // More replicas than microbatches have nothing to compute, but would update a part: the strategy considers none.
  if (random() % 4 == 0 && out.plan.microbatches >= 3 &&
      schedule_by_name(out.plan.schedule).weights == Weights::Flushed)
    out.plan.sharding = static_cast<StateSharding>(1 + random() % 3);
  out.options[kTimeLimit] = 600.0;  // never reached, however slow the machine
  return out;
}

/// Calls `visit` with all partitions with any replicas, on devices in order; with several stages per device, which need
/// equal replicas, with all of these up to the microbatches: the strategy considers no others.
template <class Visit>
void each_candidate(const Graph& graph, const Topology& topology, const Constraints& constraints, Visit visit) {
  const int devices = device_count(topology);
  for (const int chunks : chunk_counts(constraints)) {
    const int most = chunks == 1 ? devices : std::min(devices * chunks, static_cast<int>(graph.layers.size()));
    testing::each_partition(graph, most, [&](const Partition& partition) {
      const int stages = static_cast<int>(partition.replicas.size());
      if (constraints.stages && stages != *constraints.stages) return;
      Candidate candidate;
      candidate.partition = partition;
      candidate.chunks = chunks;
      if (chunks == 1) return visit(candidate);
      if (stages % chunks != 0 || std::ranges::any_of(partition.replicas, [](int r) { return r > 1; })) return;
      const int most_replicas = std::min(devices / (stages / chunks), constraints.plan.microbatches);
      for (int replicas = 1; replicas <= most_replicas; ++replicas) {
        candidate.partition.replicas.assign(partition.replicas.size(), replicas);
        visit(candidate);
      }
    });
  }
}

/// Calls `visit` with all of them that fit.
template <class Visit>
void each_plan(const Graph& graph, const Topology& topology, const CostModel& costs, const Constraints& constraints,
               Visit visit) {
  each_candidate(graph, topology, constraints, [&](const Candidate& candidate) {
    try {
      const RankedPlan ranked = predicted_plan("any", graph, topology, candidate, costs, constraints);
      if (ranked.fits) visit(ranked);
    } catch (const std::invalid_argument&) {
    } catch (const std::runtime_error&) {}
  });
}

/// The shortest step of them.
std::optional<Seconds> shortest(const Graph& graph, const Topology& topology, const CostModel& costs,
                                const Constraints& constraints) {
  std::optional<Seconds> out;
  each_plan(graph, topology, costs, constraints, [&](const RankedPlan& ranked) {
    out = std::min(out.value_or(ranked.prediction.iteration), ranked.prediction.iteration);
  });
  return out;
}

/// Every split and every number of replicas was predicted for the expected step: what is called exact is the best.
TEST(Optimal, EqualsExhaustiveSearch) {
  const CostModel costs = simulated_costs();
  int compared = 0;
  for (unsigned seed = 1; seed <= 4000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    Graph graph = testing::branching_graph(random, 2 + static_cast<int>(random() % 3));
    const Topology topology =
        testing::flat_topology(1 + static_cast<int>(random() % 3), 1e5 * static_cast<double>(1 + random() % 500),
                               0.0003 * static_cast<double>(random() % 3));
    const Constraints constraints = random_constraints(random);
    if (seed % 6 == 0) graph.layers[seed % graph.layers.size()].replicable = false;
    const auto least = shortest(graph, topology, costs, constraints);
    const StrategyResult result = optimal_strategy().plan(graph, topology, costs, constraints);
    const auto* ranking = std::get_if<Ranking>(&result);
    ASSERT_EQ(ranking != nullptr, least.has_value());
    if (!ranking) continue;
    ++compared;
    const RankedPlan& first = ranking->plans.front();
    EXPECT_TRUE(first.fits);
    SCOPED_TRACE(constraints.plan.schedule + ", sharding " + to_string(constraints.plan.sharding));
    EXPECT_NEAR(first.prediction.iteration.value, least->value, 1e-9 * least->value);
    EXPECT_EQ(ranking->lower_bound, first.prediction.iteration);
    EXPECT_EQ(first.plan.lower_bound, first.prediction.iteration);
  }
  EXPECT_GT(compared, 3000);
}

/// The same where memory binds: the limit is such that only a few of all plans fit, perhaps none. On two levels, where
/// other placements are tried as well, a plan may be better than all in order, but never worse.
TEST(Optimal, EqualsExhaustiveSearchWhereMemoryBinds) {
  const CostModel costs = simulated_costs();
  int compared = 0;
  int none = 0;
  for (unsigned seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](unsigned most) { return static_cast<int>(random() % most); };
    // Many layers or many devices.
    const bool is_deep = below(2) == 0;
    const Graph graph = testing::branching_graph(random, is_deep ? 4 + below(4) : 2 + below(3));
    const double bandwidth = 1e5 * (1 + below(500));
    const int devices = is_deep ? 1 + below(3) : 2 + below(5);
    Topology topology = testing::flat_topology(devices, bandwidth, 0.0003 * below(3));
    const bool has_levels = devices % 2 == 0 && below(3) == 0;
    if (has_levels) {
      topology.levels.front().count = devices / 2;
      topology.levels.push_back({"rack", 2, {BytesPerSecond(bandwidth / 10), Seconds(0.001), {}, {}}});
    }
    if (below(3) == 0) topology.device.kind = DeviceKind::Gpu;
    Constraints constraints = random_constraints(random);
    constraints.plan.microbatches = 1 + below(4);
    if (constraints.plan.microbatches < devices) constraints.plan.sharding = StateSharding::None;
    if (constraints.plan.recompute && below(2) == 0) constraints.plan.recompute_every = 1 + below(2);
    constraints.memory_limit.reset();
    std::vector<std::pair<Bytes, Candidate>> all;
    each_candidate(graph, topology, constraints, [&](const Candidate& candidate) {
      try {
        const BoundPlan plan(plan_of_candidate(graph, topology, candidate, constraints.plan));
        all.emplace_back(costs.memory(graph, topology, plan).peak, candidate);
      } catch (const std::invalid_argument&) {}
    });
    if (all.empty()) continue;
    std::ranges::stable_sort(all, {}, [](const auto& entry) { return entry.first; });
    const std::size_t last = random() % (1 + all.size() / 3);
    constraints.memory_limit = below(8) == 0 ? all.front().first - Bytes(1) : all[last].first;
    std::optional<Seconds> least;
    for (const auto& [need, candidate] : all) {
      if (need > *constraints.memory_limit) break;
      try {
        const RankedPlan ranked = predicted_plan("any", graph, topology, candidate, costs, constraints);
        ASSERT_TRUE(ranked.fits);
        least = std::min(least.value_or(ranked.prediction.iteration), ranked.prediction.iteration);
      } catch (const std::invalid_argument&) {
      } catch (const std::runtime_error&) {}
    }
    const StrategyResult result = optimal_strategy().plan(graph, topology, costs, constraints);
    const auto* ranking = std::get_if<Ranking>(&result);
    SCOPED_TRACE(constraints.plan.schedule);
    if (!has_levels) { ASSERT_EQ(ranking != nullptr, least.has_value()); }
    if (ranking == nullptr) {
      ASSERT_FALSE(least);
      ++none;
      continue;
    }
    const RankedPlan& first = ranking->plans.front();
    EXPECT_TRUE(first.fits);
    EXPECT_LE(ranking->lower_bound, first.prediction.iteration);
    if (!least) continue;
    ++compared;
    EXPECT_LE(first.prediction.iteration.value, least->value * (1 + 1e-9));
    if (has_levels) continue;
    EXPECT_GE(first.prediction.iteration.value, least->value * (1 - 1e-9));
    EXPECT_EQ(ranking->lower_bound, first.prediction.iteration);
  }
  EXPECT_GT(compared, 1400);
  EXPECT_GT(none, 100);
}

/// No plan with a shorter step than it says is missing, also where there is hardly any time; with enough, as many plans
/// as are wanted are no longer than that.
TEST(Optimal, MissesNoneOfTheWantedPlans) {
  const CostModel costs = simulated_costs();
  int all_found = 0;
  for (unsigned seed = 1; seed <= 600; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 2 + static_cast<int>(random() % 3));
    const Topology topology =
        testing::flat_topology(1 + static_cast<int>(random() % 3), 1e5 * static_cast<double>(1 + random() % 500),
                               0.0003 * static_cast<double>(random() % 3));
    Constraints constraints = random_constraints(random);
    constraints.wanted = 2 + static_cast<int>(random() % 6);
    SCOPED_TRACE(constraints.plan.schedule);
    for (const double limit : {60.0, 1e-6}) {
      constraints.options[kTimeLimit] = limit;
      const StrategyResult result = optimal_strategy().plan(graph, topology, costs, constraints);
      const auto* ranking = std::get_if<Ranking>(&result);
      if (!ranking) continue;
      const Seconds others = ranking->others_lower_bound.value();
      int all = 0;
      each_plan(graph, topology, costs, constraints, [&](const RankedPlan& ranked) {
        const bool is_idle = std::ranges::any_of(ranked.plan.stages, [&](const Stage& stage) {
          return static_cast<int>(stage.devices.size()) > microbatches_of_a_step(constraints.plan).value_or(1000);
        });
        if (is_idle) return;  // the strategy does not consider it
        ++all;
        if (ranked.prediction.iteration >= others * (1 - 1e-9)) return;
        EXPECT_TRUE(std::ranges::any_of(
            ranking->plans,
            [&](const RankedPlan& known) { return known.fits && known.plan.stages == ranked.plan.stages; }))
            << ranked.prediction.iteration.value << " s";
      });
      if (limit < 1) continue;
      const auto found = std::ranges::count_if(ranking->plans, [&](const RankedPlan& known) {
        return known.fits && known.prediction.iteration <= others * (1 + 1e-9);
      });
      EXPECT_GE(found, std::min(all, constraints.wanted));
      all_found += all > constraints.wanted ? 1 : 0;
    }
  }
  EXPECT_GT(all_found, 100);
}

/// Three servers of two devices; 1e8 bytes from the first stage to the second take 0.1 s within a server and 10 s
/// between servers. No two layers fit on one device. Two replicas are faster than one, but only side by side: a
/// microbatch takes 2 (1 + 0.1 + 1) s there and back, and what the third stage does at the end hardly counts. The sum
/// of its gradients would take 100 s.
TEST(Optimal, FindsPlansThatAreOnlyShortWhenTheyArePlaced) {
  Graph graph = testing::chain_graph({1, 1, 0.01}, {1, 1, 0.01}, Bytes(100'000'000));
  graph.layers[1].outputs.front().bytes = Bytes(1000);
  graph.layers[2].parameter_bytes = Bytes(1'000'000'000);
  graph.layers[0].frozen_bytes = graph.layers[1].frozen_bytes = Bytes(2'000'000'000);
  Topology topology = testing::flat_topology(2);
  topology.levels.push_back({"racks", 3, {BytesPerSecond(1e7), Seconds(0), {}, {}}});
  Constraints constraints;
  constraints.plan.schedule = "gpipe";
  constraints.plan.microbatches = 2;
  constraints.memory_limit = Bytes(3'500'000'000);
  const StrategyResult result = optimal_strategy().plan(graph, topology, simulated_costs(), constraints);
  const RankedPlan& best = std::get<Ranking>(result).plans.front();
  EXPECT_NEAR(best.prediction.iteration.value, 4.2 + 0.04, 0.01);
  EXPECT_EQ(best.plan.stages[0].devices, (std::vector{0, 2}));
  EXPECT_EQ(best.plan.stages[1].devices, (std::vector{1, 3}));
}

/// A known step at which the best plan, or what is shorter, is not of interest; and one at which it is.
TEST(Optimal, FindsShorterPlansThanAKnownOne) {
  const CostModel costs = simulated_costs();
  for (unsigned seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 2 + static_cast<int>(random() % 3));
    const Topology topology =
        testing::flat_topology(1 + static_cast<int>(random() % 3), 1e5 * static_cast<double>(1 + random() % 500),
                               0.0003 * static_cast<double>(random() % 3));
    const Constraints constraints = random_constraints(random);
    const auto least = shortest(graph, topology, costs, constraints);
    const ShorterPlan any = shorter_plan(graph, topology, costs, constraints, {});
    ASSERT_EQ(any.plan.has_value(), least.has_value());
    EXPECT_TRUE(any.is_complete);
    if (!least) {
      EXPECT_GE(any.lower_bound, kForever) << "it is known that there is none";
      continue;
    }
    EXPECT_NEAR(any.plan->prediction.iteration.value, least->value, 1e-9 * least->value);
    EXPECT_EQ(any.lower_bound, any.plan->prediction.iteration);
    const ShorterPlan shorter = shorter_plan(graph, topology, costs, constraints, *least * 1.01);
    EXPECT_EQ(shorter.lower_bound, any.lower_bound);
    ASSERT_EQ(shorter.plan.has_value(), *least > 0_s);
    if (shorter.plan) { EXPECT_EQ(shorter.plan->prediction.iteration, any.plan->prediction.iteration); }
    const ShorterPlan none = shorter_plan(graph, topology, costs, constraints, *least);
    EXPECT_FALSE(none.plan);
    EXPECT_EQ(none.lower_bound, *least);
    const double tolerance = least->value * 1e-9;
    EXPECT_LE(least_step(graph, topology, constraints.plan).value, least->value + tolerance);
    for (const double than : {0.9, 1.0, 1.5})
      EXPECT_LE(quick_bound(graph, topology, costs, constraints, *least * than).value, least->value + tolerance);
    const ShorterPlan drafted = drafted_plan(graph, topology, costs, constraints, {}, [] { return false; });
    EXPECT_LE(drafted.lower_bound.value, least->value + tolerance);
    if (drafted.plan) { EXPECT_GE(drafted.plan->prediction.iteration.value, least->value - tolerance); }
  }
}

/// The first prediction takes most of the time for candidates, so that the others are left out; what is then called the
/// best must be, all the same.
TEST(Optimal, MissesNoCandidateForWhichThereWasNoTime) {
  const CostModel costs = simulated_costs();
  constexpr double limit = 0.05;
  int late = 0;
  for (unsigned seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 3);
    const Topology topology = testing::flat_topology(3, 1e5 * static_cast<double>(1 + random() % 500));
    Constraints constraints;
    constraints.plan.schedule = "pipedream";  // whose bounds exclude few candidates
    constraints.plan.microbatches = 4;
    constraints.options[kTimeLimit] = limit;
    const auto least = shortest(graph, topology, costs, constraints);
    if (!least) continue;  // it refuses tied parameters
    const SearchTime since(Seconds(1));
    CostModel slow = costs;
    slow.predict = [&](const Graph& g, const Topology& t, const BoundPlan& plan) {
      while (since.passed() < Seconds(0.6 * limit)) {}
      return costs.predict(g, t, plan);
    };
    const ShorterPlan found = shorter_plan(graph, topology, slow, constraints, {});
    EXPECT_LE(found.lower_bound.value, least->value * (1 + 1e-9));
    late += found.is_complete ? 0 : 1;
  }
  EXPECT_GT(late, 5) << "in some cases the first candidate does not exclude all others";
}

/// With hardly any time most is left out; with enough nothing is, though random moves take all that they may.
TEST(Optimal, SaysWhetherItsTimeLimitCutItOff) {
  const CostModel costs = simulated_costs();
  std::mt19937 random(1);
  const Graph graph = testing::branching_graph(random, 6);
  const Topology topology = testing::flat_topology(4, 1e7);
  Constraints constraints;
  constraints.plan.microbatches = 4;
  for (const char* schedule : {"1f1b", "interleaved-1f1b", "pipedream"}) {
    constraints.plan.schedule = schedule;
    constraints.options[kTimeLimit] = 1e-6;
    const ShorterPlan hasty = shorter_plan(graph, topology, costs, constraints, {});
    EXPECT_FALSE(hasty.is_complete) << schedule;
    EXPECT_TRUE(hasty.plan);
    constraints.options[kTimeLimit] = 60.0;
    const ShorterPlan all = shorter_plan(graph, topology, costs, constraints, {});
    EXPECT_TRUE(all.is_complete) << schedule;
    EXPECT_EQ(all.lower_bound, all.plan->prediction.iteration) << schedule;
  }
}

/// On several levels other placements may be better than the best one in order. Replicas without a microbatch, which
/// the strategy does not consider, would move later stages to other servers.
TEST(Optimal, IsNoWorseThanAnySplitInOrderOnSeveralLevels) {
  const CostModel costs = simulated_costs();
  for (unsigned seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 2 + static_cast<int>(random() % 3));
    Topology topology = testing::flat_topology(2, 1e6 * static_cast<double>(1 + random() % 50));
    topology.levels.push_back({"rack", 2, {BytesPerSecond(1e6), Seconds(0.001), {}, {}}});
    Constraints constraints;
    constraints.plan.microbatches = 4 + static_cast<int>(random() % 3);
    const auto least = shortest(graph, topology, costs, constraints);
    const auto result = optimal_strategy().plan(graph, topology, costs, constraints);
    EXPECT_LE(std::get<Ranking>(result).plans.front().prediction.iteration.value, least->value * (1 + 1e-9));
  }
}

TEST(Optimal, IsNeverWorseThanAuto) {
  const CostModel costs = simulated_costs();
  for (unsigned seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 8 + static_cast<int>(random() % 12));
    const Topology topology = testing::flat_topology(4, 1e6 * static_cast<double>(1 + random() % 50));
    Constraints constraints;
    constraints.plan.schedule = random() % 4 == 0 ? "interleaved-1f1b" : "1f1b";
    constraints.plan.microbatches = 4;
    constraints.options["time-limit"] = 0.05;
    const auto other = rank_plans(graph, topology, costs, constraints);
    const auto result = optimal_strategy().plan(graph, topology, costs, constraints);
    const Ranking& ranking = std::get<Ranking>(result);
    EXPECT_LE(ranking.plans.front().prediction.iteration, std::get<Ranking>(other).plans.front().prediction.iteration);
    EXPECT_GT(ranking.lower_bound, 0_s);
    EXPECT_LE(ranking.lower_bound, ranking.plans.front().prediction.iteration);
  }
}

/// Devices may be idle: more of them never make the best plan slower. The time limit is generous, so that what is found
/// does not depend on the machine.
TEST(Optimal, IsNeverSlowerOnMoreDevices) {
  const CostModel costs = simulated_costs();
  for (unsigned seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = testing::branching_graph(random, 4 + static_cast<int>(random() % 4));
    const double bandwidth = 1e6 * static_cast<double>(1 + random() % 50);
    Constraints constraints;
    constraints.plan.microbatches = 4;
    constraints.options["time-limit"] = 60.0;
    std::optional<Seconds> fewer;
    for (const int devices : {1, 2, 3, 4, 6, 8}) {
      const auto result =
          optimal_strategy().plan(graph, testing::flat_topology(devices, bandwidth), costs, constraints);
      const Ranking& ranking = std::get<Ranking>(result);
      const Seconds step = ranking.plans.front().prediction.iteration;
      EXPECT_EQ(ranking.lower_bound, step) << devices;
      EXPECT_LE(step.value, fewer.value_or(step).value * (1 + 1e-9)) << devices;
      fewer = step;
    }
  }
}

/// The same where time is up before the best plan is proven.
TEST(Optimal, IsNeverSlowerOnMoreDevicesOnShippedProfiles) {
  const CostModel costs = simulated_costs();
  for (const std::string profile : {"alexnet", "vgg16", "resnet18"}) {
    SCOPED_TRACE(profile);
    const Graph graph = read_pipedream_profile(source_folder() + "/tests/golden/pipedream", profile);
    Constraints constraints;
    constraints.plan.microbatches = 8;
    constraints.options["time-limit"] = 5.0;
    std::optional<Seconds> fewer;
    for (const int devices : {4, 8, 32}) {
      const auto result = optimal_strategy().plan(graph, testing::flat_topology(devices), costs, constraints);
      const Seconds step = std::get<Ranking>(result).plans.front().prediction.iteration;
      EXPECT_LE(step.value, fewer.value_or(step).value * (1 + 1e-9)) << devices;
      fewer = step;
    }
  }
}

/// A layer of gnmt takes 3.149 + 15.883 ms, 8 times on its one device; the layers before it on the longest path take
/// 63.15 ms, and are on other devices, or take longer there, so that messages come on top of 215.4 ms.
TEST(Optimal, BoundsSeveralStagesPerDeviceByWhatTheyWaitFor) {
  const Graph graph = read_pipedream_profile(source_folder() + "/tests/golden/pipedream", "gnmt");
  Constraints constraints;
  constraints.plan.schedule = "interleaved-1f1b";
  constraints.plan.microbatches = 8;
  constraints.options["time-limit"] = 0.5;
  const auto result = optimal_strategy().plan(graph, testing::flat_topology(8), simulated_costs(), constraints);
  const Ranking& ranking = std::get<Ranking>(result);
  EXPECT_GT(ranking.lower_bound, 215.4_ms);
  EXPECT_LE(*ranking.lower_bound, ranking.plans.front().prediction.iteration);
}

}  // namespace
}  // namespace stagecraft::partitioner
