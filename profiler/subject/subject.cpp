#include "profiler/subject/subject.h"

#include <map>

#include "executor/stage/gradients/finite.h"

#include "profiler/subject/model_graph.h"

namespace stagecraft::profiler {
namespace {

constexpr double kSecondsPerNanosecond = 1e-9;
/// A step of several microbatches, as plans have, divides the gradients.
constexpr double kDivisor = 2;

/// What a run does with gradients before it updates: it looks for values that are not finite, on a GPU without waiting.
void check_gradients(const std::vector<stage::Parameter>& parameters) {
  if (parameters.empty()) return;
  if (parameters.front().value.is_cpu()) {
    (void)stage::nonfinite_gradient(parameters);
  } else {
    (void)stage::nonfinite_flag(parameters);
  }
}

}  // namespace

StepTimer::StepTimer(c10::Device device) : marks_(device.is_cpu() ? make_host_marks() : make_event_marks(device)) {}
void StepTimer::begin() { marks_->mark(); }
void StepTimer::end() { marks_->mark(); }

std::vector<double> StepTimer::take() {
  const std::vector<std::int64_t> times = marks_->take();
  std::vector<double> out;
  for (std::size_t i = 0; i + 1 < times.size(); i += 2)
    out.push_back(static_cast<double>(times[i + 1] - times[i]) * kSecondsPerNanosecond);
  return out;
}

Subject::Subject(const model::Model& model, const stage::OptimizerOptions& optimizer, std::uint64_t seed,
                 stage::Placement placement, bool update_by_layer)
    : program_(model, all_layers(model), {}, {}, seed, placement) {
  stage::OptimizerOptions still = optimizer;
  still.learning_rate = 0;
  std::vector<at::Tensor> all;
  std::map<int, std::vector<stage::Parameter>> by_layer;
  for (const stage::Parameter& parameter : program_.leaves()) {
    all.push_back(parameter.value);
    by_layer[parameter.layer].push_back(parameter);
  }
  whole_ = std::make_unique<stage::Optimizer>(still, std::move(all));
  if (!update_by_layer) return;
  for (auto& [layer, parameters] : by_layer) {
    std::vector<at::Tensor> values;
    for (const stage::Parameter& parameter : parameters) values.push_back(parameter.value);
    layers_.push_back({layer, std::move(parameters), std::make_unique<stage::Optimizer>(still, std::move(values))});
  }
}

void Subject::clear_gradients() {
  for (stage::Parameter& parameter : program_.leaves()) {
    if (parameter.value.grad().defined()) parameter.value.mutable_grad().zero_();
  }
}

std::vector<at::Tensor> Subject::kept_tensors() {
  std::vector<at::Tensor> out;
  const auto keep = [&](const at::Tensor& tensor) {
    if (tensor.defined()) out.push_back(tensor);
  };
  for (const stage::Parameter& parameter : program_.leaves()) {
    keep(parameter.value);
    keep(parameter.value.grad());
  }
  for (const stage::Parameter& buffer : program_.buffers()) keep(buffer.value);
  for (std::size_t i = 0; i < program_.leaves().size(); ++i) {
    const stage::OptimizerState state = whole_->state(i);
    for (const at::Tensor& tensor : {state.first, state.second, state.third, state.steps, state.product}) keep(tensor);
  }
  return out;
}

void Subject::iterate(const std::vector<at::Tensor>& batch, int step, StepTimer& timer) {
  const device::ScopedRange range(plain_range_, step);
  timer.begin();
  (void)program_.backward(program_.forward({}, batch, step, 0), {});
  check_gradients(program_.leaves());
  whole_->step(kDivisor);
  timer.end();
}

void Subject::watch(const std::vector<at::Tensor>& batch, int step, Watch& watch, bool creates_gradients) {
  const device::ScopedRange range(watched_range_, step);
  watch.begin_part({.phase = Phase::Data});
  if (creates_gradients) {
    for (stage::Parameter& parameter : program_.leaves()) parameter.value.mutable_grad() = at::Tensor();
  }
  watch.end_part();
  watch.begin_step(step);
  stage::Flight flight = program_.forward({}, batch, step, 0, true, &watch);
  watch.begin_backward();
  (void)program_.backward(std::move(flight), {});
  watch.end_backward();
  const auto update = [&](int layer, const std::vector<stage::Parameter>& parameters, stage::Optimizer& optimizer) {
    watch.begin_part({.layer = layer, .phase = Phase::Optimizer});
    check_gradients(parameters);
    optimizer.step(kDivisor);
    watch.end_part();
  };
  if (layers_.empty()) update(0, program_.leaves(), *whole_);
  for (const LayerUpdate& part : layers_) update(part.layer, part.parameters, *part.optimizer);
  watch.end_step();
}

void Subject::run_microbatches(const std::vector<at::Tensor>& batch, int count, bool in_flight, StepTimer& timer) {
  clear_gradients();
  std::vector<stage::Flight> flights;
  timer.begin();
  for (int i = 0; i < count; ++i) {
    flights.push_back(program_.forward({}, batch, 0, i));
    if (in_flight) continue;
    (void)program_.backward(std::move(flights.back()), {});
    flights.clear();
  }
  for (stage::Flight& flight : flights) (void)program_.backward(std::move(flight), {});
  timer.end();
}

void Subject::observe(const std::vector<at::Tensor>& batch, stage::LayerObserver& forward,
                      const std::function<void()>& before_backward, const std::function<void()>& after_backward) {
  clear_gradients();
  stage::Flight flight = program_.forward({}, batch, 0, 0, true, &forward);
  before_backward();
  (void)program_.backward(std::move(flight), {});
  after_backward();
}

}  // namespace stagecraft::profiler
