// Overhead of the executor: what a rank spends on each action besides the layers themselves. Layers are nearly empty,
// so that the overhead shows. All ranks are threads on the local channel.

#include <benchmark/benchmark.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <functional>
#include <thread>

#include "costmodel/bound_plan.h"
#include "executor/channel/channel_local.h"
#include "executor/device/ranges.h"
#include "executor/run/run.h"
#include "executor/stage/stage_program.h"
#include "tests/support/models/planned_models.h"

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
  const model::Model& model = tiny().model;
  std::vector<int> all;
  for (std::size_t i = 0; i < model.layers.size(); ++i) all.push_back(static_cast<int>(i));
  stage::StageProgram program(model, all, {}, {}, 1);
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

/// Seconds for forward and backward of all layers for one microbatch, as one stage without an executor, on a separate
/// thread like a rank.
double layers_alone() {
  double out = 0;
  std::jthread([&out] { out = layers_on_this_thread(); }).join();
  return out;
}

/// Two stages (or one) of the tiny model. The counter is (rank time - the layers' own time) / actions, where rank time
/// counts a rank's compute, wait, send and update spans as measured, so it includes every part of the loop.
void overhead(benchmark::State& state, const std::string& schedule, int stages) {
  const testing::PlannedModel& planned = tiny();
  const int layers = static_cast<int>(planned.model.layers.size());
  std::vector<int> cuts;
  if (stages == 2) cuts.push_back(layers / 2);
  const Plan plan =
      testing::cut_plan(planned, cuts, std::vector<int>(static_cast<std::size_t>(stages), 1), schedule, kMicrobatches);
  const auto lists = BoundPlan(plan).action_lists();
  std::size_t actions = 0;
  for (const auto& list : lists) actions += list.size();
  const double alone = layers_alone();
  run::RunOptions options;
  options.steps = kSteps;
  double step = 0;
  for (auto _ : state) {
    const run::RunResult result =
        run::run_local(plan, planned.model, *planned.data, options, std::chrono::milliseconds(60000));
    step = step_time(result.measurement.timeline, 20).value;
    state.SetIterationTime(step * kSteps);
  }
  // Waiting for the other rank's work counts in full, so this is an upper bound on the executor's own cost.
  const double per_rank = static_cast<double>(actions) / stages;
  const double computing = stages == 1 ? alone * kMicrobatches : alone * (kMicrobatches + 1) / 2;
  state.counters["step_us"] = step * 1e6;
  state.counters["actions_per_rank"] = per_rank;
  state.counters["layers_us"] = alone * 1e6;
  state.counters["overhead_us_per_action"] = (step - computing) / per_rank * 1e6;
}

BENCHMARK_CAPTURE(overhead, gpipe_1_rank, "gpipe", 1)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(overhead, 1f1b_2_ranks, "1f1b", 2)->UseManualTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(overhead, gpipe_2_ranks, "gpipe", 2)->UseManualTime()->Unit(benchmark::kMillisecond);

double microseconds(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

/// Medians, in microseconds, of a rank's work with all layers and without any executor.
struct Alone {
  double forward = 0;
  double backward = 0;
  double update = 0;  ///< LibTorch's fused kernel, called as Optimizer calls it
};

Alone alone() {
  at::set_num_threads(1);
  const model::Model& model = tiny().model;
  std::vector<int> all;
  for (std::size_t i = 0; i < model.layers.size(); ++i) all.push_back(static_cast<int>(i));
  stage::StageProgram program(model, all, {}, {}, 1);
  const auto batch = tiny().data->batch(0, 0, 1, 1, program.data_inputs());
  std::vector<double> forward, backward, update;
  std::vector<at::Tensor> values, gradients;
  for (int i = 0; i < 4000; ++i) {
    stage::Flight flight;
    forward.push_back(microseconds([&] { flight = program.forward({}, batch, i, 0); }));
    backward.push_back(microseconds([&] { (void)program.backward(std::move(flight), {}); }));
  }
  for (const stage::Parameter& parameter : program.parameters()) {
    values.push_back(parameter.value);
    gradients.push_back(parameter.value.grad());
  }
  const at::NoGradGuard no_graph;
  for (int i = 0; i < 1000; ++i) {
    update.push_back(microseconds([&] {
      const at::Tensor scale = at::scalar_tensor(kMicrobatches, at::TensorOptions(at::kFloat));
      at::_fused_sgd_(values, gradients, {}, 0.0, 0.0, 0.01, 0.0, false, false, false, scale);
    }));
  }
  return {median(forward), median(backward), median(update)};
}

/// One batch, created in advance: creating it is not part of the executor's cost.
class SameBatch : public data::DataSource {
 public:
  SameBatch() : batch_(tiny().data->batch(0, 0, 1, 1, std::vector<int>{0, 1})) {}
  std::vector<at::Tensor> batch(std::int64_t, int, int, std::int64_t, std::span<const int> inputs) const override {
    std::vector<at::Tensor> out;
    for (const int input : inputs) out.push_back(batch_[static_cast<std::size_t>(input)]);
    return out;
  }

 private:
  std::vector<at::Tensor> batch_;
};

double median_span(const Timeline& timeline, ActionKind kind) {
  constexpr int kWarmup = 20;
  std::vector<double> times;
  for (const Span& span : timeline.spans) {
    if (span.step >= kWarmup && span.action.kind == kind) times.push_back((span.end - span.start).value * 1e6);
  }
  return median(std::move(times));
}

/// Counters are medians, in microseconds, of one action minus LibTorch's own time for it: forward, backward and update
/// of one rank; send, post and receive of a message by one thread that owns both ends, so without waiting; reduce
/// across two replicas, including the wait for each other.
void one_action(benchmark::State& state) {
  const testing::PlannedModel& planned = tiny();
  const Plan plan = testing::cut_plan(planned, {}, {1}, "1f1b", kMicrobatches);
  const Plan replicated = testing::cut_plan(planned, {}, {2}, "1f1b", kMicrobatches);
  const SameBatch data;
  run::RunOptions options;
  options.steps = kSteps;
  Alone libtorch;
  std::jthread([&] { libtorch = alone(); }).join();
  for (auto _ : state) {
    const auto deadline = std::chrono::milliseconds(60000);
    const run::RunResult one = run::run_local(plan, planned.model, data, options, deadline);
    const Timeline& timeline = one.measurement.timeline;
    state.counters["forward_us"] = median_span(timeline, ActionKind::Forward) - libtorch.forward;
    state.counters["backward_us"] = median_span(timeline, ActionKind::Backward) - libtorch.backward;
    state.counters["update_us"] = median_span(timeline, ActionKind::Update) - libtorch.update;
    const run::RunResult two = run::run_local(replicated, planned.model, data, options, deadline);
    state.counters["reduce_us"] = median_span(two.measurement.timeline, ActionKind::Reduce);

    const auto channels = channel::make_local_channels(2, deadline);
    const at::Tensor tensor = at::zeros({1, 1});
    std::vector<double> post, send, take;
    for (int i = 0; i < 4000; ++i) {
      std::unique_ptr<channel::Receiving> receiving;
      post.push_back(microseconds([&] { receiving = channels[1]->receive({{1, 1}, at::kFloat}, 0, 1); }));
      send.push_back(microseconds([&] { channels[0]->send(tensor, 1, 1)->wait(); }));
      take.push_back(microseconds([&] { (void)receiving->wait(); }));
    }
    state.counters["post_us"] = median(post);
    state.counters["send_us"] = median(send);
    state.counters["take_us"] = median(take);
  }
}
BENCHMARK(one_action)->Iterations(1)->Unit(benchmark::kMillisecond);

/// A range without a tool attached.
void range_without_a_tool(benchmark::State& state) {
  const device::RangeName name = device::range_name("forward");
  for (auto _ : state) {
    const device::ScopedRange range(name, 3);
    benchmark::ClobberMemory();
  }
}
BENCHMARK(range_without_a_tool);

}  // namespace
}  // namespace stagecraft

BENCHMARK_MAIN();
