#include "profiler/subject/subject.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "costmodel/index.h"
#include "costmodel/slice.h"
#include "executor/device/dtype.h"
#include "executor/stage/gradients/finite.h"

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
                                                   std::uint64_t seed, stage::ComputePlace placement) {
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
                  const std::vector<std::vector<at::Tensor>>& outputs, std::int64_t samples, const StateTypes& types) {
  Graph graph;
  graph.name = model.name;
  graph.options = model.options;
  graph.types = types;
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
    layer.parameter_bytes = *layer.parameters * value_bytes(types.parameters);
    layer.frozen_bytes = model::frozen_bytes(spec);
    layer.written_bytes = model::written_bytes(spec);
    layer.replicable = model::written_buffer(spec) == nullptr;
    layer.parameter_tensors = model::parameter_tensors(spec, types.parameters);
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
                 stage::ComputePlace placement, bool update_by_layer)
    : program_(model, all_layers(model), {}, {}, seed, placement) {
  stage::OptimizerOptions still = optimizer;
  still.learning_rate = 0;
  still.types = placement.types;
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
    for (const at::Tensor& tensor : {state.first, state.second, state.third, state.steps, state.product, state.master})
      keep(tensor);
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
