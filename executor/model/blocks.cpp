#include "executor/model/blocks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/ops/adaptive_avg_pool2d.h>
#include <ATen/ops/add.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/lstm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/max_pool2d.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <numbers>

#include "costmodel/index.h"
#include "executor/model/recurrent_weights.h"

namespace stagecraft::model {
namespace {

using Tensors = std::vector<at::Tensor>;

/// Momentum of batch norm's running statistics.
constexpr double kBatchNormMomentum = 0.1;

}  // namespace

Dropout::Dropout(const LayerCall& call, std::int64_t percent, const std::string& stream)
    : probability_(call.training ? static_cast<double>(percent) / 100 : 0),
      seed_(stream.empty() ? call.random_seed : mix_seed(call.random_seed, stream)) {}

at::Tensor Dropout::operator()(const at::Tensor& x) {
  if (!active()) return x;
  if (!generator_.defined()) {
    generator_ =
        x.is_cpu() || x.is_meta()
            ? at::make_generator<at::CPUGeneratorImpl>()
            : at::globalContext().getAcceleratorHooksInterface(x.device().type()).getNewGenerator(x.get_device());
    generator_.set_current_seed(seed_);
  }
  const double keep = 1 - probability_;
  at::Tensor mask = at::empty(x.sizes(), x.options().requires_grad(false));
  mask.bernoulli_(keep, generator_).div_(keep);
  return x.mul(mask);
}

ParameterSpec uniform(std::string name, std::vector<std::int64_t> shape, double scale) {
  return {std::move(name), std::move(shape), Init::Uniform, scale, true};
}

ParameterSpec normal(std::string name, std::vector<std::int64_t> shape, double scale) {
  return {std::move(name), std::move(shape), Init::Normal, scale, true};
}

ParameterSpec ones(std::string name, std::vector<std::int64_t> shape) {
  return {std::move(name), std::move(shape), Init::Ones, 0, true};
}

ParameterSpec zeros(std::string name, std::vector<std::int64_t> shape) {
  return {std::move(name), std::move(shape), Init::Zeros, 0, true};
}

double fan_in_scale(std::int64_t fan_in) { return 1 / std::sqrt(static_cast<double>(fan_in)); }

ValueRef append(Model& model, LayerSpec layer) {
  model.layers.push_back(std::move(layer));
  return {.layer = to_int(model.layers.size()) - 1};
}

ValueRef append(Model& model, ModelInput input) {
  model.inputs.push_back(std::move(input));
  return {.input = to_int(model.inputs.size()) - 1};
}

ValueRef conv2d(Model& model, const std::string& name, ValueRef in, const ConvShape& shape) {
  const std::int64_t area = shape.kernel * shape.kernel;
  const std::vector<std::int64_t> filters{shape.out, shape.in, shape.kernel, shape.kernel};
  const double scale = fan_in_scale(shape.in * area);
  LayerSpec layer{.name = name, .kind = "Conv2d", .inputs = {in}, .parameters = {}, .forward = {}};
  layer.parameters.push_back(
      shape.kaiming ? normal(name + ".weight", filters, std::numbers::sqrt2 * fan_in_scale(shape.out * area))
                    : uniform(name + ".weight", filters, scale));
  if (shape.bias)
    layer.parameters.push_back(shape.kaiming ? zeros(name + ".bias", {shape.out})
                                             : uniform(name + ".bias", {shape.out}, scale));
  layer.forward = [stride = shape.stride, padding = shape.padding,
                   bias = shape.bias](const LayerCall& call) -> Tensors {
    return {at::conv2d(call.inputs[0], call.parameters[0], bias ? call.parameters[1] : at::Tensor(), stride, padding)};
  };
  return append(model, std::move(layer));
}

ValueRef linear(Model& model, const std::string& name, ValueRef in, const LinearShape& shape) {
  const bool is_normal = shape.deviation > 0;
  const double scale = fan_in_scale(shape.in);
  return append(model, {.name = name,
                        .kind = "Linear",
                        .inputs = {in},
                        .parameters = {is_normal ? normal(name + ".weight", {shape.out, shape.in}, shape.deviation)
                                                 : uniform(name + ".weight", {shape.out, shape.in}, scale),
                                       is_normal ? zeros(name + ".bias", {shape.out})
                                                 : uniform(name + ".bias", {shape.out}, scale)},
                        .forward = [](const LayerCall& call) -> Tensors {
                          return {at::linear(call.inputs[0], call.parameters[0], call.parameters[1])};
                        }});
}

ValueRef batch_norm2d(Model& model, const std::string& name, ValueRef in, std::int64_t channels) {
  ParameterSpec mean = zeros(name + ".running_mean", {channels});
  ParameterSpec variance = ones(name + ".running_var", {channels});
  mean.trainable = variance.trainable = false;
  mean.decay = variance.decay = 1 - kBatchNormMomentum;
  return append(model,
                {.name = name,
                 .kind = "BatchNorm2d",
                 .inputs = {in},
                 .parameters = {ones(name + ".weight", {channels}), zeros(name + ".bias", {channels}), mean, variance},
                 .forward = [](const LayerCall& call) -> Tensors {
                   return {at::batch_norm(call.inputs[0], call.parameters[0], call.parameters[1], call.buffers[0],
                                          call.buffers[1], call.training, kBatchNormMomentum, /*eps=*/1e-5,
                                          /*cudnn_enabled=*/true)};
                 }});
}

ValueRef layer_norm(Model& model, const std::string& name, ValueRef in, std::int64_t width) {
  return append(model, {.name = name,
                        .kind = "LayerNorm",
                        .inputs = {in},
                        .parameters = {ones(name + ".weight", {width}), zeros(name + ".bias", {width})},
                        .forward = [width](const LayerCall& call) -> Tensors {
                          return {at::layer_norm(call.inputs[0], {width}, call.parameters[0], call.parameters[1])};
                        }});
}

ValueRef relu(Model& model, const std::string& name, ValueRef in) {
  return append(
      model,
      {.name = name, .kind = "ReLU", .inputs = {in}, .parameters = {}, .forward = [](const LayerCall& call) -> Tensors {
         return {at::relu(call.inputs[0])};
       }});
}

ValueRef max_pool2d(Model& model, const std::string& name, ValueRef in, std::int64_t kernel, std::int64_t stride,
                    std::int64_t padding) {
  return append(model, {.name = name,
                        .kind = "MaxPool2d",
                        .inputs = {in},
                        .parameters = {},
                        .forward = [kernel, stride, padding](const LayerCall& call) -> Tensors {
                          return {at::max_pool2d(call.inputs[0], kernel, stride, padding)};
                        }});
}

ValueRef average_pool2d(Model& model, const std::string& name, ValueRef in, std::int64_t side) {
  return append(model, {.name = name,
                        .kind = "AdaptiveAvgPool2d",
                        .inputs = {in},
                        .parameters = {},
                        .forward = [side](const LayerCall& call) -> Tensors {
                          return {at::adaptive_avg_pool2d(call.inputs[0], {side, side})};
                        }});
}

ValueRef flatten(Model& model, const std::string& name, ValueRef in) {
  return append(model, {.name = name,
                        .kind = "Flatten",
                        .inputs = {in},
                        .parameters = {},
                        .forward = [](const LayerCall& call) -> Tensors { return {call.inputs[0].flatten(1)}; }});
}

ValueRef dropout(Model& model, const std::string& name, ValueRef in, std::int64_t percent) {
  return append(model, {.name = name,
                        .kind = "Dropout",
                        .inputs = {in},
                        .parameters = {},
                        .forward = [percent](const LayerCall& call) -> Tensors {
                          return {Dropout(call, percent)(call.inputs[0])};
                        }});
}

ValueRef add(Model& model, const std::string& name, ValueRef a, ValueRef b) {
  return append(
      model, {.name = name,
              .kind = "Add",
              .inputs = {a, b},
              .parameters = {},
              .forward = [](const LayerCall& call) -> Tensors { return {at::add(call.inputs[0], call.inputs[1])}; }});
}

ValueRef concat(Model& model, const std::string& name, ValueRef a, ValueRef b) {
  return append(model, {.name = name,
                        .kind = "Concat",
                        .inputs = {a, b},
                        .parameters = {},
                        .forward = [](const LayerCall& call) -> Tensors {
                          return {at::cat({call.inputs[0], call.inputs[1]}, -1)};
                        }});
}

ValueRef embedding(Model& model, const std::string& name, ValueRef in, ParameterSpec table) {
  return append(model, {.name = name,
                        .kind = "Embedding",
                        .inputs = {in},
                        .parameters = {std::move(table)},
                        .forward = [](const LayerCall& call) -> Tensors {
                          return {at::embedding(call.parameters[0], call.inputs[0])};
                        }});
}

ValueRef lstm(Model& model, const std::string& name, ValueRef in, const LstmShape& shape) {
  LayerSpec layer{.name = name, .kind = "LSTM", .inputs = {in}, .parameters = {}, .forward = {}};
  const std::int64_t gates = 4 * shape.hidden;
  for (const char* direction : {"", "_reverse"}) {
    if (*direction && !shape.bidirectional) break;
    layer.parameters.push_back(uniform(name + ".weight_ih" + direction, {gates, shape.in}, shape.scale));
    layer.parameters.push_back(uniform(name + ".weight_hh" + direction, {gates, shape.hidden}, shape.scale));
    layer.parameters.push_back(uniform(name + ".bias_ih" + direction, {gates}, shape.scale));
    layer.parameters.push_back(uniform(name + ".bias_hh" + direction, {gates}, shape.scale));
  }
  layer.forward = [hidden = shape.hidden, bidirectional = shape.bidirectional](const LayerCall& call) -> Tensors {
    const at::Tensor& x = call.inputs[0];
    const at::Tensor start = at::zeros({bidirectional ? 2 : 1, x.size(0), hidden}, x.options().requires_grad(false));
    const Tensors state{start, start};
    const Tensors parameters(call.parameters.begin(), call.parameters.end());
    gather_recurrent_weights({.weights = parameters, .bidirectional = bidirectional});
    return {std::get<0>(at::lstm(x, state, parameters, /*has_biases=*/true, /*num_layers=*/1, /*dropout=*/0.0,
                                 call.training, bidirectional, /*batch_first=*/true))};
  };
  return append(model, std::move(layer));
}

ValueRef cross_entropy(Model& model, ValueRef logits, ValueRef target) {
  return append(model, {.name = "loss",
                        .kind = "CrossEntropyLoss",
                        .inputs = {logits, target},
                        .parameters = {},
                        .forward = [](const LayerCall& call) -> Tensors {
                          return {at::cross_entropy_loss(call.inputs[0].flatten(0, -2), call.inputs[1].flatten())};
                        }});
}

at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value, std::int64_t heads,
                  bool causal, Dropout& drop) {
  const auto split = [heads](const at::Tensor& x) { return x.unflatten(-1, {heads, -1}).transpose(1, 2); };
  const at::Tensor q = split(query);
  const at::Tensor k = split(key);
  const at::Tensor v = split(value);
  at::Tensor out;
  if (!drop.active()) {
    out = at::scaled_dot_product_attention(q, k, v, {}, 0.0, causal);
  } else {
    // The fused kernel would draw its mask from the global generator, so the weights are computed here.
    at::Tensor scores = at::matmul(q.mul(fan_in_scale(q.size(-1))), k.transpose(-2, -1));
    if (causal) {
      const at::Tensor later = at::ones({q.size(-2), k.size(-2)}, q.options().dtype(at::kBool)).triu(1);
      scores = scores.masked_fill(later, -INFINITY);
    }
    out = at::matmul(drop(at::softmax(scores, -1)), v);
  }
  return out.transpose(1, 2).flatten(2);
}

}  // namespace stagecraft::model
