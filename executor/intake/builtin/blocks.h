#pragma once

#include <cstdint>
#include <string>

#include "executor/intake/builtin/graph_builder.h"
#include "executor/model/model.h"

namespace stagecraft::intake {

struct ConvShape {
  std::int64_t in = 0;  ///< channels
  std::int64_t out = 0;
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  bool bias = true;
  bool kaiming = false;  ///< Normal with variance 2 / (out * kernel^2) and zero bias, else Uniform in 1 / sqrt(fan_in)
};

struct LinearShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
  double deviation = 0;  ///< of a Normal initialisation with zero bias; 0: Uniform in 1 / sqrt(in)
};

/// Each adds the module `name`, which reads `in`, and returns its output. Images are [samples, channels, height,
/// width]; sequences are [samples, positions, width]. Parameters are called `name`.weight, `name`.bias, ...
ValueIndex conv2d(GraphBuilder& model, const std::string& name, ValueIndex in, const ConvShape& shape);
ValueIndex linear(GraphBuilder& model, const std::string& name, ValueIndex in, const LinearShape& shape);
/// Adds the parameters of linear(`name`) before it, for another order of parameters in the layer.
void declare_linear(GraphBuilder& model, const std::string& name, const LinearShape& shape);
ValueIndex batch_norm2d(GraphBuilder& model, const std::string& name, ValueIndex in, std::int64_t channels);
ValueIndex layer_norm(GraphBuilder& model, const std::string& name, ValueIndex in, std::int64_t width);
ValueIndex relu(GraphBuilder& model, const std::string& name, ValueIndex in);
ValueIndex max_pool2d(GraphBuilder& model, const std::string& name, ValueIndex in, std::int64_t kernel,
                      std::int64_t stride, std::int64_t padding = 0);
/// The mean over windows chosen so that the output is side x side.
ValueIndex average_pool2d(GraphBuilder& model, const std::string& name, ValueIndex in, std::int64_t side);
ValueIndex flatten(GraphBuilder& model, const std::string& name, ValueIndex in);
ValueIndex dropout(GraphBuilder& model, const std::string& name, ValueIndex in, std::int64_t percent);
ValueIndex add(GraphBuilder& model, const std::string& name, ValueIndex a, ValueIndex b);
/// Joins along the last axis.
ValueIndex concat(GraphBuilder& model, const std::string& name, ValueIndex a, ValueIndex b);
/// [samples, positions] int64 -> [samples, positions, width] through `table`, a parameter [entries, width].
ValueIndex embedding(GraphBuilder& model, const std::string& name, ValueIndex in, const model::ParameterSpec& table);
/// All hidden states of one LSTM layer with zero initial state; `bidirectional` doubles the width.
struct LstmShape {
  std::int64_t in = 0;
  std::int64_t hidden = 0;
  bool bidirectional = false;
  double scale = 0;  ///< of the Uniform initialisation
};
ValueIndex lstm(GraphBuilder& model, const std::string& name, ValueIndex in, const LstmShape& shape);
/// Adds the module "loss": the mean cross entropy of `logits` [..., classes] against `target` [...].
ValueIndex cross_entropy(GraphBuilder& model, ValueIndex logits, ValueIndex target);

struct AttentionShape {
  std::int64_t heads = 1;
  bool causal = false;               ///< hides later positions
  std::int64_t dropout_percent = 0;  ///< of the weights, with the masks of stream "attention"
};
/// Multi-head attention of `query` [samples, positions, width] over `key` and `value`: softmax(Q K^T / sqrt(width of
/// a head)) V, heads joined again.
ValueIndex attend(GraphBuilder& model, ValueIndex query, ValueIndex key, ValueIndex value, const AttentionShape& shape);

}  // namespace stagecraft::intake
