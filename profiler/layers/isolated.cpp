#include "profiler/layers/isolated.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>

#include "costmodel/index.h"
#include "executor/device/device.h"
#include "profiler/layers/stream_gate.h"
#include "profiler/subject/model_graph.h"
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
                       const Outputs& outputs, std::uint64_t seed, stage::Placement placement)
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
                                         stage::Placement placement, Bytes cache, const StoppingRule& rule,
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

}  // namespace stagecraft::profiler
