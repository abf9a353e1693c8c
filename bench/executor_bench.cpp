// Overhead of the executor: what a rank spends on each action beside the layers themselves. Layers are near empty, so
// that the rest shows. All ranks are threads on the local channel.

#include <benchmark/benchmark.h>

#include <ATen/Parallel.h>

#include <chrono>
#include <thread>

#include "executor/ranges.h"
#include "executor/run.h"
#include "executor/stage_program.h"
#include "tests/support/planned_models.h"

namespace stagecraft {
namespace {

constexpr int kMicrobatches = 32;
constexpr std::int64_t kSteps = 200;

testing::PlannedModel& tiny() {
  static testing::PlannedModel planned =
      testing::planned_model("mlp", {{"inputs", "1"}, {"width", "1"}, {"layers", "4"}, {"classes", "2"}}, 1);
  return planned;
}

double layers_on_this_thread() {
  at::set_num_threads(1);
  const Model& model = tiny().model;
  std::vector<int> all;
  for (std::size_t i = 0; i < model.layers.size(); ++i) all.push_back(static_cast<int>(i));
  StageProgram program(model, all, {}, {}, 1);
  const auto batch = tiny().data->batch(0, 0, 1, 1, program.data_inputs());
  constexpr int kRounds = 2000;
  const auto run = [&](int rounds) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < rounds; ++i) (void)program.backward(program.forward({}, batch, i, 0), {});
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / rounds;
  };
  (void)run(kRounds / 10);
  return run(kRounds);
}

/// Seconds of all layers' forward and backward for one microbatch, run as one stage without any executor, on a thread
/// of its own as a rank is.
double layers_alone() {
  double out = 0;
  std::jthread([&out] { out = layers_on_this_thread(); }).join();
  return out;
}

/// Two stages (or one) of the tiny model. The counter is (rank time - the layers' own time) / actions, where rank time
/// counts a rank's compute, wait, send and update spans as they were measured and so leaves out no part of the loop.
void overhead(benchmark::State& state, const std::string& schedule, int stages) {
  const testing::PlannedModel& planned = tiny();
  const int layers = static_cast<int>(planned.model.layers.size());
  std::vector<int> cuts;
  if (stages == 2) cuts.push_back(layers / 2);
  const Plan plan =
      testing::cut_plan(planned, cuts, std::vector<int>(static_cast<std::size_t>(stages), 1), schedule, kMicrobatches);
  const auto lists = action_lists(plan);
  std::size_t actions = 0;
  for (const auto& list : lists) actions += list.size();
  const double alone = layers_alone();
  RunOptions options;
  options.steps = kSteps;
  double step = 0;
  for (auto _ : state) {
    const RunResult result = run_local(plan, planned.model, *planned.data, options, std::chrono::milliseconds(60000));
    step = step_time(result.measurement.timeline, 20).value;
    state.SetIterationTime(step * kSteps);
  }
  // Work that one rank must wait for the other to do is charged in full: an upper estimate of the executor's own cost.
  const double per_rank = static_cast<double>(actions) / stages;
  const double own = stages == 1 ? alone * kMicrobatches : alone * (kMicrobatches + 1) / 2;
  state.counters["step_us"] = step * 1e6;
  state.counters["actions_per_rank"] = per_rank;
  state.counters["layers_us"] = alone * 1e6;
  state.counters["overhead_us_per_action"] = (step - own) / per_rank * 1e6;
}

BENCHMARK_CAPTURE(overhead, gpipe_1_rank, "gpipe", 1)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(overhead, 1f1b_2_ranks, "1f1b", 2)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(overhead, gpipe_2_ranks, "gpipe", 2)->UseManualTime()->Unit(benchmark::kMillisecond);

/// A range while no tool listens.
void range_without_a_tool(benchmark::State& state) {
  const RangeName name = range_name("forward");
  for (auto _ : state) {
    const Range range(name, 3);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(range_without_a_tool);

}  // namespace
}  // namespace stagecraft

BENCHMARK_MAIN();
