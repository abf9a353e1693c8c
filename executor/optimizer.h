#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

/// Which optimizer, and how it is set. Same meaning and formulas as torch.optim's SGD, Adam and AdamW.
struct OptimizerOptions {
  std::string name = "sgd";  ///< "sgd" (with momentum if that is not 0), "adam", "adamw"
  double learning_rate = 0.01;
  double momentum = 0;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
};

/// All optimizer names.
[[nodiscard]] const std::vector<std::string>& optimizer_names();
/// Throws std::invalid_argument for an unknown name (listing the known) or a value out of range.
void validate(const OptimizerOptions& options);
/// Values kept for each parameter value: SGD 0, with momentum 1, Adam and AdamW 2.
[[nodiscard]] std::int64_t state_values(const OptimizerOptions& options);

/// What an optimizer keeps of a parameter. Undefined: it keeps no such tensor, or the parameter had no gradient yet.
struct OptimizerState {
  at::Tensor first;   ///< momentum, or Adam's first moment; like the parameter
  at::Tensor second;  ///< Adam's second moment; like the parameter
  at::Tensor steps;   ///< Adam's count; a scalar of the parameter's dtype
};

/// Updates parameters in place from their grad, through LibTorch's fused kernels.
class Optimizer {
 public:
  /// State is made at the first step. `parameters` are leaves.
  Optimizer(const OptimizerOptions& options, std::vector<at::Tensor> parameters);
  /// One step with the gradients divided by `divisor`; parameters without a gradient stay. Leaves the divided
  /// gradients in place.
  void step(double divisor);

  /// The state of the parameter that the constructor was given as number `i`; shares its memory.
  [[nodiscard]] OptimizerState state(std::size_t i) const;
  /// Goes on from a state that `state` gave, whose tensors it takes over.
  void set_state(std::size_t i, OptimizerState state);

 private:
  OptimizerOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> first_;   // momentum, or Adam's first moment
  std::vector<at::Tensor> second_;  // Adam's second moment
  std::vector<at::Tensor> steps_;   // Adam's count
  std::vector<bool> begun_;
};

}  // namespace stagecraft
