#include <benchmark/benchmark.h>

#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "partitioner/list_strategies.h"
#include "partitioner/pipedream.h"
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

}  // namespace

int main(int argc, char** argv) {
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
