#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>

#include <stdexcept>

#include "executor/model/blocks.h"
#include "executor/model/builtin_models.h"

namespace stagecraft::model {
namespace {

// Radford et al., "Language Models are Unsupervised Multitask Learners", 2019: Normal(0.02), projections into the
// residual stream scaled by 1 / sqrt(number of them), two per block.
constexpr double kDeviation = 0.02;

struct BlockShape {
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t layers = 0;
  std::int64_t dropout_percent = 0;
  std::int64_t attention_dropout_percent = 0;
};

/// Pre-norm block: x + attention(norm(x)), then x + feed-forward(norm(x)).
ValueRef block(Model& model, const std::string& name, ValueRef in, const BlockShape& shape) {
  const std::int64_t width = shape.width;
  const double residual = kDeviation * fan_in_scale(2 * shape.layers);
  LayerSpec layer{.name = name, .kind = "GPTBlock", .inputs = {in}, .parameters = {}, .forward = {}};
  layer.parameters = {ones(name + ".ln_1.weight", {width}),
                      zeros(name + ".ln_1.bias", {width}),
                      normal(name + ".attn.c_attn.weight", {3 * width, width}, kDeviation),
                      zeros(name + ".attn.c_attn.bias", {3 * width}),
                      normal(name + ".attn.c_proj.weight", {width, width}, residual),
                      zeros(name + ".attn.c_proj.bias", {width}),
                      ones(name + ".ln_2.weight", {width}),
                      zeros(name + ".ln_2.bias", {width}),
                      normal(name + ".mlp.c_fc.weight", {4 * width, width}, kDeviation),
                      zeros(name + ".mlp.c_fc.bias", {4 * width}),
                      normal(name + ".mlp.c_proj.weight", {width, 4 * width}, residual),
                      zeros(name + ".mlp.c_proj.bias", {width})};
  layer.forward = [shape](const LayerCall& call) -> std::vector<at::Tensor> {
    Dropout drop(call, shape.dropout_percent);
    Dropout drop_weights(call, shape.attention_dropout_percent, "attention");
    const auto norm = [&](const at::Tensor& x, std::size_t at) {
      return at::layer_norm(x, {shape.width}, call.parameters[at], call.parameters[at + 1]);
    };
    const auto project = [&](const at::Tensor& x, std::size_t at) {
      return at::linear(x, call.parameters[at], call.parameters[at + 1]);
    };
    const std::vector<at::Tensor> qkv = project(norm(call.inputs[0], 0), 2).chunk(3, -1);
    const at::Tensor mixed = attend(qkv[0], qkv[1], qkv[2], shape.heads, /*causal=*/true, drop_weights);
    const at::Tensor x = call.inputs[0].add(drop(project(mixed, 4)));
    return {x.add(drop(project(at::gelu(project(norm(x, 6), 8), "tanh"), 10)))};
  };
  return append(model, std::move(layer));
}

Model build(const std::map<std::string, std::int64_t>& options) {
  const std::int64_t vocabulary = options.at("vocabulary");
  const std::int64_t sequence = options.at("sequence");
  const BlockShape shape{.width = options.at("width"),
                         .heads = options.at("heads"),
                         .layers = options.at("layers"),
                         .dropout_percent = options.at("dropout_percent"),
                         .attention_dropout_percent = options.at("attention_dropout_percent")};
  if (shape.width % shape.heads != 0)
    throw std::invalid_argument("gpt: width " + std::to_string(shape.width) + " is not a multiple of heads " +
                                std::to_string(shape.heads));
  Model model;
  const ParameterSpec table = normal("wte.weight", {vocabulary, shape.width}, kDeviation);
  ValueRef x = append(model, ModelInput{"tokens", "int64", {sequence}, vocabulary});
  x = append(model, {.name = "embedding",
                     .kind = "Embedding",
                     .inputs = {x},
                     .parameters = {table, normal("wpe.weight", {sequence, shape.width}, kDeviation)},
                     .forward = [percent = shape.dropout_percent](const LayerCall& call) -> std::vector<at::Tensor> {
                       const at::Tensor& tokens = call.inputs[0];
                       const at::Tensor positions = at::arange(tokens.size(1), tokens.options());
                       const at::Tensor place = at::embedding(call.parameters[1], positions);
                       return {Dropout(call, percent)(at::embedding(call.parameters[0], tokens).add(place))};
                     }});
  for (std::int64_t i = 0; i < shape.layers; ++i) x = block(model, "h." + std::to_string(i), x, shape);
  x = layer_norm(model, "ln_f", x, shape.width);
  x = append(model, {.name = "lm_head",
                     .kind = "Linear",
                     .inputs = {x},
                     .parameters = {table},
                     .forward = [](const LayerCall& call) -> std::vector<at::Tensor> {
                       return {at::linear(call.inputs[0], call.parameters[0])};
                     }});
  cross_entropy(model, x, append(model, ModelInput{"target", "int64", {sequence}, vocabulary}));
  return model;
}

}  // namespace

BuiltinModel gpt_model() {
  return {"gpt",
          "GPT-2 small; for medium, large, xl set layers, width, heads to 24,1024,16; 36,1280,20; 48,1600,25",
          {{"layers", 12, "blocks"},
           {"width", 768, "model width"},
           {"heads", 12, "attention heads; divides width"},
           {"vocabulary", 50257, "entries of the token embedding, tied to the head"},
           {"sequence", 1024, "positions of one sample"},
           {"dropout_percent", 10, "dropout, in percent", 0, 99},
           {"attention_dropout_percent", 0,
            "dropout of attention weights, in percent; above 0, without the fused kernel", 0, 99}},
          build};
}

}  // namespace stagecraft::model
