#include "partitioner/objective/load_solver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/index.h"

namespace stagecraft::partitioner {
namespace {

using Random = std::mt19937_64;

int below(Random& random, int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); }

LoadProblem::Node node(double accelerator, double cpu, double bytes = 0) {
  return {Seconds(accelerator), Seconds(cpu), FractionalBytes(bytes), true, {}};
}

/// A list of nodes, each sending `transfer` seconds to the next.
LoadProblem list_problem(const std::vector<double>& times, double transfer, int accelerators) {
  LoadProblem out;
  out.accelerators = accelerators;
  out.order.nodes = to_int(times.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    out.nodes.push_back(node(times[i], times[i]));
    if (i == 0) continue;
    out.order.edges.emplace_back(to_int(i) - 1, to_int(i));
    out.tensors.push_back({to_int(i) - 1, {to_int(i)}, Seconds(transfer)});
  }
  return out;
}

LoadProblem random_problem(Random& random, bool with_cpus) {
  LoadProblem out;
  const int nodes = 1 + below(random, 6);
  out.accelerators = (with_cpus ? 0 : 1) + below(random, 4);
  out.cpus = with_cpus ? 1 + below(random, 2) : 0;
  out.order.nodes = nodes;
  double bytes = 0;
  for (int v = 0; v < nodes; ++v) {
    LoadProblem::Node& made = out.nodes.emplace_back(node(below(random, 9), below(random, 30), below(random, 5)));
    made.on_accelerator = out.cpus == 0 || below(random, 8) > 0;
    made.members = {std::to_string(v)};
    bytes += made.bytes.value;
    CutTensor tensor{v, {}, Seconds(below(random, 4))};
    for (int reader = v + 1; reader < nodes; ++reader) {
      if (below(random, 3) > 0) continue;
      out.order.edges.emplace_back(v, reader);
      tensor.consumers.push_back(reader);
    }
    // A gradient runs against the order.
    if (below(random, 4) == 0 && v > 0) tensor.consumers.insert(tensor.consumers.begin(), below(random, v));
    if (!tensor.consumers.empty()) out.tensors.push_back(tensor);
  }
  if (below(random, 2) == 0) out.memory_limit = FractionalBytes(1 + below(random, static_cast<int>(bytes) + 1));
  return out;
}

/// The time of a stage, from the definition: `stage_of` is each node's stage.
double time_by_definition(const LoadProblem& problem, const std::vector<int>& stage_of, int stage, bool on_cpu) {
  double out = 0;
  FractionalBytes bytes;
  for (std::size_t v = 0; v < stage_of.size(); ++v) {
    if (stage_of[v] != stage) continue;
    if (!on_cpu && !problem.nodes[v].on_accelerator) return std::numeric_limits<double>::infinity();
    out += (on_cpu ? problem.nodes[v].cpu : problem.nodes[v].accelerator).value;
    bytes += problem.nodes[v].bytes;
  }
  if (on_cpu) return out;
  if (bytes > problem.memory_limit) return std::numeric_limits<double>::infinity();
  for (const CutTensor& tensor : problem.tensors) {
    std::vector<int> ends{tensor.producer};
    ends.insert(ends.end(), tensor.consumers.begin(), tensor.consumers.end());
    const auto inside = std::ranges::count_if(ends, [&](int end) { return stage_of[to_index(end)] == stage; });
    if (inside > 0 && inside < std::ssize(ends)) out += tensor.cost.value;
  }
  return out;
}

/// The least value over all assignments of nodes to stages, stages to devices.
double exhaustive(const LoadProblem& problem, const LoadObjective& objective) {
  const int nodes = problem.order.nodes;
  double best = std::numeric_limits<double>::infinity();
  std::vector<int> stage_of(to_index(nodes), 0);
  std::vector<std::vector<double>> cpu_times;
  const auto weigh = [&](int stages) {
    std::vector<double> accelerator(to_index(stages));
    std::vector<double> cpu(to_index(stages));
    for (int s = 0; s < stages; ++s) {
      accelerator[to_index(s)] = time_by_definition(problem, stage_of, s, false);
      cpu[to_index(s)] = time_by_definition(problem, stage_of, s, true);
    }
    // Devices of each stage: 0 is a CPU.
    std::vector<int> devices(to_index(stages), 0);
    const auto choose = [&](auto&& self, int s, int accelerators, int cpus, double sum, double longest) -> void {
      if (s == stages) {
        double value = longest;
        if (objective.combination == Combination::FlushSum) value = sum + (objective.microbatches - 1) * longest;
        if (objective.combination == Combination::FlushEven) value = (objective.microbatches + stages - 1) * longest;
        best = std::min(best, value);
        return;
      }
      if (cpus > 0) {
        const double time = cpu[to_index(s)];
        self(self, s + 1, accelerators, cpus - 1, sum + time, std::max(longest, time));
      }
      for (int r = 1; r <= (objective.replicated ? accelerators : std::min(accelerators, 1)); ++r) {
        const double time = accelerator[to_index(s)] / r;
        self(self, s + 1, accelerators - r, cpus, sum + time, std::max(longest, time));
      }
    };
    choose(choose, 0, problem.accelerators, problem.cpus, 0, 0);
  };
  const auto assign = [&](auto&& self, int v, int stages) -> void {
    if (v == nodes) {
      for (int s = 0; s < stages; ++s) {
        if (std::ranges::find(stage_of, s) == stage_of.end()) return;
      }
      weigh(stages);
      return;
    }
    for (int s = 0; s < stages; ++s) {
      const bool allowed = std::ranges::all_of(problem.order.edges, [&](const auto& edge) {
        return edge.second != v || stage_of[to_index(edge.first)] <= s;
      });
      if (!allowed) continue;
      stage_of[to_index(v)] = s;
      self(self, v + 1, stages);
    }
  };
  for (int stages = 1; stages <= std::min(problem.accelerators + problem.cpus, nodes); ++stages)
    assign(assign, 0, stages);
  return best;
}

void expect_valid(const LoadProblem& problem, const LoadObjective& objective, const LoadAnswer& answer) {
  std::vector<int> stage_of(problem.nodes.size(), -1);
  int accelerators = 0;
  int cpus = 0;
  for (std::size_t s = 0; s < answer.stages.size(); ++s) {
    for (const int v : answer.stages[s].nodes) {
      EXPECT_EQ(stage_of[to_index(v)], -1);
      stage_of[to_index(v)] = to_int(s);
    }
    (answer.stages[s].on_cpu ? cpus : accelerators) += answer.stages[s].devices;
  }
  EXPECT_THAT(stage_of, ::testing::Each(::testing::Ge(0)));
  EXPECT_LE(accelerators, problem.accelerators);
  EXPECT_LE(cpus, problem.cpus);
  for (const auto& [from, to] : problem.order.edges) EXPECT_LE(stage_of[to_index(from)], stage_of[to_index(to)]);
  for (std::size_t s = 0; s < answer.stages.size(); ++s) {
    const LoadStage& stage = answer.stages[s];
    EXPECT_DOUBLE_EQ(stage.time.value, time_by_definition(problem, stage_of, to_int(s), stage.on_cpu) / stage.devices);
  }
  EXPECT_EQ(answer.value, value_of(objective, answer.stages));
}

struct Profile {
  std::string name;
  LoadObjective objective;
  bool with_cpus;
  int graphs;
};

class EveryObjective : public ::testing::TestWithParam<Profile> {};

TEST_P(EveryObjective, IsAsGoodAsAllPlansOfSmallRandomGraphs) {
  const Profile& profile = GetParam();
  Random random(20261123);
  int feasible = 0;
  for (int graph = 0; graph < profile.graphs; ++graph) {
    SCOPED_TRACE("seed 20261123, graph " + std::to_string(graph));
    const LoadProblem problem = random_problem(random, profile.with_cpus);
    const double best = exhaustive(problem, profile.objective);
    const auto result = solve(problem, profile.objective);
    const auto* answer = std::get_if<LoadAnswer>(&result);
    ASSERT_EQ(answer != nullptr, best < std::numeric_limits<double>::infinity());
    if (answer == nullptr) continue;
    ++feasible;
    ASSERT_NEAR(answer->value.value, best, 1e-9 * (1 + best));
    EXPECT_EQ(answer->lower_bound, answer->value);
    expect_valid(problem, profile.objective, *answer);
    // Without the lattice: a plan that is no better, and a bound that is no higher.
    const auto listed = solve(problem, profile.objective, {.downsets = 0, .time = {}});
    if (const auto* list = std::get_if<LoadAnswer>(&listed)) {
      expect_valid(problem, profile.objective, *list);
      EXPECT_GE(list->value.value, best * (1 - 1e-9));
      EXPECT_LE(list->lower_bound.value, best * (1 + 1e-9));
    }
    if (::testing::Test::HasFailure()) return;
  }
  EXPECT_GT(feasible, profile.graphs / 2);
}

INSTANTIATE_TEST_SUITE_P(Load, EveryObjective,
                         ::testing::Values(Profile{"slowest", {}, false, 4000},
                                           Profile{"slowest_with_cpus", {}, true, 2000},
                                           Profile{"slowest_replicated", {Combination::Slowest, 1, true}, false, 2000},
                                           Profile{"flush", {Combination::FlushSum, 5, false}, false, 2000},
                                           Profile{"flush_replicated", {Combination::FlushSum, 3, true}, false, 2000},
                                           Profile{"even", {Combination::FlushEven, 4, false}, false, 2000}),
                         [](const auto& param) { return param.param.name; });

TEST(Solve, CutsAListWhereTheSlowerHalfIsShortest) {
  // 4 | 3 + 2 and a transfer of 0.5 at both ends of the cut: 4.5 and 5.5. 4 + 3 | 2 is 7.5.
  const auto result = solve(list_problem({4, 3, 2}, 0.5, 2), {});
  const LoadAnswer& answer = std::get<LoadAnswer>(result);
  EXPECT_DOUBLE_EQ(answer.value.value, 5.5);
  ASSERT_EQ(answer.stages.size(), 2U);
  EXPECT_EQ(answer.stages[0].nodes, (std::vector<int>{0}));
  EXPECT_EQ(answer.stages[1].nodes, (std::vector<int>{1, 2}));
}

TEST(Solve, AddsTheFillOfAFlushedPipeline) {
  // Stages 2, 2 with 3 microbatches: 4 + 2 * 2 = 8. In one stage: 4 + 2 * 4 = 12.
  const auto result = solve(list_problem({1, 1, 2}, 0, 2), {Combination::FlushSum, 3, false});
  EXPECT_DOUBLE_EQ(std::get<LoadAnswer>(result).value.value, 8);
}

TEST(Solve, CountsEveryStageAsTheSlowestInAnEvenFlush) {
  // Two stages of 3 and 1 microbatch: (1 + 2 - 1) * 3 = 6. One stage of 6 takes 6 too, three of 3, 1, 2: 3 * 3 = 9.
  const auto result = solve(list_problem({3, 1, 2}, 0, 3), {Combination::FlushEven, 1, false});
  EXPECT_DOUBLE_EQ(std::get<LoadAnswer>(result).value.value, 6);
}

TEST(Solve, SaysWhichNodeNeedsACpu) {
  LoadProblem problem = list_problem({1, 2}, 0, 2);
  problem.nodes[1].on_accelerator = false;
  problem.nodes[1].members = {"gather"};
  const auto result = solve(problem, {});
  EXPECT_EQ(std::get<Infeasible>(result).reason, "node gather needs a CPU, and there is none");
}

TEST(Solve, SaysThatNothingFits) {
  LoadProblem problem = list_problem({1, 2}, 0, 2);
  problem.nodes[1].bytes = FractionalBytes(5);
  problem.memory_limit = FractionalBytes(4);
  EXPECT_EQ(std::get<Infeasible>(solve(problem, {})).reason,
            "no division into contiguous stages fits the devices' memory");
}

TEST(Solve, SaysWhyAnAnswerMayNotBeExact) {
  const LoadAnswer answer =
      std::get<LoadAnswer>(solve(list_problem({4, 3, 2}, 0.5, 2), {}, {.downsets = 3, .time = {}}));
  EXPECT_DOUBLE_EQ(answer.value.value, 5.5);
  EXPECT_DOUBLE_EQ(answer.lower_bound.value, 4.5);  // 9 in all
  EXPECT_EQ(answer.effort.downsets, 0U);
  EXPECT_EQ(answer.effort.stopped, "more than 3 down-sets: the best cut of two depth-first orders as lists");
}

}  // namespace
}  // namespace stagecraft::partitioner
