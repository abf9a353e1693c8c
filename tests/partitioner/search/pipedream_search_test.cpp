#include "partitioner/search/pipedream_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "partitioner/strategies/pipedream.h"
#include "tests/support/chains.h"
#include "tests/support/pipedream_cases.h"

// A slow, literal implementation of PipeDream's recurrence, compared with ours on small random graphs.

namespace stagecraft::partitioner {
namespace {

using Nodes = std::set<int>;
constexpr double kNever = std::numeric_limits<double>::infinity();

bool strictly_inside(const Nodes& inner, const Nodes& outer) {
  return inner.size() < outer.size() && std::includes(outer.begin(), outer.end(), inner.begin(), inner.end());
}

struct Naive {
  const Graph& graph;
  std::map<int, Nodes> ancestors;
  std::map<int, Nodes> consumers;
  std::vector<Nodes> states;  ///< the first is empty and stands for "from the start"

  explicit Naive(const Graph& g) : graph(g) {
    const int n = static_cast<int>(g.layers.size());
    for (int round = 0; round < n; ++round) {
      for (const Edge& edge : g.edges) {
        ancestors[edge.destination].insert(edge.source);
        for (const int above : Nodes(ancestors[edge.source])) ancestors[edge.destination].insert(above);
        consumers[edge.source].insert(edge.destination);
      }
    }
    int first = 0;
    while (!ancestors[first].empty()) ++first;
    std::set<Nodes> known = {{first}};
    std::vector<Nodes> open = {{first}};
    while (!open.empty()) {
      const Nodes state = open.back();
      open.pop_back();
      for (const int member : state) {
        for (const int consumer : consumers[member]) {
          Nodes next = state;
          next.insert(consumer);
          next.insert(ancestors[consumer].begin(), ancestors[consumer].end());
          if (known.insert(next).second) open.push_back(next);
        }
      }
    }
    states.assign(known.begin(), known.end());
    std::stable_sort(states.begin(), states.end(), [](const Nodes& a, const Nodes& b) { return a.size() < b.size(); });
    states.insert(states.begin(), Nodes{});
  }

  double sum(const Nodes& from, const Nodes& to, const std::function<double(const Layer&)>& value) const {
    double total = 0;
    for (const int node : to) {
      if (!from.contains(node)) total += value(graph.layers[static_cast<std::size_t>(node)]);
    }
    return total;
  }

  double boundary(const Nodes& state) {
    Nodes maximal;
    for (const int node : state) {
      bool top = true;
      for (const int consumer : consumers[node]) top = top && !state.contains(consumer);
      if (top) maximal.insert(node);
    }
    Nodes counted = maximal;
    for (const int top : maximal) {
      for (const int above : ancestors[top]) {
        for (const int consumer : consumers[above]) {
          if (consumer != top && !ancestors[top].contains(consumer)) counted.insert(above);
        }
      }
    }
    return sum({}, counted, [](const Layer& l) { return static_cast<double>(activation_bytes(l).value); });
  }

  double time(const std::vector<Level>& levels, const PipedreamOptions& o) {
    const std::size_t n_states = states.size();
    std::map<std::pair<std::size_t, std::size_t>, double> work;
    std::map<std::pair<std::size_t, std::size_t>, double> parameters;
    std::map<std::pair<std::size_t, std::size_t>, double> kept;
    std::vector<double> out;
    for (const Nodes& state : states) out.push_back(boundary(state));
    for (std::size_t i = 0; i < n_states; ++i) {
      for (std::size_t j = 0; j < n_states; ++j) {
        if (!strictly_inside(states[i], states[j])) continue;
        work[{i, j}] =
            sum(states[i], states[j], [](const Layer& l) { return (l.forward.median + l.backward.median).value; });
        parameters[{i, j}] =
            sum(states[i], states[j], [](const Layer& l) { return static_cast<double>(l.parameter_bytes.value); });
        kept[{i, j}] = parameters[{i, j}] + sum(states[i], states[j], [](const Layer& l) {
                         return static_cast<double>(activation_bytes(l).value);
                       });
      }
    }
    int group = 1;
    for (const Level& level : levels) {
      const int n = level.count;
      const double rate = level.link.bandwidth.value;
      std::map<std::pair<std::size_t, std::size_t>, double> whole;
      for (std::size_t i = 0; i < n_states; ++i) {
        std::map<std::pair<std::size_t, int>, double> best;
        for (int r = 1; r <= n; ++r) {
          for (std::size_t j = 0; j < n_states; ++j) {
            if (!strictly_inside(states[i], states[j])) continue;
            const auto fits = [&](std::size_t from, int replicas) {
              return !o.use_memory_constraint || std::ceil(static_cast<double>(n - r) / replicas) * kept[{from, j}] <=
                                                     static_cast<double>(o.memory_limit.value);
            };
            double& mine = best[{j, r}] = kNever;
            if ((r == 1 || !o.straight_pipeline) && fits(i, r)) {
              mine = (work[{i, j}] + 4.0 * (r - 1) * parameters[{i, j}] / (rate * r * group)) / r;
            }
            bool splittable = false;
            for (std::size_t k = 0; k < n_states; ++k) {
              if (!strictly_inside(states[i], states[k]) || !strictly_inside(states[k], states[j])) continue;
              splittable = true;
              for (int q = 1; q < r && (q == 1 || !o.straight_pipeline); ++q) {
                if (!fits(k, q)) continue;
                double option = (work[{k, j}] + 4.0 * (q - 1) * parameters[{k, j}] / (rate * q)) / q;
                if (o.activation_compression_ratio) {
                  const double scale = 2 / (rate * q * *o.activation_compression_ratio);
                  option = std::max(option, scale * out[k]);
                  if (j + 1 != n_states) option = std::max(option, scale * out[j]);
                }
                mine = std::min(mine, std::max(best[{k, r - q}], option));
              }
            }
            if (o.use_fewer_machines && splittable && r > 1) mine = std::min(mine, best[{j, r - 1}]);
          }
        }
        for (std::size_t j = 0; j < n_states; ++j) {
          if (strictly_inside(states[i], states[j])) whole[{i, j}] = best[{j, n}];
        }
      }
      work = whole;
      group = n;
    }
    return work[{0, n_states - 1}];
  }
};

Graph random_graph(std::mt19937& random, int layers) {
  Graph graph;
  const auto up_to = [&](int most) { return static_cast<int>(random() % static_cast<unsigned>(most + 1)); };
  for (int i = 0; i < layers; ++i) {
    Layer layer;
    layer.id = layer.name = "l" + std::to_string(i);
    layer.kind = "Linear";
    layer.forward.median = Seconds(up_to(20) * 0.001);
    layer.backward.median = Seconds(up_to(40) * 0.001);
    layer.outputs = {{Bytes(up_to(10) * 1'000'000), {}, "", true}};
    layer.parameter_bytes = Bytes(up_to(3) == 0 ? up_to(20) * 1'000'000 : 0);
    graph.layers.push_back(layer);
    bool fed = false;
    for (int j = std::max(0, i - 4); j < i; ++j) {
      if (up_to(9) >= 3) continue;
      graph.edges.push_back({j, i, std::nullopt});
      fed = true;
    }
    if (!fed && i > 0 && up_to(9) > 0) graph.edges.push_back({i - 1, i, std::nullopt});
  }
  return graph;
}

PipedreamOptions random_options(std::mt19937& random) {
  PipedreamOptions options;
  options.straight_pipeline = random() % 4 == 0;
  options.use_memory_constraint = random() % 3 == 0;
  options.memory_limit = Bytes(static_cast<std::int64_t>(random() % 200) * 1'000'000 + 1);
  options.use_fewer_machines = random() % 3 == 0;
  if (random() % 4 != 0) options.activation_compression_ratio = random() % 2 == 0 ? 1 : 2.5;
  return options;
}

void compare(const std::vector<std::vector<int>>& counts, unsigned seeds, int most_layers) {
  int answers = 0;
  for (unsigned seed = 1; seed <= seeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = random_graph(random, 2 + static_cast<int>(random() % static_cast<unsigned>(most_layers - 1)));
    const std::vector<int>& count = counts[random() % counts.size()];
    std::vector<double> bandwidths;
    for (std::size_t i = 0; i < count.size(); ++i) bandwidths.push_back(1e8 * static_cast<double>(1 + random() % 100));
    const Topology topology = levels_topology(count, bandwidths);
    const PipedreamOptions options = random_options(random);
    const double wanted = Naive(graph).time(topology.levels, options);
    const auto result = pipedream_candidate(graph, topology, options);
    if (std::holds_alternative<Infeasible>(result)) {
      EXPECT_EQ(wanted, kNever) << std::get<Infeasible>(result).reason;
      continue;
    }
    ++answers;
    const Candidate& candidate = std::get<Candidate>(result);
    EXPECT_NEAR(candidate.steady_state->value, wanted, 1e-9 * wanted);
    const std::vector<int>& stages = candidate.partition.stage_of_layer;
    for (const Edge& edge : graph.edges) {
      EXPECT_LE(stages[static_cast<std::size_t>(edge.source)], stages[static_cast<std::size_t>(edge.destination)]);
    }
    for (int stage = 0; stage < static_cast<int>(candidate.partition.replicas.size()); ++stage) {
      EXPECT_NE(std::find(stages.begin(), stages.end(), stage), stages.end()) << "stage " << stage << " is empty";
    }
  }
  EXPECT_GT(answers, static_cast<int>(seeds) / 2);
}

TEST(PipedreamStrategy, EqualsTheRecurrenceOnOneLevel) { compare({{1}, {2}, {3}, {4}, {5}, {8}}, 400, 10); }
TEST(PipedreamStrategy, EqualsTheRecurrenceOnTwoLevels) { compare({{2, 2}, {4, 2}, {2, 3}, {1, 3}, {3, 1}}, 300, 8); }
TEST(PipedreamStrategy, EqualsTheRecurrenceOnThreeLevels) { compare({{2, 2, 2}, {2, 1, 3}, {3, 2, 2}}, 150, 8); }

/// The time of the answer's stages on one level without a memory rule, by PipeDream's formulas for exactly this
/// partition.
TEST(PipedreamStrategy, GivesAPartitionThatHasTheTimeItClaims) {
  for (unsigned seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Graph graph = random_graph(random, 9);
    PipedreamOptions options;
    options.activation_compression_ratio = 1;
    const double rate = 1e8 * static_cast<double>(1 + random() % 50);
    const auto result = pipedream_candidate(graph, levels_topology({4}, {rate}), options);
    const Candidate& candidate = std::get<Candidate>(result);
    Naive naive(graph);
    // Layers that never enter a set belong to a stage but do not count in its time.
    Nodes done;
    Nodes rising;
    double slowest = 0;
    const int stages = static_cast<int>(candidate.partition.replicas.size());
    for (int stage = 0; stage < stages; ++stage) {
      for (const int node : naive.states.back()) {
        if (candidate.partition.stage_of_layer[static_cast<std::size_t>(node)] == stage) rising.insert(node);
      }
      const double r = candidate.partition.replicas[static_cast<std::size_t>(stage)];
      const double compute =
          naive.sum(done, rising, [](const Layer& l) { return (l.forward.median + l.backward.median).value; });
      const double parameters =
          naive.sum(done, rising, [](const Layer& l) { return static_cast<double>(l.parameter_bytes.value); });
      slowest = std::max(slowest, (compute + 4 * (r - 1) * parameters / (rate * r)) / r);
      if (stage > 0) slowest = std::max(slowest, 2 * naive.boundary(done) / (rate * r));
      if (stage > 0 && stage + 1 < stages) slowest = std::max(slowest, 2 * naive.boundary(rising) / (rate * r));
      done = rising;
    }
    EXPECT_NEAR(slowest, candidate.steady_state->value, 1e-9 * slowest);
  }
}

Downsets downsets(const Graph& graph) { return std::get<Downsets>(pipedream_downsets(graph, 1'000'000)); }

SearchAnswer answer(const Downsets& sets, const std::vector<SearchLevel>& levels, const PipedreamOptions& options) {
  return std::get<SearchAnswer>(pipedream_search(sets, levels, options));
}

/// A chain of layers with these times; each has `bytes` of output and as many of parameters.
Graph chain(const std::vector<double>& seconds, std::int64_t bytes) {
  Graph graph;
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    Layer& layer = graph.layers.emplace_back();
    layer.id = layer.name = "l" + std::to_string(i);
    layer.kind = "Linear";
    layer.forward.median = Seconds(seconds[i]);
    layer.outputs = {{Bytes(bytes), {}, "", true}};
    layer.parameter_bytes = Bytes(bytes);
    if (i > 0) graph.edges.push_back({static_cast<int>(i) - 1, static_cast<int>(i), std::nullopt});
  }
  return graph;
}

// A chain of layers of 4, 1 and 3 s in two stages without replicas. Set i holds the first i layers.
//   4 | 1 + 3  takes 4 s, 4 + 1 | 3 takes 5 s
TEST(PipedreamSearch, NamesTheSetsBetweenWhichItCuts) {
  const Downsets sets = downsets(chain({4, 1, 3}, 0));
  PipedreamOptions options;
  options.straight_pipeline = true;
  const SearchAnswer found = answer(sets, {{2, BytesPerSecond(1e9)}}, options);
  EXPECT_EQ(found.time, 4_s);
  EXPECT_THAT(found.stages, ::testing::ElementsAre(SearchStage{0, 1, {0}}, SearchStage{1, 3, {1}}));
}

TEST(PipedreamSearch, PrefersASingleStageAmongEqualAnswers) {
  // Free layers: every partition takes 0 s.
  const SearchAnswer found = answer(downsets(chain({0, 0, 0}, 0)), {{2, BytesPerSecond(1e9)}}, {});
  EXPECT_THAT(found.stages, ::testing::ElementsAre(SearchStage{0, 3, {0, 1}}));
  PipedreamOptions options;
  options.use_fewer_machines = true;
  EXPECT_THAT(answer(downsets(chain({0, 0, 0}, 0)), {{2, BytesPerSecond(1e9)}}, options).stages,
              ::testing::ElementsAre(SearchStage{0, 3, {0}}));
}

TEST(PipedreamSearch, HasNoStagesAndNoTimeWhereNothingKeepsTheLimit) {
  PipedreamOptions options;
  options.straight_pipeline = true;
  options.use_memory_constraint = true;
  options.memory_limit = 1_B;
  const SearchAnswer found = answer(downsets(chain({1, 1}, 10)), {{2, BytesPerSecond(1e9)}}, options);
  EXPECT_TRUE(found.stages.empty());
  EXPECT_EQ(found.time.value, kNever);
}

/// Calls `visit` with each partition of `sets` into stages on at most `machines` machines.
template <class Visit>
void each_partition(const Downsets& sets, int machines, std::vector<SearchStage>& stages, const Visit& visit) {
  const int done = stages.empty() ? 0 : stages.back().to;
  if (done == sets.count() - 1) return visit(stages);
  for (int next = done + 1; next < sets.count(); ++next) {
    if (!sets.contains(next, done)) continue;
    for (int replicas = 1; replicas <= machines; ++replicas) {
      stages.push_back({done, next, std::vector<int>(static_cast<std::size_t>(replicas))});
      each_partition(sets, machines - replicas, stages, visit);
      stages.pop_back();
    }
  }
}

TEST(PipedreamSearch, FindsTheLeastOfAllPartitionsOnOneLevel) {
  int answers = 0;
  for (unsigned seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Downsets sets = downsets(random_graph(random, 2 + static_cast<int>(random() % 4)));
    const SearchLevel level{1 + static_cast<int>(random() % 4),
                            BytesPerSecond(1e8 * static_cast<double>(1 + random() % 100))};
    const PipedreamOptions options = random_options(random);
    double least = kNever;
    std::vector<SearchStage> stages;
    each_partition(sets, level.machines, stages, [&](const std::vector<SearchStage>& candidate) {
      const std::optional<Seconds> time = pipedream_time(sets, level, candidate, options);
      if (time) least = std::min(least, time->value);
    });
    const SearchAnswer found = answer(sets, {level}, options);
    if (least == kNever) {
      EXPECT_TRUE(found.stages.empty());
      continue;
    }
    ++answers;
    EXPECT_NEAR(found.time.value, least, 1e-9 * least);
    const std::optional<Seconds> stages_time = pipedream_time(sets, level, found.stages, options);
    ASSERT_TRUE(stages_time.has_value());
    EXPECT_NEAR(stages_time->value, least, 1e-9 * least);
  }
  EXPECT_GT(answers, 100);
}

TEST(PipedreamSearch, PutsEveryReplicaOnADeviceOfItsOwn) {
  for (unsigned seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const Downsets sets = downsets(random_graph(random, 2 + static_cast<int>(random() % 6)));
    std::vector<SearchLevel> levels;
    int devices = 1;
    for (auto n = 1 + random() % 3; n > 0; --n) {
      levels.push_back(
          {1 + static_cast<int>(random() % 3), BytesPerSecond(1e8 * static_cast<double>(1 + random() % 100))});
      devices *= levels.back().machines;
    }
    PipedreamOptions options = random_options(random);
    options.use_memory_constraint = false;
    const SearchAnswer found = answer(sets, levels, options);
    if (found.stages.empty()) continue;  // more stages than cuts
    std::set<int> used;
    int from = 0;
    for (const SearchStage& stage : found.stages) {
      EXPECT_EQ(stage.from, from);
      EXPECT_TRUE(stage.to > stage.from && sets.contains(stage.to, stage.from));
      from = stage.to;
      EXPECT_FALSE(stage.devices.empty());
      for (const int device : stage.devices) {
        EXPECT_TRUE(device >= 0 && device < devices) << device;
        EXPECT_TRUE(used.insert(device).second) << device;
      }
    }
    EXPECT_EQ(from, sets.count() - 1);
    if (!options.use_fewer_machines) { EXPECT_EQ(static_cast<int>(used.size()), devices); }
  }
}

// Layers of 6 and 2 s with 1000 bytes of output and of parameters each, three machines, 1000 bytes per second:
//   6 s on two | 2 s on one: the first (6 + 4 * 1 * 1000 / (1000 * 2)) / 2 = 4, the transfer 2 * 1000 / 1000 = 2
/// With ever fewer pairs of cuts, the answer is the optimum, then one among a part of the cuts, which covers all layers
/// and is no better, and at last none.
TEST(PipedreamSearch, AnswersFromAPartOfTheCutsIfThereAreTooManyPairs) {
  int optima = 0;
  int others = 0;
  int none = 0;
  for (unsigned seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    // Two branches of 15 layers between the first and the last one: 16 * 16 sets and two more.
    std::vector<double> times(32);
    for (double& time : times) time = std::pow(10.0, static_cast<double>(random() % 1000) / 500);
    Graph graph = testing::chain_graph(times, times, Bytes(1000), Bytes(1000));
    graph.edges[15] = {0, 16, 0};
    graph.edges.push_back({15, 31, 0});
    const auto sets = std::get<Downsets>(pipedream_downsets(graph, 1000));
    const std::vector<SearchLevel> levels{{4, BytesPerSecond(1e9)}, {2, BytesPerSecond(1e9)}};
    PipedreamOptions options;
    options.straight_pipeline = true;
    const Seconds best = answer(sets, levels, options).time;
    for (std::int64_t pairs = 1; pairs < 1'000'000; pairs = pairs * 5 / 4 + 1) {
      options.most_pairs = pairs;
      const auto found = pipedream_search(sets, levels, options);
      const auto* const some = std::get_if<SearchAnswer>(&found);
      if (some == nullptr) {
        ++none;
        continue;
      }
      EXPECT_GE(some->time.value, best.value * (1 - 1e-12));
      (some->time.value > best.value * (1 + 1e-12) ? others : optima) += 1;
      ASSERT_FALSE(some->stages.empty());
      EXPECT_EQ(some->stages.front().from, 0);
      EXPECT_EQ(some->stages.back().to, sets.count() - 1);
    }
  }
  EXPECT_GT(optima, 100);
  EXPECT_GT(others, 20);
  EXPECT_GT(none, 100);
}

TEST(PipedreamTime, IsTheFormulaByHand) {
  const Downsets sets = downsets(chain({6, 2}, 1000));
  const SearchLevel level{3, BytesPerSecond(1000)};
  PipedreamOptions options;
  options.activation_compression_ratio = 1;
  const std::vector<SearchStage> stages{{0, 1, {0, 1}}, {1, 2, {2}}};
  EXPECT_EQ(pipedream_time(sets, level, stages, options), 4_s);
  options.activation_compression_ratio = 0.25;  // transfers four times as large: 8 s
  EXPECT_EQ(pipedream_time(sets, level, stages, options), 8_s);
}

TEST(PipedreamTime, IsAbsentForWhatPipeDreamDoesNotConsider) {
  const Downsets sets = downsets(chain({6, 2}, 1000));
  const SearchLevel level{2, BytesPerSecond(1000)};
  PipedreamOptions options;
  const std::vector<SearchStage> one{{0, 2, {0}}};
  const std::vector<SearchStage> both{{0, 2, {0, 1}}};
  EXPECT_EQ(pipedream_time(sets, level, one, options), std::nullopt);  // a machine is idle
  EXPECT_TRUE(pipedream_time(sets, level, both, options).has_value());
  EXPECT_EQ(pipedream_time(sets, level, {{0, 2, {0, 1, 2}}}, options), std::nullopt);  // there are only two machines
  options.use_fewer_machines = true;
  EXPECT_EQ(pipedream_time(sets, level, one, options), 8_s);
  options.straight_pipeline = true;
  EXPECT_EQ(pipedream_time(sets, level, both, options), std::nullopt);  // has replicas
}

}  // namespace
}  // namespace stagecraft::partitioner
