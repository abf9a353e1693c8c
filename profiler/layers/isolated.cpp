#include "profiler/layers/isolated.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <memory>

#include "costmodel/index.h"
#include "executor/device/device.h"
#include "profiler/subject/subject.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {
namespace {

using Outputs = std::vector<std::vector<at::Tensor>>;

at::Tensor tensor(const model::ValueRef& value, const Outputs& outputs) {
  return outputs[to_index(value.layer)][to_index(value.output)].detach();
}

std::vector<stage::ReceivedValue> received_by(const model::Model& model, int layer, const Outputs& outputs) {
  std::map<std::pair<int, int>, stage::ReceivedValue> once;
  for (const model::ValueRef& value : model.layers[to_index(layer)].inputs) {
    if (value.layer < 0) continue;
    const bool gradient = outputs[to_index(value.layer)][to_index(value.output)].requires_grad();
    once[{value.layer, value.output}] = {value, gradient};
  }
  std::vector<stage::ReceivedValue> out;
  for (const auto& [key, value] : once) out.push_back(value);
  return out;
}

std::vector<model::ValueRef> sent_by(const model::Model& model, int layer) {
  std::vector<model::ValueRef> out;
  // The last layer's loss is not sent; the program starts its backward by itself.
  if (layer + 1 == to_int(model.layers.size())) return out;
  for (int i = 0; i < model.layers[to_index(layer)].outputs; ++i) out.push_back({.layer = layer, .output = i});
  return out;
}

constexpr double kSecondsPerNanosecond = 1e-9;
constexpr int kRunsAtOnce = 4;

}  // namespace

LayerAlone::LayerAlone(const model::Model& model, int layer, const std::vector<at::Tensor>& batch,
                       const Outputs& outputs, std::uint64_t seed, stage::ComputePlace placement)
    : program(model, {layer}, received_by(model, layer, outputs), sent_by(model, layer), seed, placement) {
  for (const stage::ReceivedValue& value : received_by(model, layer, outputs))
    inputs.push_back(tensor(value.value, outputs));
  const std::vector<int> read = inputs_read(model);
  for (const int input : program.data_inputs())
    data.push_back(batch[to_index(std::ranges::find(read, input) - read.begin())]);
  for (const model::ValueRef& value : sent_by(model, layer)) {
    const at::Tensor& output = outputs[to_index(value.layer)][to_index(value.output)];
    gradients.push_back(output.requires_grad() ? at::ones_like(output.detach()) : at::Tensor());
  }
}

bool sends_gradient(const model::Model& model, int layer, const Outputs& outputs) {
  return std::ranges::any_of(received_by(model, layer, outputs), &stage::ReceivedValue::gradient);
}

std::vector<IsolatedTime> isolated_times(const model::Model& model, const std::vector<at::Tensor>& batch,
                                         const std::vector<std::vector<at::Tensor>>& outputs, std::uint64_t seed,
                                         stage::ComputePlace placement, Bytes cache, const StoppingRule& rule,
                                         const std::function<void(const std::string&)>& progress) {
  const bool host = placement.device.is_cpu();
  const std::unique_ptr<StreamGate> gate = make_stream_gate(placement.device);
  const at::Tensor overwritten =
      at::zeros({host ? 0 : 2 * cache.value}, at::TensorOptions().dtype(at::kByte).device(placement.device));
  std::vector<IsolatedTime> out;
  for (std::size_t layer = 0; layer < model.layers.size(); ++layer) {
    if (progress) progress(model.layers[layer].name);
    LayerAlone alone(model, to_int(layer), batch, outputs, seed, placement);
    const std::unique_ptr<Marks> marks = host ? make_host_marks() : make_event_marks(placement.device);
    const auto marked = [&](const auto& work) {
      if (!host) at::Tensor(overwritten).zero_();
      marks->mark();
      work();
      marks->mark();
    };
    std::vector<double> forward;
    std::vector<double> backward;
    const std::int64_t start = steady_ns();
    Stop stop = Stop::No;
    for (int round = 0; stop == Stop::No; ++round) {
      std::vector<stage::Flight> flights;
      gate->close();
      for (int run = 0; run < kRunsAtOnce; ++run)
        marked([&] { flights.push_back(alone.program.forward(alone.inputs, alone.data, 0, 0)); });
      for (stage::Flight& flight : flights)
        marked([&] { (void)alone.program.backward(std::move(flight), alone.gradients); });
      gate->open();
      device::synchronize(placement.device);
      const std::vector<std::int64_t> times = marks->take();
      if (round == 0) continue;  // the first one makes buffers and chooses algorithms
      for (std::size_t i = 0; i + 1 < times.size(); i += 2) {
        auto& samples = i / 2 < to_index(kRunsAtOnce) ? forward : backward;
        samples.push_back(static_cast<double>(times[i + 1] - times[i]) * kSecondsPerNanosecond);
      }
      stop = should_stop({.iteration_error = rule.layer_error,
                          .layer_error = rule.layer_error,
                          .layer_share = 0,
                          .fewest = rule.fewest,
                          .least = rule.least,
                          .most_seconds = rule.most_seconds},
                         forward, {backward}, static_cast<double>(steady_ns() - start) * kSecondsPerNanosecond);
    }
    out.push_back({summarize(forward), summarize(backward)});
  }
  return out;
}

namespace {

struct Samples {
  std::vector<double> whole, inputs, weights, late;
};

/// Runs one layer and marks its backwards.
class SplitRuns {
 public:
  SplitRuns(LayerAlone& alone, StreamGate& gate, c10::Device device, const at::Tensor& overwritten)
      : alone_(alone),
        gate_(gate),
        device_(device),
        overwritten_(overwritten),
        marks_(device.is_cpu() ? make_host_marks() : make_event_marks(device)) {}

  /// Some backwards, whole.
  void whole(Samples* samples) {
    run([&](stage::Flight& flight) {
      marks_->mark();
      (void)alone_.program.backward(std::move(flight), alone_.gradients);
      marks_->mark();
    });
    const std::vector<std::int64_t> times = marks_->take();
    for (std::size_t i = 0; samples && i + 1 < times.size(); i += 2) samples->whole.push_back(between(times, i));
  }
  /// Some backwards in two parts, the second `late` or not; whether the executor can take them apart.
  bool split(bool late, Samples* samples) {
    bool out = true;
    run([&](stage::Flight& flight) {
      stage::SplitBackward rest;
      marks_->mark();
      (void)alone_.program.backward_of_inputs(std::move(flight), alone_.gradients, rest);
      marks_->mark();
      out = rest.is_split();
      if (late) overwrite_cache();
      marks_->mark();
      rest.of_weights();
      marks_->mark();
    });
    const std::vector<std::int64_t> times = marks_->take();
    for (std::size_t i = 0; samples && i + 3 < times.size(); i += 4) {
      samples->inputs.push_back(between(times, i));
      (late ? samples->late : samples->weights).push_back(between(times, i + 2));
    }
    return out;
  }

 private:
  template <class Backward>
  void run(const Backward& backward) {
    std::vector<stage::Flight> flights;
    gate_.close();
    for (int i = 0; i < kRunsAtOnce; ++i) flights.push_back(alone_.program.forward(alone_.inputs, alone_.data, 0, 0));
    for (stage::Flight& flight : flights) {
      if (!device_.is_cpu()) overwrite_cache();
      backward(flight);
    }
    gate_.open();
    device::synchronize(device_);
  }
  void overwrite_cache() { at::Tensor(overwritten_).zero_(); }
  static double between(const std::vector<std::int64_t>& times, std::size_t i) {
    return static_cast<double>(times[i + 1] - times[i]) * kSecondsPerNanosecond;
  }

  LayerAlone& alone_;
  StreamGate& gate_;
  c10::Device device_;
  const at::Tensor& overwritten_;
  std::unique_ptr<Marks> marks_;
};

SplitTime split_time(SplitRuns& runs, const StoppingRule& rule) {
  SplitTime out;
  Samples samples;
  // The first ones make buffers and choose algorithms.
  runs.whole(nullptr);
  out.separable = runs.split(false, nullptr);
  const StoppingRule layer_rule{.iteration_error = rule.layer_error,
                                .layer_error = rule.layer_error,
                                .layer_share = 0,
                                .fewest = rule.fewest,
                                .least = rule.least,
                                .most_seconds = rule.most_seconds};
  const double start = steady_seconds();
  for (Stop stop = Stop::No; stop == Stop::No;) {
    runs.whole(&samples);
    for (const bool late : {false, true}) {
      if (out.separable) (void)runs.split(late, &samples);
    }
    std::vector<std::vector<double>> parts;
    if (out.separable) parts = {samples.inputs, samples.weights, samples.late};
    stop = should_stop(layer_rule, samples.whole, parts, steady_seconds() - start);
  }
  out.whole = summarize(samples.whole);
  out.inputs = out.separable ? summarize(samples.inputs) : out.whole;
  if (out.separable) out.weights = summarize(samples.weights);
  if (out.separable) out.late = summarize(samples.late);
  return out;
}

Timing scaled(Timing timing, double factor) {
  timing.median = timing.median * factor;
  if (timing.spread) *timing.spread = *timing.spread * factor;
  return timing;
}

/// No time at all, in as many samples.
Timing nothing_beside(const Timing& timing) { return scaled(timing, 0); }

}  // namespace

std::vector<std::optional<SplitTime>> split_times(const model::Model& model, const std::vector<at::Tensor>& batch,
                                                  const std::vector<std::vector<at::Tensor>>& outputs,
                                                  std::uint64_t seed, stage::ComputePlace placement, Bytes cache,
                                                  const StoppingRule& rule,
                                                  const std::function<void(const std::string&)>& progress) {
  const std::unique_ptr<StreamGate> gate = make_stream_gate(placement.device);
  const at::Tensor overwritten =
      at::zeros({2 * cache.value}, at::TensorOptions().dtype(at::kByte).device(placement.device));
  std::vector<std::optional<SplitTime>> out(model.layers.size());
  for (std::size_t layer = 0; layer < model.layers.size(); ++layer) {
    if (!sends_gradient(model, to_int(layer), outputs)) continue;
    LayerAlone alone(model, to_int(layer), batch, outputs, seed, placement);
    if (alone.program.parameters().empty()) continue;
    if (progress) progress(model.layers[layer].name);
    SplitRuns runs(alone, *gate, placement.device, overwritten);
    out[layer] = split_time(runs, rule);
  }
  return out;
}

BackwardParts backward_parts(const Timing& backward, const SplitTime& alone) {
  const double factor = alone.whole.median > Seconds(0) ? backward.median / alone.whole.median : 1;
  if (!alone.separable) return {backward, nothing_beside(backward), false};
  const Timing weights = scaled(alone.weights, factor);
  return {scaled(alone.inputs, factor), std::ranges::max(weights, alone.late, {}, &Timing::median)};
}

BackwardParts backward_parts(const Timing& backward, bool sends_gradient) {
  if (sends_gradient) return {backward, nothing_beside(backward)};
  return {nothing_beside(backward), backward};
}

}  // namespace stagecraft::profiler
