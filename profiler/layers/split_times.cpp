#include "profiler/layers/split_times.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <memory>

#include "costmodel/index.h"
#include "executor/device/device.h"
#include "profiler/layers/isolated.h"
#include "profiler/layers/stream_gate.h"
#include "profiler/subject/watch.h"

namespace stagecraft::profiler {
namespace {

constexpr double kSecondsPerNanosecond = 1e-9;
constexpr int kRunsAtOnce = 4;

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
                                                  std::uint64_t seed, stage::Placement placement, Bytes cache,
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
