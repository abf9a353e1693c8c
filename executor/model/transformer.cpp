#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/relu.h>

#include <cmath>
#include <stdexcept>

#include "executor/model/blocks.h"
#include "executor/model/builtin_models.h"

namespace stagecraft::model {
namespace {

struct DecoderShape {
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t feedforward = 0;
  std::int64_t dropout_percent = 0;
  std::int64_t attention_dropout_percent = 0;
  bool causal = false;
};

/// Four parameters: the three projections in one, and the projection after the heads.
void append_attention(LayerSpec& layer, const std::string& name, std::int64_t width) {
  // Xavier for a [3 width, width] matrix: sqrt(6 / (width + 3 width)).
  layer.parameters.push_back(
      uniform(name + ".in_proj_weight", {3 * width, width}, std::sqrt(1.5) * fan_in_scale(width)));
  layer.parameters.push_back(zeros(name + ".in_proj_bias", {3 * width}));
  layer.parameters.push_back(uniform(name + ".out_proj.weight", {width, width}, fan_in_scale(width)));
  layer.parameters.push_back(zeros(name + ".out_proj.bias", {width}));
}

void append_linear(LayerSpec& layer, const std::string& name, std::int64_t in, std::int64_t out) {
  layer.parameters.push_back(uniform(name + ".weight", {out, in}, fan_in_scale(in)));
  layer.parameters.push_back(uniform(name + ".bias", {out}, fan_in_scale(in)));
}

/// Post-norm decoder layer whose memory is its own input: self-attention, attention over the input, feed-forward.
ValueRef decoder_layer(Model& model, const std::string& name, ValueRef in, const DecoderShape& shape) {
  LayerSpec layer{.name = name, .kind = "TransformerDecoderLayer", .inputs = {in}, .parameters = {}, .forward = {}};
  append_attention(layer, name + ".self_attn", shape.width);
  append_attention(layer, name + ".multihead_attn", shape.width);
  append_linear(layer, name + ".linear1", shape.width, shape.feedforward);
  append_linear(layer, name + ".linear2", shape.feedforward, shape.width);
  for (const char* norm : {".norm1", ".norm2", ".norm3"}) {
    layer.parameters.push_back(ones(name + norm + ".weight", {shape.width}));
    layer.parameters.push_back(zeros(name + norm + ".bias", {shape.width}));
  }
  layer.forward = [shape](const LayerCall& call) -> std::vector<at::Tensor> {
    const at::Tensor& memory = call.inputs[0];
    const std::int64_t width = shape.width;
    Dropout drop(call, shape.dropout_percent);
    Dropout drop_weights(call, shape.attention_dropout_percent, "attention");
    const auto norm = [&](const at::Tensor& x, std::size_t at) {
      return at::layer_norm(x, {width}, call.parameters[at], call.parameters[at + 1]);
    };
    const auto behind = [&](const at::Tensor& x, std::size_t at) {
      return drop(at::linear(x, call.parameters[at + 2], call.parameters[at + 3]));
    };

    const std::vector<at::Tensor> projections = at::linear(memory, call.parameters[0], call.parameters[1]).chunk(3, -1);
    at::Tensor x =
        norm(memory.add(behind(
                 attend(projections[0], projections[1], projections[2], shape.heads, shape.causal, drop_weights), 0)),
             12);

    const std::vector<at::Tensor> weights = call.parameters[4].split({width, 2 * width});
    const std::vector<at::Tensor> biases = call.parameters[5].split({width, 2 * width});
    const at::Tensor query = at::linear(x, weights[0], biases[0]);
    const std::vector<at::Tensor> pair = at::linear(memory, weights[1], biases[1]).chunk(2, -1);
    x = norm(x.add(behind(attend(query, pair[0], pair[1], shape.heads, shape.causal, drop_weights), 4)), 14);

    const at::Tensor inner = drop(at::relu(at::linear(x, call.parameters[8], call.parameters[9])));
    return {norm(x.add(drop(at::linear(inner, call.parameters[10], call.parameters[11]))), 16)};
  };
  return append(model, std::move(layer));
}

Model build(const std::map<std::string, std::int64_t>& options) {
  const std::int64_t vocabulary = options.at("vocabulary");
  const std::int64_t width = options.at("width");
  const DecoderShape shape{.width = width,
                           .heads = options.at("heads"),
                           .feedforward = options.at("feedforward"),
                           .dropout_percent = options.at("dropout_percent"),
                           .attention_dropout_percent = options.at("attention_dropout_percent"),
                           .causal = options.at("causal") == 1};
  if (width % shape.heads != 0)
    throw std::invalid_argument("transformer: width " + std::to_string(width) + " is not a multiple of heads " +
                                std::to_string(shape.heads));
  Model model;
  ValueRef x = append(model, ModelInput{"tokens", "int64", {options.at("sequence")}, vocabulary});
  x = embedding(model, "tok_embeddings", x, normal("tok_embeddings.weight", {vocabulary, width}, 1));
  for (std::int64_t i = 0; i < options.at("layers"); ++i)
    x = decoder_layer(model, "layers." + std::to_string(i), x, shape);
  x = layer_norm(model, "norm", x, width);
  x = linear(model, "output", x, {.in = width, .out = vocabulary});
  cross_entropy(model, x, append(model, ModelInput{"target", "int64", {options.at("sequence")}, vocabulary}));
  return model;
}

}  // namespace

BuiltinModel transformer_model() {
  return {"transformer",
          "decoder layers with self- and cross-attention on the same input, as in PyTorch's pipelining example",
          {{"vocabulary", 10000, "entries of the token embedding"},
           {"width", 512, "model width"},
           {"layers", 8, "decoder layers"},
           {"heads", 8, "attention heads; divides width"},
           {"feedforward", 2048, "width of the inner linear layer"},
           {"sequence", 500, "positions of one sample"},
           {"dropout_percent", 10, "dropout, in percent", 0, 99},
           {"attention_dropout_percent", 0,
            "dropout of attention weights, in percent; above 0, without the fused kernel", 0, 99},
           {"causal", 0, "1: causal mask; PyTorch's example has none", 0, 1}},
          build};
}

}  // namespace stagecraft::model
