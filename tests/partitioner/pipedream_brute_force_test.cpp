#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <set>

#include "partitioner/pipedream.h"
#include "tests/support/pipedream_cases.h"

// PipeDream's recurrence written down once more, as slowly and as plainly as it goes, and compared on small random
// graphs.

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
    std::map<std::pair<std::size_t, std::size_t>, double> parameters, kept;
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

/// The value of given stages on one level without memory rule: what PipeDream's formulas make of this very partition.
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
    // Layers that never enter a set are in a stage, but not in its time.
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

}  // namespace
}  // namespace stagecraft::partitioner
