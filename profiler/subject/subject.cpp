#include "profiler/subject/subject.h"

#include <map>

#include "profiler/subject/model_graph.h"

namespace stagecraft::profiler {
namespace {

constexpr double kSecondsPerNanosecond = 1e-9;

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
  std::map<int, std::vector<at::Tensor>> by_layer;
  for (const stage::Parameter& parameter : program_.parameters()) {
    all.push_back(parameter.value);
    by_layer[parameter.layer].push_back(parameter.value);
  }
  whole_ = std::make_unique<stage::Optimizer>(still, std::move(all));
  if (!update_by_layer) return;
  for (auto& [layer, values] : by_layer)
    layers_.emplace_back(layer, std::make_unique<stage::Optimizer>(still, std::move(values)));
}

void Subject::clear_gradients() {
  for (stage::Parameter& parameter : program_.parameters()) {
    if (parameter.value.grad().defined()) parameter.value.mutable_grad().zero_();
  }
}

void Subject::iterate(const std::vector<at::Tensor>& batch, int step, StepTimer& timer) {
  const device::ScopedRange range(plain_range_, step);
  clear_gradients();
  timer.begin();
  (void)program_.backward(program_.forward({}, batch, step, 0), {});
  whole_->step(1);
  timer.end();
}

void Subject::watch(const std::vector<at::Tensor>& batch, int step, Watch& watch) {
  const device::ScopedRange range(watched_range_, step);
  watch.begin_part({.phase = Phase::Data});
  clear_gradients();
  watch.end_part();
  watch.begin_step(step);
  stage::Flight flight = program_.forward({}, batch, step, 0, true, &watch);
  watch.begin_backward();
  (void)program_.backward(std::move(flight), {});
  watch.end_backward();
  const auto update = [&](int layer, stage::Optimizer& optimizer) {
    watch.begin_part({.layer = layer, .phase = Phase::Optimizer});
    optimizer.step(1);
    watch.end_part();
  };
  if (layers_.empty()) update(0, *whole_);
  for (auto& [layer, optimizer] : layers_) update(layer, *optimizer);
  watch.end_step();
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
