#include <stdexcept>

#include "executor/intake/builtin/blocks.h"
#include "executor/intake/builtin/builtin_models.h"

namespace stagecraft::intake {
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

/// A projection with Normal weights of `deviation` and zero bias.
ValueIndex project(GraphBuilder& model, const std::string& name, ValueIndex in, std::int64_t width, std::int64_t out,
                   double deviation) {
  return linear(model, name, in, {.in = width, .out = out, .deviation = deviation});
}

/// Pre-norm block: x + attention(norm(x)), then x + feed-forward(norm(x)).
ValueIndex block(GraphBuilder& model, const std::string& name, ValueIndex in, const BlockShape& shape) {
  const auto module = model.module(name, "GPTBlock");
  const std::int64_t width = shape.width;
  const double residual = kDeviation * model::fan_in_scale(2 * shape.layers);
  ValueIndex x = layer_norm(model, name + ".ln_1", in, width);
  {
    const auto attention = model.module(name + ".attn", "GPTAttention");
    x = project(model, name + ".attn.c_attn", x, width, 3 * width, kDeviation);
    const std::vector<ValueIndex> qkv = model.list("aten::chunk", {x, 3, -1}, 3);
    x = attend(model, qkv[0], qkv[1], qkv[2],
               {.heads = shape.heads, .causal = true, .dropout_percent = shape.attention_dropout_percent});
    x = project(model, name + ".attn.c_proj", x, width, width, residual);
  }
  const ValueIndex mixed = model.call("aten::add.Tensor", {in, model.dropout(x, shape.dropout_percent)});
  x = layer_norm(model, name + ".ln_2", mixed, width);
  {
    const auto feedforward = model.module(name + ".mlp", "GPTMLP");
    x = project(model, name + ".mlp.c_fc", x, width, 4 * width, kDeviation);
    x = model.call("aten::gelu", {x, "tanh"});
    x = project(model, name + ".mlp.c_proj", x, 4 * width, width, residual);
  }
  return model.call("aten::add.Tensor", {mixed, model.dropout(x, shape.dropout_percent)});
}

/// Tokens and their positions through two tables.
ValueIndex embed(GraphBuilder& model, ValueIndex tokens, const model::ParameterSpec& table, std::int64_t sequence,
                 const BlockShape& shape) {
  const auto module = model.module("embedding", "Embedding");
  const ValueIndex words = model.parameter(table);
  const ValueIndex places = model.parameter(model::normal("wpe.weight", {sequence, shape.width}, kDeviation));
  const ValueIndex positions =
      model.call("aten::arange", {sequence, at::kLong, std::monostate(), c10::Device(c10::kCPU)});
  const ValueIndex place = model.call("aten::embedding", {places, positions});
  const ValueIndex word = model.call("aten::embedding", {words, tokens});
  return model.dropout(model.call("aten::add.Tensor", {word, place}), shape.dropout_percent);
}

ValueIndex build(GraphBuilder& model, const std::map<std::string, std::int64_t>& options) {
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
  const model::ParameterSpec table = model::normal("wte.weight", {vocabulary, shape.width}, kDeviation);
  ValueIndex x = model.input({"tokens", "int64", {sequence}, vocabulary});
  x = embed(model, x, table, sequence, shape);
  for (std::int64_t i = 0; i < shape.layers; ++i) x = block(model, "h." + std::to_string(i), x, shape);
  x = layer_norm(model, "ln_f", x, shape.width);
  {
    const auto head = model.module("lm_head", "Linear");
    x = model.call("aten::linear", {x, model.parameter(table)});
  }
  return cross_entropy(model, x, model.input({"target", "int64", {sequence}, vocabulary}));
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

}  // namespace stagecraft::intake
