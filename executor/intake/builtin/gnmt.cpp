#include "executor/intake/builtin/blocks.h"
#include "executor/intake/builtin/builtin_models.h"

namespace stagecraft::intake {
namespace {

// Wu et al., "Google's Neural Machine Translation System", arXiv 1609.08144, in the form of MLPerf's GNMT v2: the
// first encoder layer bidirectional, residuals from the third layer, the attention's context into every decoder layer
// after the first, all weights uniform in +-0.1. The two embeddings are separate, as in PipeDream's profiles.
constexpr double kScale = 0.1;

using model::uniform;

/// Bahdanau attention, normalised (Salimans & Kingma, arXiv 1602.07868):
/// score(q, k) = g v/|v| . tanh(W q + U k + b); the output is the softmax-weighted mean of `memory`.
ValueIndex attention(GraphBuilder& model, const std::string& name, ValueIndex query, ValueIndex memory,
                     std::int64_t hidden) {
  const auto module = model.module(name, "BahdanauAttention");
  const ValueIndex of_query = model.parameter(uniform(name + ".linear_q.weight", {hidden, hidden}, kScale));
  const ValueIndex of_keys = model.parameter(uniform(name + ".linear_k.weight", {hidden, hidden}, kScale));
  const ValueIndex weight = model.parameter(uniform(name + ".linear_att", {hidden}, kScale));
  const ValueIndex length = model.parameter(model::ones(name + ".normalize_scalar", {1}));
  const ValueIndex bias = model.parameter(model::zeros(name + ".normalize_bias", {hidden}));
  const ValueIndex q = model.call("aten::unsqueeze", {model.call("aten::linear", {query, of_query}), 2});
  const ValueIndex keys = model.call("aten::add.Tensor", {model.call("aten::linear", {memory, of_keys}), bias});
  const ValueIndex k = model.call("aten::unsqueeze", {keys, 1});
  const ValueIndex unit = model.call("aten::div.Tensor", {weight, model.call("aten::norm.Scalar", {weight})});
  const ValueIndex direction = model.call("aten::mul.Tensor", {unit, length});
  const ValueIndex mixed = model.call("aten::tanh", {model.call("aten::add.Tensor", {q, k})});
  const ValueIndex scores = model.call("aten::matmul", {mixed, direction});
  return model.call("aten::bmm", {model.call("aten::softmax.int", {scores, -1}), memory});
}

ValueIndex build(GraphBuilder& model, const std::map<std::string, std::int64_t>& options) {
  const std::int64_t vocabulary = options.at("vocabulary");
  const std::int64_t hidden = options.at("hidden");
  const std::int64_t layers = options.at("layers");
  const std::int64_t percent = options.at("dropout_percent");
  const auto table = [&](const char* name) { return uniform(name, {vocabulary, hidden}, kScale); };
  const auto place = [](const std::string& side, const std::string& what, std::int64_t i) {
    return side + "." + what + std::to_string(i);
  };

  ValueIndex x = model.input({"source", "int64", {options.at("source_sequence")}, vocabulary});
  x = embedding(model, "encoder.embedding", x, table("encoder.embedding.weight"));
  for (std::int64_t i = 1; i <= layers; ++i) {
    const ValueIndex before = x;
    x = dropout(model, place("encoder", "dropout", i), x, percent);
    x = lstm(model, place("encoder", "lstm", i), x,
             {.in = i == 2 ? 2 * hidden : hidden, .hidden = hidden, .bidirectional = i == 1, .scale = kScale});
    if (i >= 3) x = add(model, place("encoder", "add", i), x, before);
  }
  const ValueIndex memory = x;

  x = model.input({"tokens", "int64", {options.at("target_sequence")}, vocabulary});
  x = embedding(model, "decoder.embedding", x, table("decoder.embedding.weight"));
  x = dropout(model, "decoder.dropout1", x, percent);
  x = lstm(model, "decoder.lstm1", x, {.in = hidden, .hidden = hidden, .scale = kScale});
  const ValueIndex context = attention(model, "decoder.attention", x, memory, hidden);
  for (std::int64_t i = 2; i <= layers; ++i) {
    const ValueIndex before = x;
    x = dropout(model, place("decoder", "dropout", i), x, percent);
    x = concat(model, place("decoder", "concat", i), x, context);
    x = lstm(model, place("decoder", "lstm", i), x, {.in = 2 * hidden, .hidden = hidden, .scale = kScale});
    if (i >= 3) x = add(model, place("decoder", "add", i), x, before);
  }
  x = linear(model, "classifier", x, {.in = hidden, .out = vocabulary});
  return cross_entropy(model, x, model.input({"target", "int64", {options.at("target_sequence")}, vocabulary}));
}

}  // namespace

BuiltinModel gnmt_model() {
  return {"gnmt",
          "translation with LSTM layers and attention (GNMT v2)",
          {{"layers", 8, "LSTM layers of encoder and of decoder", 2},
           {"hidden", 1024, "width of every layer"},
           {"vocabulary", 32320, "entries of each embedding"},
           {"source_sequence", 50, "positions of a source sentence"},
           {"target_sequence", 50, "positions of a target sentence"},
           {"dropout_percent", 20, "dropout before the LSTM layers, in percent", 0, 99}},
          build};
}

}  // namespace stagecraft::intake
