#include "partitioner/choices/settings_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/prediction/estimate.h"
#include "partitioner/candidate.h"
#include "partitioner/choices/listing.h"
#include "partitioner/costs/pipeline_costs.h"
#include "partitioner/strategies/strategies.h"
#include "tests/support/chains.h"
#include "tests/support/every_partition.h"

namespace stagecraft::partitioner {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::ThrowsMessage;

/// The shortest step of all partitions with any replicas and chunks that fit, on devices in order.
std::optional<Seconds> shortest(const Graph& graph, const Topology& topology, const CostModel& costs,
                                const Constraints& constraints) {
  std::optional<Seconds> out;
  const int devices = device_count(topology);
  const bool chunked = schedule_by_name(constraints.plan.schedule).chunked;
  for (const int chunks : chunked ? std::vector{1, 2, 4, 8} : std::vector{1}) {
    const int most = chunks == 1 ? devices : std::min(devices * chunks, static_cast<int>(graph.layers.size()));
    testing::each_partition(graph, most, [&](const Partition& partition) {
      const int stages = static_cast<int>(partition.replicas.size());
      if (constraints.stages && stages != *constraints.stages) return;
      if (chunks > 1 && std::ranges::any_of(partition.replicas, [](int r) { return r > 1; })) return;
      Candidate candidate;
      candidate.partition = partition;
      candidate.chunks = chunks;
      // Stages of one device need equal replicas.
      const int most_replicas = std::min(devices * chunks / stages, constraints.plan.microbatches);
      for (int replicas = 1; replicas <= (chunks == 1 ? 1 : most_replicas); ++replicas) {
        if (chunks > 1) candidate.partition.replicas.assign(partition.replicas.size(), replicas);
        try {
          const RankedPlan ranked = predicted_plan("any", graph, topology, candidate, costs, constraints);
          if (ranked.fits) out = std::min(out.value_or(ranked.prediction.iteration), ranked.prediction.iteration);
        } catch (const std::invalid_argument&) {
        } catch (const std::runtime_error&) {}
      }
    });
  }
  return out;
}

/// Profiles of microbatches of 1 and `size` samples.
std::vector<Graph> random_profiles(std::mt19937& random, std::int64_t size) {
  std::uniform_real_distribution<double> factor(1, 1.1 * static_cast<double>(size));
  Graph one = testing::branching_graph(random, 2 + static_cast<int>(random() % 2));
  one.microbatch_samples = 1;
  Graph other = one;
  other.microbatch_samples = size;
  for (Layer& layer : other.layers) {
    layer.forward.median = layer.forward.median * factor(random);
    layer.backward.median = layer.backward.median * factor(random);
    for (Output& output : layer.outputs) output.bytes = output.bytes * size;
  }
  return {one, other};
}

SettingSpace random_space(std::mt19937& random, std::int64_t size) {
  const auto compared = schedules_to_compare();
  SettingSpace out;
  out.graphs = sized_graphs(random_profiles(random, size), 4).graphs;
  out.schedules = {"1f1b"};
  if (random() % 2 == 0) out.schedules.push_back(compared[random() % compared.size()]);
  std::ranges::sort(out.schedules);
  const auto repeated = std::ranges::unique(out.schedules);
  out.schedules.erase(repeated.begin(), repeated.end());
  out.asked = random() % out.graphs.size();
  out.buckets = random() % 2 == 0;
  if (random() % 3 != 0) out.constraints.memory_limit = Bytes(100'000 + static_cast<std::int64_t>(random() % 900'000));
  if (random() % 6 == 0) {
    out.recomputation = false;
    out.constraints.plan.recompute = true;
  }
  if (random() % 6 == 0) out.constraints.stages = 1 + static_cast<int>(random() % 3);
  out.constraints.options[kTimeLimit] = 60.0;  // generous: no result depends on the machine
  return out;
}

/// Every setting of the space, found without settings_of.
std::vector<StepSettings> every_setting(const SettingSpace& space) {
  std::vector<StepSettings> out;
  for (std::size_t g = 0; g < space.graphs.size(); ++g) {
    const Graph& graph = space.graphs[g].graph;
    std::int64_t parameters = 0;
    int layers = 0;
    for (const Layer& layer : graph.layers) {
      parameters += layer.parameter_bytes.value;
      layers += is_input(layer) ? 0 : 1;
    }
    std::vector<std::pair<bool, int>> recomputations{{space.constraints.plan.recompute, 0}};
    if (space.recomputation && space.constraints.memory_limit) {
      recomputations.emplace_back(true, 0);
      recomputations.emplace_back(true, 1);
      if (layers > 2) recomputations.emplace_back(true, 2);
    }
    std::vector<std::optional<Bytes>> buckets{std::nullopt};
    for (std::int64_t share = 4; space.buckets && share <= 64; share *= 4) {
      std::int64_t power = 1;
      while (power * 2 * share <= parameters) power *= 2;
      if (power * share <= parameters) buckets.emplace_back(Bytes(power));
    }
    for (const std::string& schedule : space.schedules) {
      for (const auto& [recompute, every] : recomputations) {
        for (const auto& bytes : buckets) {
          StepSettings& made = out.emplace_back(StepSettings{g, space.constraints.plan});
          made.plan.microbatches = 4 / static_cast<int>(*graph.microbatch_samples);
          made.plan.schedule = schedule;
          made.plan.recompute = recompute;
          made.plan.recompute_every = every;
          made.plan.gradient_bucket_bytes = bytes;
        }
        if (!space.sharding || !space.constraints.memory_limit || optimizer_bytes(graph, 4_B) == 0_B) continue;
        out.push_back(out.back());
        out.back().plan.gradient_bucket_bytes = space.constraints.plan.gradient_bucket_bytes;
        out.back().plan.sharding = StateSharding::Optimizer;
        if (schedule != kSeldomGathers) continue;
        out.push_back(out.back());
        out.back().plan.sharding = StateSharding::Parameters;
      }
    }
  }
  return out;
}

bool is_same(const StepSettings& a, const StepSettings& b) {
  return a.graph == b.graph && a.plan.schedule == b.plan.schedule && a.plan.microbatches == b.plan.microbatches &&
         a.plan.recompute == b.plan.recompute && a.plan.recompute_every == b.plan.recompute_every &&
         a.plan.gradient_bucket_bytes == b.plan.gradient_bucket_bytes && a.plan.sharding == b.plan.sharding;
}

/// Every partition with any replicas and chunks, with every setting: the best plan is the best of all, and what is
/// known about each setting is true.
TEST(SettingsSearch, EqualsExhaustiveSearchOverAllSettings) {
  const CostModel costs = simulated_costs();
  int compared = 0;
  int recomputed = 0;
  int others = 0;
  int overlapping = 0;
  for (unsigned seed = 1; seed <= 3300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    SettingSpace space = random_space(random, random() % 2 == 0 ? 2 : 4);
    const Topology topology =
        testing::flat_topology(1 + static_cast<int>(random() % 3), 1e5 * static_cast<double>(1 + random() % 500),
                               0.0003 * static_cast<double>(random() % 3));
    // Replicas without a microbatch would update a part; the strategies consider none.
    space.sharding = std::ranges::all_of(
        space.graphs, [&](const SizedGraph& sized) { return sized.microbatches >= device_count(topology); });
    std::optional<Seconds> least;
    std::vector<std::pair<StepSettings, std::optional<Seconds>>> steps;
    for (const StepSettings& settings : every_setting(space)) {
      Constraints constraints = space.constraints;
      constraints.plan = settings.plan;
      const auto step = shortest(space.graphs[settings.graph].graph, topology, costs, constraints);
      if (step) least = std::min(least.value_or(*step), *step);
      steps.emplace_back(settings, step);
    }
    if (!least) {
      EXPECT_THROW((void)search_settings(space, topology, costs), NoAnswerError);
      continue;
    }
    ++compared;
    const SettingsSearch search = search_settings(space, topology, costs);
    const SettingTrial& best = search.trials[search.best];
    ASSERT_TRUE(best.plan);
    EXPECT_TRUE(best.plan->fits);
    const auto is_shortest = [&](const SettingTrial& trial) {
      return trial.plan && trial.plan->prediction.iteration <= *least * (1 + 1e-9);
    };
    const auto shortest_trial = std::ranges::find_if(search.trials, is_shortest);
    ASSERT_NE(shortest_trial, search.trials.end());
    if (is_shortest(best)) {
      EXPECT_EQ(search.lower_bound, best.plan->prediction.iteration);
    } else {
      EXPECT_LT(*step_in_run(best.plan->plan), *step_in_run(shortest_trial->plan->plan));
      EXPECT_LE(*search.lower_bound, best.plan->prediction.iteration);
      ++overlapping;
    }
    for (const SettingTrial& trial : search.trials) {
      const auto found =
          std::ranges::find_if(steps, [&](const auto& entry) { return is_same(entry.first, trial.settings); });
      ASSERT_NE(found, steps.end()) << settings_text(trial.settings, space);
      const std::optional<Seconds> step = found->second;
      EXPECT_LE(trial.lower_bound.value, step.value_or(kForever).value * (1 + 1e-9));
      if (trial.plan) {
        ASSERT_TRUE(step);
        EXPECT_GE(trial.plan->prediction.iteration.value, step->value * (1 - 1e-9));
      }
      EXPECT_TRUE(is_settled(trial, *least * (1 - 1e-9))) << settings_text(trial.settings, space);
    }
    recomputed += best.settings.plan.recompute && space.recomputation ? 1 : 0;
    others += best.settings.graph != *space.asked ? 1 : 0;
  }
  EXPECT_GT(compared, 2000);
  EXPECT_GT(recomputed, 20) << "memory forces recomputation in some cases";
  EXPECT_GT(others, 200) << "and another microbatch size is the best in many";
  EXPECT_GT(overlapping, 0) << "in some, steps of a run overlap more";
}

/// A chain of layers that each save `saved` bytes of a sample, in microbatches of 1, 2 and 4 samples. A sample takes 3
/// s in a layer, and each microbatch 1 s more.
SettingSpace chain_space(int layers, Bytes saved) {
  std::vector<Graph> profiles;
  for (const int samples : {1, 2, 4}) {
    Graph graph = testing::chain_graph(std::vector<double>(static_cast<std::size_t>(layers), 1.0 * samples),
                                       std::vector<double>(static_cast<std::size_t>(layers), 2.0 * samples + 1));
    for (Layer& layer : graph.layers) layer.saved_bytes = saved * samples;
    graph.microbatch_samples = samples;
    profiles.push_back(graph);
  }
  SettingSpace out;
  out.graphs = sized_graphs(profiles, 4).graphs;
  out.schedules = {"gpipe"};
  out.constraints.plan.schedule = "gpipe";
  out.asked = 0;
  return out;
}

// On one device a step of four samples takes (3 + 1) * 4 s in four microbatches of 1, 14 s in two of 2, 13 s in one
// of 4.
TEST(SettingsSearch, TakesTheMicrobatchesWithTheShortestStep) {
  const SettingSpace space = chain_space(1, 100_B);
  const SettingsSearch search = search_settings(space, testing::flat_topology(1), simulated_costs());
  ASSERT_EQ(search.trials.size(), 3U);
  EXPECT_EQ(search.best, 2U);
  EXPECT_EQ(search.trials[2].plan->prediction.iteration, 13_s);
  EXPECT_EQ(search.trials[2].plan->plan.microbatch_samples, 4);
  EXPECT_EQ(search.trials[2].plan->plan.microbatches, 1);
  EXPECT_EQ(search.lower_bound, 13_s);
}

// Two layers on one device, under gpipe: all four samples are saved, 2 * 4 * 100 B, whatever the microbatch. With
// recomputation of the stage what is saved is what enters it, nothing here, and then one microbatch's 200 B per sample.
TEST(SettingsSearch, RecomputesOrTakesSmallerMicrobatchesWhereMemoryIsShort) {
  SettingSpace space = chain_space(2, 100_B);
  const auto best_with = [&](Bytes limit) {
    space.constraints.memory_limit = limit;
    const SettingsSearch search = search_settings(space, testing::flat_topology(1), simulated_costs());
    return search.trials[search.best];
  };
  const SettingTrial ample = best_with(100'000_B);
  EXPECT_FALSE(ample.settings.plan.recompute);
  EXPECT_EQ(ample.plan->prediction.iteration, 26_s);
  const Bytes needed = ample.plan->prediction.timeline.memory[0].total;
  const SettingTrial less = best_with(needed - 1_B);
  EXPECT_LE(less.plan->prediction.timeline.memory[0].total, needed - 1_B);
  EXPECT_TRUE(less.settings.plan.recompute || less.settings.graph < 2);
  EXPECT_GT(less.plan->prediction.iteration, 26_s);
  const SettingTrial least = best_with(300_B);
  EXPECT_TRUE(least.settings.plan.recompute);
  EXPECT_LT(least.settings.graph, 2U) << "four samples at once need 800 B even so";
}

TEST(SettingsSearch, IsNeverWorseThanTheRequestAlone) {
  const CostModel costs = simulated_costs();
  for (unsigned seed = 1; seed <= 30; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    SettingSpace space;
    Graph graph = testing::branching_graph(random, 5 + static_cast<int>(random() % 5));
    space.graphs = {{graph, 4, ""}};
    space.asked = 0;
    space.schedules = schedules_to_compare();
    space.constraints.plan.microbatches = 4;
    space.constraints.options[kTimeLimit] = 2.0;
    const Topology topology = testing::flat_topology(4, 1e6 * static_cast<double>(1 + random() % 50));
    const StrategyResult alone = plan_with(kDefaultStrategy, graph, topology, costs, space.constraints);
    const SettingsSearch search = search_settings(space, topology, costs);
    const SettingTrial& best = search.trials[search.best];
    EXPECT_LE(best.plan->prediction.iteration.value,
              std::get<Ranking>(alone).plans.front().prediction.iteration.value * (1 + 1e-9));
    EXPECT_LE(search.lower_bound, best.plan->prediction.iteration);
    EXPECT_GT(search.lower_bound, 0_s);
  }
}

/// With hardly any time, the result is a plan and its bound holds all the same.
TEST(SettingsSearch, KeepsItsTimeLimitAndATrueBound) {
  const CostModel costs = simulated_costs();
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    SettingSpace space = random_space(random, 4);
    space.constraints.memory_limit.reset();
    space.constraints.stages.reset();
    const Topology topology = testing::flat_topology(3, 1e6);
    const SettingsSearch whole = search_settings(space, topology, costs);
    space.constraints.options[kTimeLimit] = 1e-6;
    const SettingsSearch hasty = search_settings(space, topology, costs);
    const Seconds best = whole.trials[whole.best].plan->prediction.iteration;
    EXPECT_LE(hasty.lower_bound.value_or(kForever).value, best.value * (1 + 1e-9));
    EXPECT_GE(hasty.trials[hasty.best].plan->prediction.iteration.value, best.value * (1 - 1e-9));
  }
}

TEST(SettingsSearch, SaysWhatWouldFitWhereNothingDoes) {
  SettingSpace space = chain_space(2, 100_B);
  space.constraints.memory_limit = 10_B;
  EXPECT_THAT([&] { (void)search_settings(space, testing::flat_topology(1), simulated_costs()); },
              ThrowsMessage<NoAnswerError>(AllOf(HasSubstr("no plan with any of 9 settings; with 4 microbatches of 1 "
                                                           "samples, gpipe, recompute "),
                                                 HasSubstr("no plan fits in memory; in the smallest"))));
  space.constraints.memory_limit.reset();
  space.constraints.stages = 2;  // on one device
  EXPECT_THAT(
      [&] { (void)search_settings(space, testing::flat_topology(1), simulated_costs()); },
      ThrowsMessage<NoAnswerError>(HasSubstr("no plan with any of 3 settings; with 4 microbatches of 1 samples, "
                                             "gpipe: no candidate is possible")));
}

Constraints of_four() {
  Constraints out;
  out.plan.microbatches = 4;
  return out;
}

/// A plan whose step and bound are given.
StrategyResult told(double step, std::optional<double> bound, bool fits = true) {
  RankedPlan ranked;
  ranked.prediction.iteration = Seconds(step);
  ranked.fits = fits;
  if (bound) ranked.plan.lower_bound = Seconds(*bound);
  Ranking out;
  out.plans.push_back(ranked);
  return out;
}

TEST(ScheduleSearch, ComparesSynchronousSchedulesThatTrain) {
  EXPECT_THAT(schedules_to_compare(),
              AllOf(Contains("gpipe"), Contains("1f1b"), Contains("interleaved-1f1b"), Contains("zb-h1"),
                    Not(Contains("pipedream")), Not(Contains("pipedream-2bw")), Not(Contains("forward")),
                    Not(Contains("listed"))));
}

TEST(ScheduleSearch, TakesTheShortestStepAndTheSmallestBound) {
  const auto plan = [](const Constraints& constraints) {
    if (constraints.plan.schedule == "a") return told(12, 9);
    if (constraints.plan.schedule == "b") return told(10, 10);
    return told(11, 8);
  };
  const SettingsSearch search = search_schedules({"a", "b", "c"}, of_four(), plan);
  EXPECT_EQ(search.best, 1U);
  EXPECT_EQ(search.lower_bound, 8_s) << "a plan with c may take 8 s";
  EXPECT_EQ(schedules_note(search), "a 12.0 s, b 10.0 s, c 11.0 s");
}

TEST(ScheduleSearch, ComparesStepsOfARun) {
  const auto plan = [](const Constraints& constraints) {
    if (constraints.plan.schedule == "a") return told(10, 8);
    StrategyResult out = told(11, 9.5);
    std::get<Ranking>(out).plans.front().plan.run_iteration = 9_s;
    return out;
  };
  const SettingsSearch search = search_schedules({"a", "b"}, of_four(), plan);
  EXPECT_EQ(search.best, 1U);
  EXPECT_EQ(search.lower_bound, 9.5_s) << "of plans with b: those with a have the shorter single step";
  EXPECT_EQ(schedules_note(search), "a 10.0 s, b 9.00 s");
  EXPECT_THAT(schedules_text(search, "", 80), AllOf(HasSubstr("in a run"), HasSubstr("11.0 s   9.00 s")));
}

TEST(ScheduleSearch, TakesAPlanThatFitsBeforeAFasterOne) {
  const auto plan = [](const Constraints& constraints) {
    return constraints.plan.schedule == "a" ? told(10, {}, false) : told(11, 8);
  };
  const SettingsSearch search = search_schedules({"a", "b"}, of_four(), plan);
  EXPECT_EQ(search.best, 1U);
  EXPECT_FALSE(search.lower_bound) << "nothing is known of a";
  EXPECT_THAT(schedules_text(search, "", 80), HasSubstr("does not fit"));
}

TEST(ScheduleSearch, SaysWhichSchedulesHaveNoPlan) {
  const auto plan = [](const Constraints& constraints) -> StrategyResult {
    if (constraints.plan.schedule == "a") return Infeasible{"too large"};
    if (constraints.plan.schedule == "b") throw std::invalid_argument("not with replicas");
    return told(11, 8);
  };
  const SettingsSearch search = search_schedules({"a", "b", "c"}, of_four(), plan);
  EXPECT_EQ(search.best, 2U);
  EXPECT_EQ(search.lower_bound, 8_s);
  EXPECT_EQ(schedules_note(search), "c 11.0 s; no plan with a, b");
  EXPECT_THAT(schedules_text(search, "", 80), AllOf(HasSubstr("no plan with a: too large"), HasSubstr("c  ")));
  EXPECT_THAT([&] { (void)search_schedules({"a", "b"}, of_four(), plan); },
              ThrowsMessage<std::runtime_error>(AllOf(HasSubstr("a: too large"), HasSubstr("b: not with replicas"))));
}

// By planning with each schedule alone.
TEST(ScheduleSearch, IsAsGoodAsTheBestOfAllSchedules) {
  const unsigned seed = 17;
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> time(0.1, 3);
  const CostModel costs = simulated_costs();
  for (int i = 0; i < 20; ++i) {
    std::vector<double> forward;
    std::vector<double> backward;
    const std::size_t layers = 2 + random() % 4;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      forward.push_back(time(random));
      backward.push_back(2 * time(random));
    }
    const Graph graph = testing::chain_graph(forward, backward, Bytes(100));
    const Topology topology = testing::flat_topology(static_cast<int>(1 + random() % 4), 1000);
    const auto plan = [&](const Constraints& constraints) {
      return plan_with(kDefaultStrategy, graph, topology, costs, constraints);
    };
    const SettingsSearch search = search_schedules(schedules_to_compare(), of_four(), plan);
    ASSERT_EQ(search.trials.size(), schedules_to_compare().size());
    const RankedPlan& best = *search.trials[search.best].plan;
    EXPECT_EQ(best.plan.schedule, search.trials[search.best].settings.plan.schedule);
    ASSERT_TRUE(search.lower_bound) << "seed " << seed << " case " << i;
    bool shortest = true;
    for (const std::string& schedule : schedules_to_compare()) {
      Constraints alone = of_four();
      alone.plan.schedule = schedule;
      const StrategyResult result = plan(alone);
      const RankedPlan& first = std::get<Ranking>(result).plans.front();
      EXPECT_LE(*step_in_run(best.plan), *step_in_run(first.plan) * (1 + 1e-9)) << "seed " << seed << " case " << i;
      if (best.prediction.iteration <= first.prediction.iteration * (1 + 1e-9)) continue;
      EXPECT_LT(*step_in_run(best.plan), best.prediction.iteration) << "seed " << seed << " case " << i;
      shortest = false;
    }
    for (const SettingTrial& trial : search.trials) {
      if (!shortest && &trial != &search.trials[search.best]) continue;
      EXPECT_LE(*search.lower_bound, *trial.plan->plan.lower_bound) << "seed " << seed << " case " << i;
    }
    EXPECT_LE(*search.lower_bound, best.prediction.iteration * (1 + 1e-9)) << "seed " << seed << " case " << i;
  }
}

}  // namespace
}  // namespace stagecraft::partitioner
