#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::stage {

/// The learning rate over the steps of a run.
struct RateSchedule {
  std::string name = "constant";  ///< "constant" or "cosine"
  std::int64_t warmup = 0;        ///< steps of linear warm-up from 0
  std::int64_t steps = 0;         ///< of the whole run; cosine ends there
  double last = 0;                ///< final rate of cosine / full rate
};

/// An optimizer and its settings. Same meaning and formulas as torch.optim's SGD, Adam and AdamW.
struct OptimizerOptions {
  std::string name = "sgd";  ///< "sgd" (with momentum if not 0), "adam", "adamw"
  double learning_rate = 0.01;
  double momentum = 0;
  double weight_decay = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  RateSchedule rate = {};
  double clip_norm = 0;  ///< largest norm of the whole model's gradient; 0: no clipping
};

/// All names of rate schedules.
[[nodiscard]] const std::vector<std::string>& rate_schedule_names();
/// Throws std::invalid_argument for an unknown name (listing the known), a negative warm-up, a last factor outside
/// [0, 1], and a cosine whose run is not longer than its warm-up.
void validate(const RateSchedule& schedule);
/// Factor on the learning rate in step `step`, counted from 0: (step + 1) / warmup while that is below 1; then 1, or
/// for cosine last + (1 - last) (1 + cos(pi x)) / 2 with x = (step - warmup) / (steps - warmup), and `last` from x = 1
/// on. Source: Loshchilov & Hutter, ICLR 2017, without restarts.
[[nodiscard]] double rate_factor(const RateSchedule& schedule, std::int64_t step);

/// All optimizer names.
[[nodiscard]] const std::vector<std::string>& optimizer_names();
/// Throws std::invalid_argument for an unknown name (listing the known) or a value out of range.
void validate(const OptimizerOptions& options);
/// Values kept for each parameter value: SGD 0, with momentum 1, Adam and AdamW 2.
[[nodiscard]] std::int64_t state_values(const OptimizerOptions& options);

/// An optimizer's state for a parameter. Undefined: there is no such tensor, or the parameter had no gradient yet.
struct OptimizerState {
  at::Tensor first;   ///< momentum, or Adam's first moment; like the parameter
  at::Tensor second;  ///< Adam's second moment; like the parameter
  at::Tensor steps;   ///< Adam's count; a scalar of the parameter's dtype
};

/// Updates parameters in place from their gradients, with LibTorch's fused kernels.
class Optimizer {
 public:
  /// State is created in the first step. `parameters` are leaves.
  Optimizer(OptimizerOptions options, std::vector<at::Tensor> parameters);
  /// Switches to `parameters`, of the same shapes and in the same order; the state is kept.
  void rebind(std::vector<at::Tensor> parameters);
  /// One step with the gradients divided by `divisor` and `rate_factor` times the learning rate; parameters without a
  /// gradient are unchanged. Leaves the divided gradients in place.
  void step(double divisor, double rate_factor = 1);

  /// The state of parameter `i` of the constructor; shares its memory.
  [[nodiscard]] OptimizerState state(std::size_t i) const;
  /// Continues from a result of `state`, whose tensors it takes over.
  void set_state(std::size_t i, const OptimizerState& state);

 private:
  OptimizerOptions options_;
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> first_;   // momentum, or Adam's first moment
  std::vector<at::Tensor> second_;  // Adam's second moment
  std::vector<at::Tensor> steps_;   // Adam's count
  std::vector<bool> begun_;
  // Arguments of a kernel. Empty between steps; kept for their memory.
  struct Lists {
    std::vector<at::Tensor> values, gradients, first, second, steps;
    void clear();
  };
  Lists lists_;
};

}  // namespace stagecraft::stage
