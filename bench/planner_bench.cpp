#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <exception>
#include <iostream>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "partitioner/strategies/list_strategies.h"
#include "partitioner/strategies/optimal.h"
#include "partitioner/strategies/pipedream.h"
#include "tests/support/pipedream_cases.h"

// Planning only, with graphs read beforehand. The command lines and profiles are those of tests/golden/pipedream.

namespace {

using stagecraft::Graph;
using stagecraft::PipedreamCase;

const std::string kGolden = STAGECRAFT_SOURCE_DIR "/tests/golden/pipedream";

void plan(const std::map<std::string, Graph>& graphs, const PipedreamCase& one) {
  const auto result = stagecraft::partitioner::pipedream_candidate(graphs.at(one.profile), one.topology, one.options);
  if (result.index() != 0) throw std::runtime_error("no plan for " + one.profile + " " + one.arguments);
  benchmark::DoNotOptimize(result);
}

/// Bytes that the process has had in memory at most.
double peak_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) * 1024;
}

/// One search of `optimal`; the counters say how far its plan can be from the best, and the process's peak memory.
void search(benchmark::State& state, const Graph& graph, const stagecraft::Topology& topology, int microbatches) {
  namespace partitioner = stagecraft::partitioner;
  partitioner::Constraints constraints;
  constraints.plan.microbatches = microbatches;
  const partitioner::CostModel costs = partitioner::simulated_costs();
  double gap = 0;
  for (auto _ : state) {
    const auto result = partitioner::optimal_strategy().plan(graph, topology, costs, constraints);
    const auto& ranking = std::get<partitioner::Ranking>(result);
    gap = ranking.plans.front().prediction.iteration / *ranking.lower_bound - 1;
  }
  state.counters["gap"] = gap;
  state.counters["peak_bytes"] = peak_bytes();
}

int run(int argc, char** argv) {
  std::map<std::string, Graph> graphs;
  const std::vector<PipedreamCase> cases = stagecraft::read_pipedream_cases(kGolden);
  for (const PipedreamCase& one : cases) {
    if (!graphs.contains(one.profile)) {
      graphs[one.profile] = stagecraft::read_pipedream_profile(kGolden, one.profile);
    }
  }
  for (const PipedreamCase& one : cases) {
    benchmark::RegisterBenchmark(("pipedream/" + one.profile + " " + one.arguments).c_str(),
                                 [&](benchmark::State& state) {
                                   for (auto _ : state) plan(graphs, one);
                                 })
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RegisterBenchmark("pipedream/all 107 command lines", [&](benchmark::State& state) {
    for (auto _ : state) {
      for (const PipedreamCase& one : cases) plan(graphs, one);
    }
  })->Unit(benchmark::kMillisecond);
  for (const char* const profile : {"alexnet", "vgg16", "resnet50", "gnmt"}) {
    for (const int devices : {4, 16, 64}) {
      const std::string name = "optimal/" + std::string(profile) + ", " + std::to_string(devices) + " devices";
      benchmark::RegisterBenchmark(name.c_str(),
                                   [&graphs, profile, devices](benchmark::State& state) {
                                     search(state, graphs.at(profile), stagecraft::levels_topology({devices}, {}), 8);
                                   })
          ->Unit(benchmark::kMillisecond)
          ->Iterations(1);
    }
  }
  namespace partitioner = stagecraft::partitioner;
  const std::map<std::string, decltype(&partitioner::profile_candidate)> lists = {
      {"uniform", partitioner::uniform_candidate},
      {"parameters", partitioner::parameters_candidate},
      {"profile", partitioner::profile_candidate}};
  for (const auto& entry : lists) {
    benchmark::RegisterBenchmark((entry.first + "/resnet50, 8 stages").c_str(), [&](benchmark::State& state) {
      const stagecraft::Topology topology = stagecraft::levels_topology({8}, {});
      for (auto _ : state) benchmark::DoNotOptimize(entry.second(graphs.at("resnet50"), topology, {}));
    })->Unit(benchmark::kMillisecond);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "planner_bench: " << error.what() << "\n";
    return 1;
  }
}
