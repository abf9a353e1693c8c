#include <ATen/ops/bmm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>

#include "executor/model/blocks.h"
#include "executor/model/builtin_models.h"

namespace stagecraft::model {
namespace {

// Wu et al., "Google's Neural Machine Translation System", arXiv 1609.08144, in the form of MLPerf's GNMT v2: the
// first encoder layer bidirectional, residuals from the third layer, the attention's context into every decoder layer
// after the first, all weights uniform in +-0.1. The two embeddings are separate, as in PipeDream's profiles.
constexpr double kScale = 0.1;

/// Bahdanau attention, normalised (Salimans & Kingma, arXiv 1602.07868):
/// score(q, k) = g v/|v| . tanh(W q + U k + b); the output is the softmax-weighted mean of `memory`.
ValueRef attention(Model& model, const std::string& name, ValueRef query, ValueRef memory, std::int64_t hidden) {
  return append(model,
                {.name = name,
                 .kind = "BahdanauAttention",
                 .inputs = {query, memory},
                 .parameters = {uniform(name + ".linear_q.weight", {hidden, hidden}, kScale),
                                uniform(name + ".linear_k.weight", {hidden, hidden}, kScale),
                                uniform(name + ".linear_att", {hidden}, kScale), ones(name + ".normalize_scalar", {1}),
                                zeros(name + ".normalize_bias", {hidden})},
                 .forward = [](const LayerCall& call) -> std::vector<at::Tensor> {
                   const std::span<const at::Tensor> p = call.parameters;
                   const at::Tensor& keys = call.inputs[1];
                   const at::Tensor q = at::linear(call.inputs[0], p[0]).unsqueeze(2);
                   const at::Tensor k = at::linear(keys, p[1]).add(p[4]).unsqueeze(1);
                   const at::Tensor direction = p[2].div(p[2].norm()).mul(p[3]);
                   const at::Tensor scores = at::matmul(at::tanh(q.add(k)), direction);
                   return {at::bmm(at::softmax(scores, -1), keys)};
                 }});
}

Model build(const std::map<std::string, std::int64_t>& options) {
  Model model;
  const std::int64_t vocabulary = options.at("vocabulary");
  const std::int64_t hidden = options.at("hidden");
  const std::int64_t layers = options.at("layers");
  const std::int64_t percent = options.at("dropout_percent");
  const auto table = [&](const char* name) { return uniform(name, {vocabulary, hidden}, kScale); };
  const auto place = [](const std::string& side, const std::string& what, std::int64_t i) {
    return side + "." + what + std::to_string(i);
  };

  ValueRef x = append(model, ModelInput{"source", "int64", {options.at("source_sequence")}, vocabulary});
  x = embedding(model, "encoder.embedding", x, table("encoder.embedding.weight"));
  for (std::int64_t i = 1; i <= layers; ++i) {
    const ValueRef before = x;
    x = dropout(model, place("encoder", "dropout", i), x, percent);
    x = lstm(model, place("encoder", "lstm", i), x,
             {.in = i == 2 ? 2 * hidden : hidden, .hidden = hidden, .bidirectional = i == 1, .scale = kScale});
    if (i >= 3) x = add(model, place("encoder", "add", i), x, before);
  }
  const ValueRef memory = x;

  x = append(model, ModelInput{"tokens", "int64", {options.at("target_sequence")}, vocabulary});
  x = embedding(model, "decoder.embedding", x, table("decoder.embedding.weight"));
  x = dropout(model, "decoder.dropout1", x, percent);
  x = lstm(model, "decoder.lstm1", x, {.in = hidden, .hidden = hidden, .scale = kScale});
  const ValueRef context = attention(model, "decoder.attention", x, memory, hidden);
  for (std::int64_t i = 2; i <= layers; ++i) {
    const ValueRef before = x;
    x = dropout(model, place("decoder", "dropout", i), x, percent);
    x = concat(model, place("decoder", "concat", i), x, context);
    x = lstm(model, place("decoder", "lstm", i), x, {.in = 2 * hidden, .hidden = hidden, .scale = kScale});
    if (i >= 3) x = add(model, place("decoder", "add", i), x, before);
  }
  x = linear(model, "classifier", x, {.in = hidden, .out = vocabulary});
  cross_entropy(model, x, append(model, ModelInput{"target", "int64", {options.at("target_sequence")}, vocabulary}));
  return model;
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

}  // namespace stagecraft::model
