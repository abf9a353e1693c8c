#include <cmath>
#include <stdexcept>

#include "executor/intake/builtin/blocks.h"
#include "executor/intake/builtin/builtin_models.h"

namespace stagecraft::intake {
namespace {

struct DecoderShape {
  std::int64_t width = 0;
  std::int64_t heads = 0;
  std::int64_t feedforward = 0;
  std::int64_t dropout_percent = 0;
  std::int64_t attention_dropout_percent = 0;
  bool causal = false;
};

/// The three projections in one, and the projection after the heads.
struct AttentionParameters {
  ValueIndex in_weight;
  ValueIndex in_bias;
  ValueIndex out_weight;
  ValueIndex out_bias;
};

AttentionParameters attention_parameters(GraphBuilder& model, const std::string& name, std::int64_t width) {
  // Xavier for a [3 width, width] matrix: sqrt(6 / (width + 3 width)).
  const double scale = std::sqrt(1.5) * model::fan_in_scale(width);
  return {.in_weight = model.parameter(model::uniform(name + ".in_proj_weight", {3 * width, width}, scale)),
          .in_bias = model.parameter(model::zeros(name + ".in_proj_bias", {3 * width})),
          .out_weight =
              model.parameter(model::uniform(name + ".out_proj.weight", {width, width}, model::fan_in_scale(width))),
          .out_bias = model.parameter(model::zeros(name + ".out_proj.bias", {width}))};
}

/// Attention of `query` over `key` and `value`, projected.
ValueIndex projected(GraphBuilder& model, const std::string& name, const std::vector<ValueIndex>& qkv,
                     const AttentionParameters& parameters, const DecoderShape& shape) {
  const ValueIndex mixed =
      attend(model, qkv[0], qkv[1], qkv[2],
             {.heads = shape.heads, .causal = shape.causal, .dropout_percent = shape.attention_dropout_percent});
  const auto module = model.module(name + ".out_proj", "Linear");
  return model.call("aten::linear", {mixed, parameters.out_weight, parameters.out_bias});
}

/// Post-norm decoder layer whose memory is its own input: self-attention, attention over the input, feed-forward.
ValueIndex decoder_layer(GraphBuilder& model, const std::string& name, ValueIndex memory, const DecoderShape& shape) {
  const auto module = model.module(name, "TransformerDecoderLayer");
  const std::int64_t width = shape.width;
  const std::string self = name + ".self_attn";
  const std::string cross = name + ".multihead_attn";
  const AttentionParameters of_self = attention_parameters(model, self, width);
  const AttentionParameters of_cross = attention_parameters(model, cross, width);
  const LinearShape wider{.in = width, .out = shape.feedforward};
  const LinearShape narrower{.in = shape.feedforward, .out = width};
  // PyTorch has the parameters of all parts in this order.
  declare_linear(model, name + ".linear1", wider);
  declare_linear(model, name + ".linear2", narrower);
  const auto add_norm = [&](ValueIndex x, ValueIndex y, const char* norm) {
    const ValueIndex sum = model.call("aten::add.Tensor", {x, model.dropout(y, shape.dropout_percent)});
    return layer_norm(model, name + norm, sum, width);
  };
  ValueIndex y;
  {
    const auto attention = model.module(self, "MultiheadAttention");
    const ValueIndex all = model.call("aten::linear", {memory, of_self.in_weight, of_self.in_bias});
    y = projected(model, self, model.list("aten::chunk", {all, 3, -1}, 3), of_self, shape);
  }
  ValueIndex x = add_norm(memory, y, ".norm1");
  {
    const auto attention = model.module(cross, "MultiheadAttention");
    const auto weights = model.list("aten::split.sizes", {of_cross.in_weight, SizeList{width, 2 * width}}, 2);
    const auto biases = model.list("aten::split.sizes", {of_cross.in_bias, SizeList{width, 2 * width}}, 2);
    const ValueIndex query = model.call("aten::linear", {x, weights[0], biases[0]});
    const ValueIndex both = model.call("aten::linear", {memory, weights[1], biases[1]});
    const auto pair = model.list("aten::chunk", {both, 2, -1}, 2);
    y = projected(model, cross, {query, pair[0], pair[1]}, of_cross, shape);
  }
  x = add_norm(x, y, ".norm2");
  y = model.call("aten::relu", {linear(model, name + ".linear1", x, wider)});
  y = linear(model, name + ".linear2", model.dropout(y, shape.dropout_percent), narrower);
  return add_norm(x, y, ".norm3");
}

ValueIndex build(GraphBuilder& model, const std::map<std::string, std::int64_t>& options) {
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
  ValueIndex x = model.input({"tokens", "int64", {options.at("sequence")}, vocabulary});
  x = embedding(model, "tok_embeddings", x, model::normal("tok_embeddings.weight", {vocabulary, width}, 1));
  for (std::int64_t i = 0; i < options.at("layers"); ++i)
    x = decoder_layer(model, "layers." + std::to_string(i), x, shape);
  x = layer_norm(model, "norm", x, width);
  x = linear(model, "output", x, {.in = width, .out = vocabulary});
  return cross_entropy(model, x, model.input({"target", "int64", {options.at("sequence")}, vocabulary}));
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

}  // namespace stagecraft::intake
