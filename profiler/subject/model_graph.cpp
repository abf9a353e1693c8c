#include "profiler/subject/model_graph.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "costmodel/index.h"
#include "costmodel/slice.h"
#include "executor/device/dtype.h"

namespace stagecraft::profiler {
namespace {

std::string input_id(const model::ModelInput& input) { return "input:" + input.name; }

/// What the backward of some tensors may give a gradient to. Not everything with a graph: a layer may read a value only
/// by detach() or argmax(), and then parameters behind it have no gradient.
class Differentiated {
 public:
  explicit Differentiated(const std::vector<at::Tensor>& roots) {
    std::vector<torch::autograd::Edge> waiting;
    for (const at::Tensor& root : roots) {
      if (root.requires_grad()) waiting.push_back(torch::autograd::impl::gradient_edge(root));
    }
    std::set<torch::autograd::Node*> entered;
    while (!waiting.empty()) {
      const torch::autograd::Edge edge = waiting.back();
      waiting.pop_back();
      if (!edge.is_valid()) continue;
      reached_.emplace(edge.function.get(), edge.input_nr);
      if (!entered.insert(edge.function.get()).second) continue;
      waiting.insert(waiting.end(), edge.function->next_edges().begin(), edge.function->next_edges().end());
    }
  }
  [[nodiscard]] bool reach(const at::Tensor& tensor) const {
    if (!tensor.requires_grad()) return false;
    const torch::autograd::Edge edge = torch::autograd::impl::gradient_edge(tensor);
    return reached_.contains({edge.function.get(), edge.input_nr});
  }

 private:
  std::set<std::pair<torch::autograd::Node*, std::uint32_t>> reached_;
};

Output output_of(const at::Tensor& tensor, bool has_gradient) {
  return {Bytes(static_cast<std::int64_t>(tensor.nbytes())), tensor.sizes().vec(),
          device::dtype_name(tensor.scalar_type()), has_gradient};
}

Output unread(const model::ModelInput& input, std::int64_t samples) {
  std::vector<std::int64_t> shape = input.shape;
  if (input.batch_axis) shape.insert(shape.begin() + *input.batch_axis, samples);
  const auto bytes = static_cast<std::int64_t>(c10::elementSize(device::dtype_of(input.dtype)));
  return {Bytes(element_count(shape) * bytes), shape, input.dtype, false};
}

}  // namespace

std::vector<int> inputs_read(const model::Model& model) {
  std::set<int> out;
  for (const model::LayerSpec& layer : model.layers) {
    for (const model::ValueRef& value : layer.inputs) {
      if (value.layer < 0) out.insert(value.input);
    }
  }
  return {out.begin(), out.end()};
}

std::vector<int> all_layers(const model::Model& model) {
  std::vector<int> out(model.layers.size());
  std::iota(out.begin(), out.end(), 0);
  return out;
}

model::Model announcing(model::Model model, const std::function<void(int layer)>& begin) {
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    model.layers[i].forward = [inner = model.layers[i].forward, begin, i](const model::LayerCall& call) {
      begin(to_int(i));
      return inner(call);
    };
  }
  return model;
}

std::vector<std::vector<at::Tensor>> layer_outputs(const model::Model& model, const std::vector<at::Tensor>& batch,
                                                   std::uint64_t seed, stage::Placement placement) {
  std::vector<std::vector<at::Tensor>> outputs(model.layers.size());
  model::Model recording = model;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    recording.layers[i].forward = [inner = model.layers[i].forward, &given = outputs[i]](const model::LayerCall& call) {
      return given = inner(call);
    };
  }
  stage::StageProgram once(recording, all_layers(model), {}, {}, seed, placement);
  (void)once.forward({}, batch, 0, 0);
  return outputs;
}

Graph model_graph(const model::Model& model, const std::vector<at::Tensor>& batch,
                  const std::vector<std::vector<at::Tensor>>& outputs, std::int64_t samples) {
  Graph graph;
  graph.name = model.name;
  graph.options = model.options;
  graph.microbatch_samples = samples;
  graph.whole_batch_loss = model.loss_kind == model::LossKind::Across;
  std::map<std::string, int> holders;
  for (const model::LayerSpec& spec : model.layers) {
    std::set<std::string> names;
    for (const model::ParameterSpec& parameter : spec.parameters) names.insert(parameter.name);
    for (const std::string& name : names) ++holders[name];
  }
  const int inputs = to_int(model.inputs.size());
  const std::vector<int> read = inputs_read(model);
  for (const model::ModelInput& input : model.inputs) {
    Layer layer;
    layer.id = layer.name = input_id(input);
    layer.kind = kInputKind;
    const auto place = std::ranges::lower_bound(read, to_int(graph.layers.size()));
    if (place != read.end() && *place == to_int(graph.layers.size())) {
      layer.outputs = {output_of(batch.at(to_index(place - read.begin())), false)};
    } else if (!input.derive) {
      layer.outputs = {unread(input, samples)};
    }
    graph.layers.push_back(std::move(layer));
  }
  const Differentiated differentiated(outputs.back());
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    const model::LayerSpec& spec = model.layers[i];
    Layer layer;
    layer.id = layer.name = spec.name;
    layer.kind = spec.kind;
    for (const at::Tensor& output : outputs[i])
      layer.outputs.push_back(output_of(output, differentiated.reach(output)));
    layer.parameters = model::parameter_count(spec);
    layer.parameter_bytes = Bytes(*layer.parameters * static_cast<std::int64_t>(sizeof(float)));
    layer.frozen_bytes = model::frozen_bytes(spec);
    layer.written_bytes = model::written_bytes(spec);
    layer.replicable = model::written_buffer(spec) == nullptr;
    layer.parameter_tensors = model::parameter_tensors(spec);
    layer.exchanged_buffers = model::exchanged_buffers(spec);
    for (const StateTensor& parameter : layer.parameter_tensors) {
      if (holders[parameter.name] > 1) layer.tied.push_back({parameter.name, tensor_bytes(parameter)});
    }
    graph.layers.push_back(std::move(layer));
    for (const model::ValueRef& argument : spec.inputs) {
      const int source = argument.layer >= 0 ? inputs + argument.layer : argument.input;
      graph.edges.push_back({source, inputs + to_int(i), argument.layer >= 0 ? argument.output : 0});
    }
  }
  return graph;
}

}  // namespace stagecraft::profiler
