#pragma once

#include <ATen/core/Generator.h>

#include "executor/model/model.h"

namespace stagecraft::model {

/// A generator from which one call of a layer draws dropout masks, in the order of the calls.
/// It is on the device of its values, so that nothing is copied: masks are the same on all CPUs, and on all GPUs.
class Dropout {
 public:
  /// Drops with probability `percent` / 100 in training, otherwise nothing. Of several in one call, each needs another
  /// `stream`, or they draw the same masks.
  Dropout(const LayerCall& call, std::int64_t percent, const std::string& stream = "");
  /// `x` with each value set to zero with the probability, and the others scaled to keep the expectation.
  [[nodiscard]] at::Tensor operator()(const at::Tensor& x);
  /// Whether a value may be dropped at all.
  [[nodiscard]] bool active() const { return probability_ > 0; }

 private:
  double probability_;
  std::uint64_t seed_;
  at::Generator generator_;  ///< made on the first call
};

/// Trainable parameters: uniform in +-scale, normal with deviation `scale`, or all the same.
[[nodiscard]] ParameterSpec uniform(std::string name, std::vector<std::int64_t> shape, double scale);
[[nodiscard]] ParameterSpec normal(std::string name, std::vector<std::int64_t> shape, double scale);
[[nodiscard]] ParameterSpec ones(std::string name, std::vector<std::int64_t> shape);
[[nodiscard]] ParameterSpec zeros(std::string name, std::vector<std::int64_t> shape);

/// Half the width of PyTorch's uniform initialisation of Linear, Conv2d and LSTM: 1 / sqrt(fan_in).
[[nodiscard]] double fan_in_scale(std::int64_t fan_in);

/// Appends `layer` to `model` and returns its first output.
ValueRef append(Model& model, LayerSpec layer);
/// Appends an input to `model` and returns it.
ValueRef append(Model& model, ModelInput input);

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

/// Each appends the layer `name`, which reads `in`, and returns its output. Images are [samples, channels, height,
/// width]; sequences are [samples, positions, width]. Parameters are called `name`.weight, `name`.bias, ...
ValueRef conv2d(Model& model, const std::string& name, ValueRef in, const ConvShape& shape);
ValueRef linear(Model& model, const std::string& name, ValueRef in, const LinearShape& shape);
ValueRef batch_norm2d(Model& model, const std::string& name, ValueRef in, std::int64_t channels);
ValueRef layer_norm(Model& model, const std::string& name, ValueRef in, std::int64_t width);
ValueRef relu(Model& model, const std::string& name, ValueRef in);
ValueRef max_pool2d(Model& model, const std::string& name, ValueRef in, std::int64_t kernel, std::int64_t stride,
                    std::int64_t padding = 0);
/// The mean over windows chosen so that the output is side x side.
ValueRef average_pool2d(Model& model, const std::string& name, ValueRef in, std::int64_t side);
ValueRef flatten(Model& model, const std::string& name, ValueRef in);
ValueRef dropout(Model& model, const std::string& name, ValueRef in, std::int64_t percent);
ValueRef add(Model& model, const std::string& name, ValueRef a, ValueRef b);
/// Joins along the last axis.
ValueRef concat(Model& model, const std::string& name, ValueRef a, ValueRef b);
/// [samples, positions] int64 -> [samples, positions, width] through `table`, a parameter [entries, width].
ValueRef embedding(Model& model, const std::string& name, ValueRef in, ParameterSpec table);
/// All hidden states of one LSTM layer with zero initial state; `bidirectional` doubles the width.
struct LstmShape {
  std::int64_t in = 0;
  std::int64_t hidden = 0;
  bool bidirectional = false;
  double scale = 0;  ///< of the Uniform initialisation
};
ValueRef lstm(Model& model, const std::string& name, ValueRef in, const LstmShape& shape);
/// Appends the layer "loss": the mean cross entropy of `logits` [..., classes] against `target` [...].
ValueRef cross_entropy(Model& model, ValueRef logits, ValueRef target);

/// Multi-head attention of `query` [samples, positions, width] over `key` and `value`: softmax(Q K^T / sqrt(width of
/// a head)) V, heads joined again. `causal` hides later positions. `drop` applies to the weights.
[[nodiscard]] at::Tensor attend(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                std::int64_t heads, bool causal, Dropout& drop);

}  // namespace stagecraft::model
