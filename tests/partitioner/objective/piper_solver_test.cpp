#include "partitioner/objective/piper_solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include "costmodel/index.h"

namespace stagecraft::partitioner {
namespace {

using interchange::Piper;
using interchange::PiperMode;
using Random = std::mt19937_64;

constexpr double kInfinite = std::numeric_limits<double>::infinity();

int below(Random& random, int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }

Piper random_problem(Random& random) {
  Piper out;
  const int nodes = 1 + below(random, 5);
  out.devices = 1 + below(random, 4);
  out.bandwidth = 2;
  out.microbatches = std::vector<int>{1, 2, 4, 6}[to_index(below(random, 4))];
  out.nodes.resize(to_index(nodes));
  for (int v = 0; v < nodes; ++v) {
    out.nodes[to_index(v)].id = v;
    for (int reader = v + 1; reader < nodes; ++reader) {
      if (below(random, 2) == 0) out.edges.push_back({v, reader, static_cast<double>(below(random, 4))});
    }
  }
  double memory = 0;
  for (int v = 0; v < nodes; ++v) {
    for (int tensor = 1; tensor <= 2; ++tensor) {
      if (tensor == 2 && below(random, 3) == 0) continue;
      const double time = 1 + below(random, 9);
      const double sample_bytes = below(random, 6);
      for (int m = 0; m <= below(random, 2); ++m) {
        PiperMode mode;
        mode.id = m == 0 ? "vanilla" : "activation recomp";
        mode.time = time / tensor + m * (1 + below(random, 3));
        mode.parameters = below(random, 5);
        mode.memory_each = m == 0 ? sample_bytes : sample_bytes / 4;
        mode.memory_fixed = below(random, 3);
        for (const auto& edge : out.edges) {
          if (edge.destination == v) mode.sync_forward[edge.source] = tensor - 1;
          if (edge.source == v) mode.sync_backward[edge.destination] = tensor - 1;
        }
        out.nodes[to_index(v)].modes[tensor].push_back(mode);
      }
    }
    memory += 6;
  }
  out.memory_limit = below(random, 2) == 0 ? 1e9 : 2 + below(random, static_cast<int>(memory));
  return out;
}

/// The time of a stage from the definition, with Piper's rule for modes; infinite if it does not fit.
double time_by_definition(const Piper& problem, const std::vector<int>& stage_of, int stage, int tensor, int replicas,
                          int flight) {
  struct Choice {
    double time;
    double bytes;
  };
  std::vector<std::vector<Choice>> options;
  const double d = replicas;
  for (std::size_t v = 0; v < stage_of.size(); ++v) {
    if (stage_of[v] != stage) continue;
    const auto modes = problem.nodes[v].modes.find(tensor);
    if (modes == problem.nodes[v].modes.end()) return kInfinite;
    std::vector<Choice>& mine = options.emplace_back();
    for (const PiperMode& mode : modes->second) {
      double edges = 0;
      for (const auto& edge : problem.edges) {
        if (edge.destination == to_int(v) && stage_of[to_index(edge.source)] != stage)
          edges += 2 * (edge.bytes + mode.sync_forward.at(edge.source));
        if (edge.source == to_int(v) && stage_of[to_index(edge.destination)] != stage)
          edges += 2 * (edge.bytes + mode.sync_backward.at(edge.destination));
      }
      const double sync = 4 * (d - 1) * mode.parameters / (d * problem.microbatches);
      mine.push_back(
          {(edges / d + sync) / problem.bandwidth + mode.time / d, mode.memory_each * flight + mode.memory_fixed});
    }
  }
  std::vector<std::size_t> taken;
  double bytes = 0;
  double least = 0;
  for (const auto& choices : options) {
    const auto fastest = std::ranges::min_element(choices, {}, &Choice::time);
    taken.push_back(static_cast<std::size_t>(fastest - choices.begin()));
    bytes += fastest->bytes;
    least += std::ranges::min_element(choices, {}, &Choice::bytes)->bytes;
  }
  if (bytes > problem.memory_limit) {
    if (least > problem.memory_limit) return kInfinite;
    std::vector<std::tuple<double, std::size_t, std::size_t>> swaps;
    for (std::size_t i = 0; i < options.size(); ++i) {
      for (std::size_t m = 0; m < options[i].size(); ++m) {
        const double saved = options[i][taken[i]].bytes - options[i][m].bytes;
        if (saved > 1e-9) swaps.emplace_back((options[i][m].time - options[i][taken[i]].time) / saved, i, m);
      }
    }
    std::ranges::sort(swaps);
    for (const auto& [price, i, m] : swaps) {
      if (bytes - problem.memory_limit < 1e-9) break;
      bytes -= options[i][taken[i]].bytes - options[i][m].bytes;
      taken[i] = m;
    }
  }
  double out = 0;
  for (std::size_t i = 0; i < options.size(); ++i) out += options[i][taken[i]].time;
  return out;
}

double exhaustive(const Piper& problem) {
  const int nodes = to_int(problem.nodes.size());
  const int most = std::min(problem.devices, problem.microbatches);
  double best = kInfinite;
  std::vector<int> stage_of(to_index(nodes), 0);
  // Last stage first, so that the replicas of later stages are known.
  const auto choose = [&](auto&& self, int stage, int devices, int suffix, double longest) -> void {
    if (longest >= best) return;
    if (stage < 0) {
      best = longest;
      return;
    }
    for (int tensor = 1; tensor <= 2; ++tensor) {
      for (int replicas = 1; tensor * replicas <= devices && suffix + replicas <= most; ++replicas) {
        if (problem.microbatches % replicas != 0) continue;
        // Modes for more samples in flight fit as well; Piper's table takes the least of them.
        double time = kInfinite;
        for (int flight = (suffix + 2 * replicas - 1) / replicas; flight <= (most + replicas - 1) / replicas; ++flight)
          time = std::min(time, time_by_definition(problem, stage_of, stage, tensor, replicas, flight));
        self(self, stage - 1, devices - tensor * replicas, suffix + replicas, std::max(longest, time));
      }
    }
  };
  const auto assign = [&](auto&& self, int v, int stages) -> void {
    if (v == nodes) {
      for (int s = 0; s < stages; ++s) {
        if (std::ranges::find(stage_of, s) == stage_of.end()) return;
      }
      choose(choose, stages - 1, problem.devices, 0, 0);
      return;
    }
    for (int s = 0; s < stages; ++s) {
      const bool allowed = std::ranges::all_of(problem.edges, [&](const auto& edge) {
        return edge.destination != v || stage_of[to_index(edge.source)] <= s;
      });
      if (!allowed) continue;
      stage_of[to_index(v)] = s;
      self(self, v + 1, stages);
    }
  };
  for (int stages = 1; stages <= std::min(problem.devices, nodes); ++stages) assign(assign, 0, stages);
  return best;
}

TEST(SolvePiper, IsAsGoodAsAllPlansOfSmallRandomGraphs) {
  constexpr int kGraphs = 3000;
  Random random(20261123);
  int feasible = 0;
  int tight = 0;
  for (int graph = 0; graph < kGraphs; ++graph) {
    SCOPED_TRACE("seed 20261123, graph " + std::to_string(graph));
    const Piper problem = random_problem(random);
    const double best = exhaustive(problem);
    const auto result = solve(problem, Seconds(1));
    const auto* answer = std::get_if<PiperAnswer>(&result);
    ASSERT_EQ(answer != nullptr, best < kInfinite);
    if (answer == nullptr) continue;
    ++feasible;
    if (problem.memory_limit < 1e9) ++tight;
    ASSERT_NEAR(answer->value.value, best, 1e-9 * best);
    ASSERT_EQ(answer->lower_bound, answer->value);
    double longest = 0;
    int devices = 0;
    std::vector<int> seen;
    for (const PiperStage& stage : answer->stages) {
      longest = std::max(longest, stage.time.value);
      devices += stage.replicas * stage.tensor_devices;
      seen.insert(seen.end(), stage.nodes.begin(), stage.nodes.end());
      ASSERT_LE(stage.bytes.value, problem.memory_limit + 1e-6);
    }
    std::ranges::sort(seen);
    ASSERT_EQ(to_int(seen.size()), to_int(problem.nodes.size()));
    ASSERT_TRUE(std::ranges::adjacent_find(seen) == seen.end());
    ASSERT_LE(devices, problem.devices);
    ASSERT_NEAR(longest, answer->value.value, 1e-9 * longest);
  }
  EXPECT_GT(feasible, kGraphs / 2);
  EXPECT_GT(tight, kGraphs / 10);
}

/// Two layers of 4 and 8 s on 3 devices, 5 bytes between them at 10 bytes/s.
Piper two_layers() {
  Piper out;
  out.devices = 3;
  out.bandwidth = 10;
  out.microbatches = 4;
  out.memory_limit = 1e9;
  out.nodes.resize(2);
  out.edges = {{0, 1, 5}};
  for (int v = 0; v < 2; ++v) {
    PiperMode mode{"vanilla", v == 0 ? 4.0 : 8.0, 0, 1, 0, {}, {}};
    (v == 0 ? mode.sync_backward : mode.sync_forward)[1 - v] = 0;
    out.nodes[to_index(v)].modes[1] = {mode};
  }
  return out;
}

TEST(SolvePiper, ReplicatesTheLongerLayer) {
  // One stage of 4 and one of 8 / 2: the edge's 5 bytes both ways are 10 bytes, 1 s; halved by two replicas. 4 + 1 = 5
  // and 4 + 0.5. In one stage with two replicas: 6.
  const PiperAnswer answer = std::get<PiperAnswer>(solve(two_layers(), Seconds(1)));
  EXPECT_DOUBLE_EQ(answer.value.value, 5);
  ASSERT_EQ(answer.stages.size(), 2U);
  EXPECT_EQ(answer.stages[1].replicas, 2);
  EXPECT_EQ(answer.stages[0].in_flight, 3);
}

TEST(SolvePiper, ReadsTimesInTheirUnit) {
  // Milliseconds: 4 ms of work, but the transfer still takes 1 s, so one stage on two devices is best: 6 ms.
  const PiperAnswer answer = std::get<PiperAnswer>(solve(two_layers(), Seconds(1e-3)));
  EXPECT_DOUBLE_EQ(answer.value.value, 6e-3);
}

TEST(SolvePiper, CountsSamplesInFlight) {
  // Two stages: 3 devices hold 3 and 1 samples of 1 byte. With room for 2 bytes the first stage cannot have 3 in
  // flight; one stage with two replicas has 1 each, of both layers.
  Piper problem = two_layers();
  problem.memory_limit = 2;
  const PiperAnswer answer = std::get<PiperAnswer>(solve(problem, Seconds(1)));
  EXPECT_DOUBLE_EQ(answer.value.value, 6);
  problem.memory_limit = 0.5;
  EXPECT_EQ(std::get<Infeasible>(solve(problem, Seconds(1))).reason, "no partition fits the devices' memory");
}

}  // namespace
}  // namespace stagecraft::partitioner
