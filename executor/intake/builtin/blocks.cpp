#include "executor/intake/builtin/blocks.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <utility>

namespace stagecraft::intake {
namespace {

using model::fan_in_scale;
using model::ones;
using model::uniform;
using model::zeros;

/// Momentum of batch norm's running statistics.
constexpr double kBatchNormMomentum = 0.1;

/// Adds module `name`, which is one operator.
ValueIndex one_call(GraphBuilder& model, const std::string& name, const std::string& kind, const std::string& op,
                    std::vector<ArgumentValue> arguments) {
  const auto module = model.module(name, kind);
  return model.call(op, std::move(arguments));
}

/// Weight and bias.
std::pair<ValueIndex, ValueIndex> linear_parameters(GraphBuilder& model, const std::string& name,
                                                    const LinearShape& shape) {
  const bool is_normal = shape.deviation > 0;
  const double scale = fan_in_scale(shape.in);
  const ValueIndex weight =
      model.parameter(is_normal ? model::normal(name + ".weight", {shape.out, shape.in}, shape.deviation)
                                : uniform(name + ".weight", {shape.out, shape.in}, scale));
  return {weight, model.parameter(is_normal ? zeros(name + ".bias", {shape.out})
                                            : uniform(name + ".bias", {shape.out}, scale))};
}

}  // namespace

ValueIndex conv2d(GraphBuilder& model, const std::string& name, ValueIndex in, const ConvShape& shape) {
  const std::int64_t area = shape.kernel * shape.kernel;
  const std::vector<std::int64_t> filters{shape.out, shape.in, shape.kernel, shape.kernel};
  const double scale = fan_in_scale(shape.in * area);
  const ValueIndex weight = model.parameter(
      shape.kaiming ? model::normal(name + ".weight", filters, std::numbers::sqrt2 * fan_in_scale(shape.out * area))
                    : uniform(name + ".weight", filters, scale));
  ArgumentValue bias;
  if (shape.bias)
    bias = model.parameter(shape.kaiming ? zeros(name + ".bias", {shape.out})
                                         : uniform(name + ".bias", {shape.out}, scale));
  return one_call(model, name, "Conv2d", "aten::conv2d",
                  {in, weight, bias, SizeList{shape.stride, shape.stride}, SizeList{shape.padding, shape.padding}});
}

ValueIndex linear(GraphBuilder& model, const std::string& name, ValueIndex in, const LinearShape& shape) {
  const auto [weight, bias] = linear_parameters(model, name, shape);
  return one_call(model, name, "Linear", "aten::linear", {in, weight, bias});
}

void declare_linear(GraphBuilder& model, const std::string& name, const LinearShape& shape) {
  (void)linear_parameters(model, name, shape);
}

ValueIndex batch_norm2d(GraphBuilder& model, const std::string& name, ValueIndex in, std::int64_t channels) {
  const ValueIndex weight = model.parameter(ones(name + ".weight", {channels}));
  const ValueIndex bias = model.parameter(zeros(name + ".bias", {channels}));
  model::ParameterSpec mean = zeros(name + ".running_mean", {channels});
  model::ParameterSpec variance = ones(name + ".running_var", {channels});
  mean.trainable = variance.trainable = false;
  const ValueIndex moving_mean = model.parameter(mean);
  const ValueIndex moving_variance = model.parameter(variance);
  return one_call(model, name, "BatchNorm2d", "aten::batch_norm",
                  {in, weight, bias, moving_mean, moving_variance, model.trains(), kBatchNormMomentum, /*eps=*/1e-5,
                   /*cudnn_enabled=*/true});
}

ValueIndex layer_norm(GraphBuilder& model, const std::string& name, ValueIndex in, std::int64_t width) {
  const ValueIndex weight = model.parameter(ones(name + ".weight", {width}));
  const ValueIndex bias = model.parameter(zeros(name + ".bias", {width}));
  return one_call(model, name, "LayerNorm", "aten::layer_norm", {in, SizeList{width}, weight, bias});
}

ValueIndex relu(GraphBuilder& model, const std::string& name, ValueIndex in) {
  return one_call(model, name, "ReLU", "aten::relu", {in});
}

ValueIndex max_pool2d(GraphBuilder& model, const std::string& name, ValueIndex in, std::int64_t kernel,
                      std::int64_t stride, std::int64_t padding) {
  return one_call(model, name, "MaxPool2d", "aten::max_pool2d",
                  {in, SizeList{kernel, kernel}, SizeList{stride, stride}, SizeList{padding, padding}});
}

ValueIndex average_pool2d(GraphBuilder& model, const std::string& name, ValueIndex in, std::int64_t side) {
  return one_call(model, name, "AdaptiveAvgPool2d", "aten::adaptive_avg_pool2d", {in, SizeList{side, side}});
}

ValueIndex flatten(GraphBuilder& model, const std::string& name, ValueIndex in) {
  return one_call(model, name, "Flatten", "aten::flatten.using_ints", {in, 1});
}

ValueIndex dropout(GraphBuilder& model, const std::string& name, ValueIndex in, std::int64_t percent) {
  const auto module = model.module(name, "Dropout");
  return model.dropout(in, percent);
}

ValueIndex add(GraphBuilder& model, const std::string& name, ValueIndex a, ValueIndex b) {
  return one_call(model, name, "Add", "aten::add.Tensor", {a, b});
}

ValueIndex concat(GraphBuilder& model, const std::string& name, ValueIndex a, ValueIndex b) {
  return one_call(model, name, "Concat", "aten::cat", {ValueList{a, b}, -1});
}

ValueIndex embedding(GraphBuilder& model, const std::string& name, ValueIndex in, const model::ParameterSpec& table) {
  const ValueIndex weight = model.parameter(table);
  return one_call(model, name, "Embedding", "aten::embedding", {weight, in});
}

ValueIndex lstm(GraphBuilder& model, const std::string& name, ValueIndex in, const LstmShape& shape) {
  const auto module = model.module(name, "LSTM");
  const std::int64_t gates = 4 * shape.hidden;
  ValueList parameters;
  for (const char* direction : {"", "_reverse"}) {
    if (*direction && !shape.bidirectional) break;
    const auto add_parameter = [&](const char* what, std::vector<std::int64_t> sizes) {
      parameters.emplace_back(model.parameter(uniform(name + what + direction, std::move(sizes), shape.scale)));
    };
    add_parameter(".weight_ih", {gates, shape.in});
    add_parameter(".weight_hh", {gates, shape.hidden});
    add_parameter(".bias_ih", {gates});
    add_parameter(".bias_hh", {gates});
  }
  const ValueIndex samples = model.size(in, 0);
  const ValueIndex start =
      model.call("aten::new_zeros", {in, SizeList{std::int64_t{shape.bidirectional ? 2 : 1}, samples, shape.hidden}});
  const ValueIndex out = model.call("aten::lstm.input", {in, ValueList{start, start}, parameters, /*has_biases=*/true,
                                                         /*num_layers=*/1, /*dropout=*/0.0, model.trains(),
                                                         shape.bidirectional, /*batch_first=*/true});
  model.join("its initial state has no gradient");
  return out;
}

ValueIndex cross_entropy(GraphBuilder& model, ValueIndex logits, ValueIndex target) {
  const auto module = model.module("loss", "CrossEntropyLoss");
  const ValueIndex scores = model.call("aten::flatten.using_ints", {logits, 0, -2});
  const ValueIndex classes = model.call("aten::flatten.using_ints", {target});
  return model.call("aten::cross_entropy_loss", {scores, classes});
}

ValueIndex attend(GraphBuilder& model, ValueIndex query, ValueIndex key, ValueIndex value,
                  const AttentionShape& shape) {
  const auto split = [&](ValueIndex x) {
    return model.call("aten::transpose.int",
                      {model.call("aten::unflatten.int", {x, -1, SizeList{shape.heads, -1}}), 1, 2});
  };
  const ValueIndex q = split(query);
  const ValueIndex k = split(key);
  const ValueIndex v = split(value);
  // What reads the result finds it under one name in both modes.
  const char* const result = "attention";
  ValueIndex out;
  if (!model.trains() || shape.dropout_percent == 0) {
    out = model.call("aten::scaled_dot_product_attention", {q, k, v, std::monostate(), 0.0, shape.causal}, result);
  } else {
    // The fused kernel would draw its mask from the global generator, so the weights are computed here.
    std::optional<ValueIndex> later;
    if (shape.causal) {
      const ValueIndex all = model.call("aten::ones", {SizeList{model.extent(q, 2), model.extent(k, 2)}, at::kBool,
                                                       std::monostate(), c10::Device(c10::kCPU)});
      later = model.call("aten::triu", {all, 1});
    }
    const ValueIndex scaled = model.call("aten::mul.Scalar", {q, fan_in_scale(model.extent(q, 3))});
    const auto call = [&](const char* op, std::vector<ArgumentValue> arguments, const char* name = "") {
      const ValueIndex made = model.call(op, std::move(arguments), name);
      model.join("in evaluation, one operator computes them");
      return made;
    };
    const ValueIndex turned = call("aten::transpose.int", {k, -2, -1}, "keys");
    ValueIndex scores = call("aten::matmul", {scaled, turned});
    if (later) scores = call("aten::masked_fill.Scalar", {scores, *later, -std::numeric_limits<double>::infinity()});
    const ValueIndex weights = call("aten::softmax.int", {scores, -1});
    const ValueIndex kept = model.dropout(weights, shape.dropout_percent, "attention");
    model.join("in evaluation, one operator computes them");
    out = call("aten::matmul", {kept, v}, result);
  }
  return model.call("aten::flatten.using_ints", {model.call("aten::transpose.int", {out, 1, 2}), 2});
}

}  // namespace stagecraft::intake
