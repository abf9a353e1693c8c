#include "executor/stage/stage_program.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "costmodel/index.h"
#include "executor/device/autocast.h"
#include "executor/device/dtype.h"
#include "executor/device/machine/program.h"
#include "executor/stage/split_backward.h"

namespace stagecraft::stage {

at::Tensor laid_out_like(const at::Tensor& tensor, const at::Tensor& like) {
  if (tensor.strides() == like.strides() || !like.is_non_overlapping_and_dense()) return tensor;
  return at::empty_strided(like.sizes(), like.strides(), tensor.options().requires_grad(false)).copy_(tensor);
}

at::Tensor view_laid_out_like(const at::Tensor& flat, std::int64_t offset, const at::Tensor& like) {
  if (like.is_non_overlapping_and_dense())
    return flat.as_strided(like.sizes(), like.strides(), flat.storage_offset() + offset);
  return flat.narrow(0, offset, like.numel()).view(like.sizes());
}

at::Tensor in_memory_order(const at::Tensor& tensor) { return tensor.detach().as_strided({tensor.numel()}, {1}); }

void release_memory(const at::Tensor& tensor) {
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  storage.set_data_ptr_noswap(c10::DataPtr(nullptr, storage.device()));
  storage.set_nbytes(0);
}

void restore_memory(const at::Tensor& tensor) {
  if (has_memory(tensor)) return;
  c10::StorageImpl& storage = *tensor.storage().unsafeGetStorageImpl();
  const std::size_t bytes = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                                             to_index(tensor.storage_offset()));
  storage.set_data_ptr_noswap(storage.allocator()->allocate(bytes));
  storage.set_nbytes(bytes);
}

bool has_memory(const at::Tensor& tensor) { return tensor.storage().nbytes() > 0 || tensor.numel() == 0; }

at::Tensor dense(const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense() ? parameter : parameter.contiguous();
}

at::Tensor make_leaf(const at::Tensor& values, at::ScalarType gradients) {
  at::Tensor out = values.detach();
  out.requires_grad_(true);
  if (gradients != out.scalar_type()) out.set_grad_dtype(gradients);
  return out;
}

at::ScalarType gradient_type(const at::Tensor& leaf) { return leaf.grad_dtype().value_or(leaf.scalar_type()); }

at::Tensor as_read(const at::Tensor& parameter) {
  return parameter.scalar_type() == at::kBFloat16 && parameter.dim() < 2 ? parameter.to(at::kFloat) : parameter;
}

namespace {

using Key = std::tuple<int, int, int>;

Key key(const model::ValueRef& value) {
  return value.layer >= 0 ? Key{value.layer, value.output, -1} : Key{-1, 0, value.input};
}

}  // namespace

std::string to_string(const model::Model& model, const model::ValueRef& value) {
  if (value.layer < 0) return "input \"" + model.inputs[to_index(value.input)].name + "\"";
  return "layer \"" + model.layers[to_index(value.layer)].name + "\" output " + std::to_string(value.output);
}

StageProgram::StageProgram(const model::Model& model, std::vector<int> layers, std::vector<ReceivedValue> received,
                           const std::vector<model::ValueRef>& sent, std::uint64_t seed, ComputePlace placement)
    : received_(std::move(received)),
      seed_(seed),
      placement_(placement),
      only_trains_(model.mode == model::ModelMode::Training) {
  std::map<Key, int> slot;
  for (const ReceivedValue& value : received_) {
    received_slots_.push_back(slot.emplace(key(value.value), slots_++).first->second);
  }
  std::set<int> inputs;
  for (const int index : layers) {
    for (const model::ValueRef& argument : model.layers[to_index(index)].inputs) {
      if (argument.layer < 0) inputs.insert(argument.input);
    }
  }
  data_inputs_.assign(inputs.begin(), inputs.end());
  for (const int input : data_inputs_) data_slots_.push_back(slot[key({-1, 0, input})] = slots_++);

  std::map<int, std::size_t> last_reader;
  std::map<std::string, at::Tensor> held;
  for (const int index : layers) {
    const model::LayerSpec& spec = model.layers[to_index(index)];
    LocalLayer layer;
    layer.spec = &spec;
    layer.index = index;
    layer.range = device::range_name(spec.name + " forward");
    for (const model::ValueRef& argument : spec.inputs) {
      const auto it = slot.find(key(argument));
      if (it == slot.end()) {
        throw std::invalid_argument("layer \"" + spec.name + "\" reads " + to_string(model, argument) +
                                    ", which neither this stage nor an earlier one computes");
      }
      layer.arguments.push_back(it->second);
      last_reader[it->second] = layers_.size();
    }
    for (int output = 0; output < spec.outputs; ++output) {
      layer.results.push_back(slot[key({index, output, -1})] = slots_);
      last_reader[slots_++] = layers_.size();
    }
    for (const model::ParameterSpec& parameter : spec.parameters) {
      const auto initial = [&] { return model::initial_value(parameter, seed).to(placement_.device); };
      if (parameter.trainable) {
        at::Tensor& first = held[parameter.name];
        const bool is_first = !first.defined();
        at::Tensor value =
            make_leaf(is_first ? dense(initial().to(device::dtype_of(placement_.types.parameters))) : first,
                      device::dtype_of(placement_.types.gradients));
        leaves_.push_back({parameter.name, index, value});
        if (is_first) parameters_.push_back(leaves_.back());
        if (is_first) first = value;
        layer.parameters.push_back(std::move(value));
      } else {
        layer.buffers.push_back(initial());
        layer.written.push_back(model::is_written(parameter) ? written_buffers_++ : -1);
      }
    }
    layers_.push_back(std::move(layer));
  }
  std::set<int> kept;
  for (const model::ValueRef& value : sent) {
    const auto it = slot.find(key(value));
    if (it == slot.end())
      throw std::invalid_argument(to_string(model, value) + " is sent by a stage that does not have it");
    sent_slots_.push_back(it->second);
    kept.insert(it->second);
  }
  if (!layers.empty() && layers.back() == to_int(model.layers.size()) - 1) {
    loss_slot_ = layers_.back().results.front();
    kept.insert(loss_slot_);
  }
  for (const auto& [value, reader] : last_reader) {
    if (!kept.contains(value)) layers_[reader].last_use.push_back(value);
  }
}

void StageProgram::evaluate() {
  if (only_trains_) throw std::logic_error("the model was read for training, not for evaluation");
  training_ = false;
}

void StageProgram::bind(const std::vector<at::Tensor>& values) {
  std::map<std::string, at::Tensor> held;
  for (std::size_t i = 0; i < parameters_.size(); ++i) held[parameters_[i].name] = parameters_[i].value = values[i];
  std::set<std::string> used;
  std::size_t next = 0;
  for (LocalLayer& layer : layers_) {
    for (at::Tensor& parameter : layer.parameters) {
      Parameter& leaf = leaves_[next++];
      const at::Tensor& value = held[leaf.name];
      parameter = leaf.value = used.insert(leaf.name).second ? value : make_leaf(value, gradient_type(value));
    }
  }
}

std::vector<Parameter> StageProgram::buffers() const {
  std::vector<Parameter> out;
  for (const LocalLayer& layer : layers_) {
    std::size_t next = 0;
    for (const model::ParameterSpec& parameter : layer.spec->parameters) {
      if (parameter.trainable) continue;
      const at::Tensor& value = layer.buffers[next++];
      if (!parameter.constant) out.push_back({parameter.name, layer.index, value});
    }
  }
  return out;
}

void Flight::clear() {
  received.clear();
  data.clear();
  sent.clear();
  loss.reset();
  kept.clear();
  kept_buffers.clear();
}

Flight StageProgram::forward(std::vector<at::Tensor> received, std::vector<at::Tensor> data, std::int64_t step,
                             int microbatch, bool keep_graph, LayerObserver* observer) {
  Flight flight;
  flight.received = std::move(received);
  flight.data = std::move(data);
  flight.step = step;
  flight.microbatch = microbatch;
  forward(flight, keep_graph, observer);
  return flight;
}

void StageProgram::forward(Flight& flight, bool keep_graph, LayerObserver* observer) {
  std::optional<at::NoGradGuard> no_graph;
  if (!keep_graph) no_graph.emplace();
  Values& values = values_;
  begin(flight, values);
  if (keep_graph && !segments_.empty()) {
    flight.kept_buffers.resize(to_index(written_buffers_));
    for (const Segment& segment : segments_) {
      run(flight, segment.first, segment.last, values, Manner::First, observer);
      // Later layers release what they are the last to read.
      for (const int slot : segment.outputs) {
        if (const auto it = std::ranges::lower_bound(kept_slots_, slot); it != kept_slots_.end() && *it == slot)
          flight.kept.push_back(values[to_index(slot)]);
      }
    }
  } else {
    run(flight, 0, layers_.size(), values, Manner::Once, observer);
  }
  end(flight, values);
  values.clear();
}

void StageProgram::begin(Flight& flight, Values& values) const {
  values.assign(to_index(slots_), at::Tensor());
  for (std::size_t i = 0; i < received_slots_.size(); ++i) {
    // Over the sender's data.
    at::Tensor& value = flight.received[i];
    value = received_[i].gradient ? inputs_.make(value) : value.detach();
    values[to_index(received_slots_[i])] = value;
  }
  for (std::size_t i = 0; i < data_slots_.size(); ++i) {
    if (flight.data[i].device() != placement_.device)
      flight.data[i] = flight.data[i].to(placement_.device, /*non_blocking=*/true);
    values[to_index(data_slots_[i])] = flight.data[i];
  }
}

void StageProgram::run(Flight& flight, std::size_t first, std::size_t last, Values& values, Manner how,
                       LayerObserver* observer) {
  const bool casts = placement_.compute != at::kFloat;
  // Not around autocast blocks in a model from a file, whose cached casts end with the outermost scope.
  std::optional<device::AutocastScope> autocast;
  if (casts) autocast.emplace(placement_.device.type(), true, placement_.compute);
  std::vector<at::Tensor>& arguments = arguments_;
  std::vector<at::Tensor> buffers;
  for (std::size_t l = first; l < last; ++l) {
    LocalLayer& layer = layers_[l];
    const device::ScopedRange range(layer.range, flight.microbatch);
    if (observer) observer->begin(layer.index);
    arguments.clear();
    for (const int slot : layer.arguments) arguments.push_back(values[to_index(slot)]);
    model::LayerCall call;
    call.inputs = arguments;
    call.parameters = layer.parameters;
    if (placement_.types.parameters != StateType::Float32) {
      read_.clear();
      for (const at::Tensor& parameter : layer.parameters) read_.push_back(as_read(parameter));
      call.parameters = read_;
    }
    call.buffers = layer.buffers;
    if (how == Manner::Recomputing) buffers = layer.buffers;
    for (std::size_t i = 0; i < layer.buffers.size(); ++i) {
      if (how == Manner::Once || layer.written[i] < 0) continue;
      at::Tensor& kept = flight.kept_buffers[to_index(layer.written[i])];
      if (how == Manner::First) kept = layer.buffers[i].clone();
      if (how == Manner::Recomputing) buffers[i] = std::move(kept);
    }
    if (how == Manner::Recomputing) call.buffers = buffers;
    call.training = training_;
    call.seed = seed_;
    call.step = flight.step;
    call.microbatch = flight.microbatch;
    std::vector<at::Tensor> results;
    try {
      results = layer.spec->forward(call);
    } catch (const c10::Error& e) { device::rethrow_at("layer \"" + layer.spec->name + "\", forward", e); }
    if (results.size() != layer.results.size()) {
      throw std::logic_error("layer \"" + layer.spec->name + "\" gave " + std::to_string(results.size()) +
                             " tensors, its description has " + std::to_string(layer.results.size()));
    }
    if (observer) observer->made(layer.index, results);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const auto slot = to_index(layer.results[i]);
      if (how == Manner::First) {
        // Not with a forward without autograd: some kernels (oneDNN's LSTM) then give different last bits.
        const bool differentiable = results[i].requires_grad();
        results[i] = results[i].detach();
        if (differentiable) results[i].requires_grad_(true);
      }
      values[slot] = std::move(results[i]);
    }
    arguments.clear();
    read_.clear();
    for (const int slot : layer.last_use) values[to_index(slot)].reset();
    if (observer) observer->end(layer.index);
  }
}

void StageProgram::end(Flight& flight, const Values& values) const {
  flight.sent.clear();
  for (const int slot : sent_slots_) flight.sent.push_back(values[to_index(slot)]);
  if (loss_slot_ >= 0) flight.loss = values[to_index(loss_slot_)];
}

std::vector<at::Tensor> StageProgram::backward(Flight flight, const std::vector<at::Tensor>& sent_gradients,
                                               double loss_gradient) {
  std::vector<at::Tensor> out;
  backward(flight, sent_gradients, loss_gradient, out);
  return out;
}

std::vector<at::Tensor> StageProgram::backward_of_inputs(Flight flight, const std::vector<at::Tensor>& sent_gradients,
                                                         SplitBackward& rest, double loss_gradient) {
  std::vector<at::Tensor> out;
  backward(flight, sent_gradients, loss_gradient, out, &rest);
  return out;
}

std::string StageProgram::backward_text() const {
  return "backward of layers \"" + layers_.front().spec->name + "\" to \"" + layers_.back().spec->name + '"';
}

void StageProgram::backward(Flight& flight, const std::vector<at::Tensor>& sent_gradients, double loss_gradient,
                            std::vector<at::Tensor>& received_gradients, SplitBackward* rest) {
  std::vector<at::Tensor>& found = received_gradients;
  found.clear();
  if (!segments_.empty()) {
    backward_by_segments(flight, sent_gradients, rest, loss_gradient, found);
  } else {
    roots_.clear();
    root_gradients_.clear();
    for (std::size_t i = 0; i < flight.sent.size(); ++i) {
      if (!flight.sent[i].requires_grad() || !sent_gradients[i].defined()) continue;
      roots_.push_back(flight.sent[i]);
      root_gradients_.push_back(sent_gradients[i]);
    }
    if (flight.loss.defined() && flight.loss.requires_grad()) {
      roots_.push_back(flight.loss);
      // The engine creates the ones, as part of the step that a profile watches.
      root_gradients_.push_back(loss_gradient == 1 ? at::Tensor() : at::full_like(flight.loss, loss_gradient));
    }
    if (!roots_.empty() && rest) {
      std::tie(found, *rest) = SplitBackward::of_inputs(roots_, root_gradients_, flight.received);
    } else if (!roots_.empty()) {
      try {
        torch::autograd::backward(roots_, root_gradients_);
      } catch (const c10::Error& e) { device::rethrow_at(backward_text(), e); }
      for (const at::Tensor& input : flight.received) found.push_back(GraphInputs::take_gradient(input));
    }
    roots_.clear();
    root_gradients_.clear();
  }
  for (const Parameter& leaf : leaves_) materialize_gradient(leaf.value);
  found.resize(flight.received.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!received_[i].gradient) {
      found[i].reset();
    } else {
      // A zero tensor has no memory to send.
      const bool values = found[i].defined() && !found[i]._is_zerotensor();
      if (!values) found[i] = at::zeros_like(flight.received[i]);
    }
  }
  flight.clear();
}

// Recomputation in segments. The gradient of a value that several segments read is summed as in one backward over all
// of them: autograd runs the nodes of later layers first and adds their gradients one by one, so each segment's
// backward begins with the sum over the later segments.

void StageProgram::recompute_every(int layers) {
  const std::size_t length = layers > 0 ? to_index(layers) : std::max<std::size_t>(layers_.size(), 1);
  segments_.clear();
  std::vector<int> filled_by(to_index(slots_), -1);  // segments; -1: from outside
  std::set<int> kept;
  for (std::size_t first = 0; first < layers_.size(); first += length) {
    Segment segment{first, std::min(first + length, layers_.size()), {}, {}};
    const int number = to_int(segments_.size());
    std::set<int> inputs;
    for (std::size_t l = segment.first; l < segment.last; ++l) {
      for (const int slot : layers_[l].arguments) {
        if (filled_by[to_index(slot)] == number) continue;
        inputs.insert(slot);
        if (filled_by[to_index(slot)] >= 0) kept.insert(slot);
      }
      for (const int slot : layers_[l].results) filled_by[to_index(slot)] = number;
    }
    segment.inputs.assign(inputs.begin(), inputs.end());
    segments_.push_back(std::move(segment));
  }
  kept_slots_.assign(kept.begin(), kept.end());
  std::set<int> wanted = kept;
  wanted.insert(sent_slots_.begin(), sent_slots_.end());
  if (loss_slot_ >= 0) wanted.insert(loss_slot_);
  for (const int slot : wanted) {
    if (filled_by[to_index(slot)] >= 0) segments_[to_index(filled_by[to_index(slot)])].outputs.push_back(slot);
  }
}

void StageProgram::backward_by_segments(Flight& flight, const std::vector<at::Tensor>& sent_gradients,
                                        SplitBackward* rest, double loss_gradient, std::vector<at::Tensor>& found) {
  Values given;
  begin(flight, given);
  for (std::size_t i = 0; i < kept_slots_.size(); ++i) given[to_index(kept_slots_[i])] = std::move(flight.kept[i]);
  Values gradients(to_index(slots_));
  for (std::size_t i = 0; i < sent_slots_.size(); ++i) { gradients[to_index(sent_slots_[i])] = sent_gradients[i]; }
  if (loss_slot_ >= 0 && flight.loss.defined())
    gradients[to_index(loss_slot_)] = at::full_like(flight.loss, loss_gradient);

  for (auto segment = segments_.rbegin(); segment != segments_.rend(); ++segment) {
    torch::autograd::variable_list roots;
    torch::autograd::variable_list root_gradients;
    torch::autograd::variable_list inputs;
    std::vector<int> input_slots;
    Values values(to_index(slots_));
    for (const int slot : segment->inputs) {
      const at::Tensor& value = given[to_index(slot)];
      if (!value.requires_grad()) {
        values[to_index(slot)] = value;
        continue;
      }
      inputs.push_back(inputs_.make(value));
      input_slots.push_back(slot);
      values[to_index(slot)] = inputs.back();
      if (!gradients[to_index(slot)].defined()) continue;
      // The sum over later segments comes first, and this one continues it.
      roots.push_back(inputs.back());
      root_gradients.push_back(std::exchange(gradients[to_index(slot)], at::Tensor()));
    }
    run(flight, segment->first, segment->last, values, Manner::Recomputing, nullptr);
    for (const int slot : segment->outputs) {
      at::Tensor gradient = std::exchange(gradients[to_index(slot)], at::Tensor());
      given[to_index(slot)].reset();
      if (!values[to_index(slot)].requires_grad() || !gradient.defined()) continue;
      roots.push_back(values[to_index(slot)]);
      root_gradients.push_back(std::move(gradient));
    }
    values.clear();
    if (roots.empty()) continue;
    if (rest) {
      auto [found_here, deferred] = SplitBackward::of_inputs(roots, root_gradients, inputs);
      rest->before(std::move(deferred));
      for (std::size_t i = 0; i < inputs.size(); ++i) gradients[to_index(input_slots[i])] = found_here[i];
    } else {
      try {
        torch::autograd::backward(roots, root_gradients);
      } catch (const c10::Error& e) { device::rethrow_at(backward_text(), e); }
      for (std::size_t i = 0; i < inputs.size(); ++i)
        gradients[to_index(input_slots[i])] = GraphInputs::take_gradient(inputs[i]);
    }
  }
  for (const int slot : received_slots_) found.push_back(gradients[to_index(slot)]);
}

}  // namespace stagecraft::stage
