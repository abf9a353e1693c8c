#include <benchmark/benchmark.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/index.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/simulation/closed_forms.h"
#include "costmodel/simulation/simulate.h"
#include "tests/support/chains.h"

// Chains of one layer per stage under 1F1B, with rendezvous transfers that cost about a tenth of a forward.

namespace {

struct Case {
  stagecraft::Graph graph;
  stagecraft::Topology topology;
  stagecraft::Plan plan;
};

Case chain(int stages, int microbatches) {
  const std::size_t count = stagecraft::to_index(stages);
  const std::vector<double> forward(count, 1e-3);
  const std::vector<double> backward(count, 2e-3);
  Case out;
  out.graph = stagecraft::testing::chain_graph(forward, backward, stagecraft::Bytes(100'000));
  out.topology = stagecraft::testing::flat_topology(stages);
  out.plan =
      stagecraft::testing::one_layer_a_stage(out.graph, out.topology, std::vector<int>(count, 1), "1f1b", microbatches);
  return out;
}

void count_actions(benchmark::State& state, const stagecraft::SimulationInput& input) {
  const auto actions = static_cast<double>(stagecraft::action_count(input));
  state.counters["actions"] = actions;
  state.counters["actions/s"] =
      benchmark::Counter(actions * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

/// simulate() only, with its input prepared in advance.
void simulate(benchmark::State& state) {
  const Case one = chain(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  const stagecraft::SimulationInput input =
      stagecraft::simulation_input(one.graph, one.topology, stagecraft::BoundPlan(one.plan));
  for (auto _ : state) {
    const auto result = stagecraft::simulate(input);
    if (result.index() != 0) throw std::runtime_error("the chain deadlocks");
    benchmark::DoNotOptimize(result);
  }
  count_actions(state, input);
}

/// predict() from graph, topology and plan.
void predict(benchmark::State& state) {
  const Case one = chain(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  for (auto _ : state) {
    const auto result = stagecraft::predict(one.graph, one.topology, stagecraft::BoundPlan(one.plan));
    if (result.index() != 0) throw std::runtime_error("the chain deadlocks");
    benchmark::DoNotOptimize(result);
  }
  count_actions(state, stagecraft::simulation_input(one.graph, one.topology, stagecraft::BoundPlan(one.plan)));
}

/// The step time of such a chain by the exact formula, with messages that do not occupy links.
void closed_form(benchmark::State& state) {
  const int stages = static_cast<int>(state.range(0));
  const int microbatches = static_cast<int>(state.range(1));
  stagecraft::Seconds forward(1e-3);
  for (auto _ : state) {
    benchmark::DoNotOptimize(forward);
    benchmark::DoNotOptimize(stagecraft::one_forward_one_backward_time(forward, stagecraft::Seconds(2e-3), stages,
                                                                       microbatches, stagecraft::Seconds(1e-4)));
  }
}

/// Bounds of the step time of a chain of unequal stages.
void closed_form_bracket(benchmark::State& state) {
  const std::vector<stagecraft::Seconds> times(static_cast<std::size_t>(state.range(0)), stagecraft::Seconds(1e-3));
  const stagecraft::StageTimes stages{times, times};
  for (auto _ : state) {
    benchmark::DoNotOptimize(stagecraft::one_forward_one_backward_bracket(stages, static_cast<int>(state.range(1))));
  }
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"stages", "microbatches"})->Unit(benchmark::kMillisecond);
  for (const int stages : {4, 32, 250, 1000, 1024}) benchmark->Args({stages, 64});
}

BENCHMARK(simulate)->Apply(sizes);
BENCHMARK(predict)->Apply(sizes);
BENCHMARK(closed_form)->ArgNames({"stages", "microbatches"})->Args({1024, 64});
BENCHMARK(closed_form_bracket)->ArgNames({"stages", "microbatches"})->Args({8, 64})->Args({1024, 64});

}  // namespace

BENCHMARK_MAIN();
