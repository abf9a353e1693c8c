#include "profiler/layers/layer_alone.h"

#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <map>

#include "costmodel/index.h"
#include "profiler/subject/model_graph.h"

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

}  // namespace stagecraft::profiler
