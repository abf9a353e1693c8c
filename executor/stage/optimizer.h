#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "executor/stage/optimizer_options.h"

namespace stagecraft::stage {

struct Parameter;  // stage_program.h

/// What an optimizer keeps for each parameter.
struct OptimizerKeeps {
  int tensors = 0;       ///< like the parameter
  bool steps = false;    ///< the number of its steps
  bool product = false;  ///< a product over its steps
  bool average = false;  ///< the moving average of its value, like the parameter
  friend bool operator==(const OptimizerKeeps&, const OptimizerKeeps&) = default;
};
[[nodiscard]] OptimizerKeeps keeps(const OptimizerOptions& options);
/// Values kept for each parameter value, in the type of moments and without master values: SGD 0, with momentum 1, Adam
/// and AdamW 2, with amsgrad 3; more for a moving average, which is float32: 1, or 2 beside moments in bfloat16.
[[nodiscard]] std::int64_t state_values(const OptimizerOptions& options);

/// An optimizer's state for a parameter. Undefined: there is no such tensor, or the parameter had no gradient yet.
struct OptimizerState {
  at::Tensor first;    ///< like the parameter, in the type of moments: momentum, first moment, or for adagrad, adadelta
                       ///< and rmsprop the squares
  at::Tensor second;   ///< likewise: second moment, adadelta's deltas, rmsprop's momentum or mean
  at::Tensor third;    ///< likewise: amsgrad's maximum, or rmsprop's mean if there is momentum
  at::Tensor steps;    ///< the count; a scalar
  at::Tensor product;  ///< nadam's product of momenta; a scalar
  at::Tensor average;  ///< like the parameter in float32; of every parameter after the first step
  at::Tensor master;   ///< like the parameter in float32: what a step updates of one in bfloat16, and rounds into it
};

/// Updates parameters in place from their gradients, with LibTorch's fused kernels (sgd, adam, adamw, adagrad) or its
/// operators on lists, in the order in which torch.optim calls them. Computes in float32, whatever the types of
/// parameters, gradients and moments.
class Optimizer {
 public:
  /// State is created in the first step. `parameters` are leaves; `names` are theirs, and may be absent if there are no
  /// groups.
  Optimizer(OptimizerOptions options, std::vector<at::Tensor> parameters, const std::vector<std::string>& names = {});
  /// Switches to `parameters`, of the same shapes and in the same order; the state is kept.
  void rebind(std::vector<at::Tensor> parameters);
  /// One step with the gradients divided by `divisor` and `rate_factor` times the learning rate; parameters without a
  /// gradient are unchanged. Leaves the divided gradients in place. Moving averages begin as the parameters after the
  /// first step; then average = decay * average + (1 - decay) * parameter, as torch.optim.swa_utils.AveragedModel does
  /// with get_ema_multi_avg_fn(decay).
  void step(double divisor, double rate_factor = 1);

  [[nodiscard]] const std::vector<at::Tensor>& parameters() const { return parameters_; }

  /// The state of parameter `i` of the constructor; shares its memory.
  [[nodiscard]] OptimizerState state(std::size_t i) const { return states_.at(i); }
  /// Continues from a result of `state`, of an optimizer whose types may be others.
  void set_state(std::size_t i, const OptimizerState& state);

 private:
  /// The state with which a parameter begins. What it has of a master value and an average stays.
  void begin(const at::Tensor& parameter, OptimizerState& state) const;
  /// Type and device of moments.
  [[nodiscard]] at::TensorOptions moment_options(const at::Tensor& parameter) const;
  /// Those of counts and products: fused kernels read them where the parameters are, lists on the host.
  [[nodiscard]] at::TensorOptions scalar_options(const at::Tensor& parameter) const;

  OptimizerOptions options_;
  std::vector<OptimizerOptions> group_options_;  ///< by group; the last are those of parameters in none
  std::vector<std::size_t> group_of_;            ///< by parameter
  OptimizerKeeps keeps_;
  std::vector<at::Tensor> parameters_;
  std::vector<OptimizerState> states_;
  std::vector<bool> begun_;
  // Arguments of a kernel. Empty between steps; kept for their memory.
  struct Lists {
    std::vector<at::Tensor> values, gradients, steps, products;
    std::array<std::vector<at::Tensor>, 3> kept;
    void clear();
  };
  /// Adds what a kernel needs of a parameter with `gradient`: its tensors if they are float32, else float32 copies.
  void add(const at::Tensor& parameter, const at::Tensor& gradient, const OptimizerState& state);
  /// The same for values [first, first + count) of it; `last`: counts move with these.
  void add_part(const at::Tensor& parameter, const at::Tensor& gradient, const OptimizerState& state,
                std::int64_t first, std::int64_t count, bool last);
  void update_listed(const OptimizerOptions& options, double divisor, double rate, bool first_step);
  void step_group(std::size_t group, double divisor, double rate_factor);
  static void fused(const OptimizerOptions& o, Lists& lists, double divisor, double rate, bool first_step);
  static void listed(const OptimizerOptions& o, Lists& lists, double divisor, double rate);
  void move_averages();
  Lists lists_;
  std::vector<at::Tensor> computed_, stored_;  // float32 results, and where they are rounded into
};

/// The optimizer of a program's parameters, with their names.
[[nodiscard]] std::unique_ptr<Optimizer> optimizer_of(const OptimizerOptions& options,
                                                      const std::vector<Parameter>& parameters);

}  // namespace stagecraft::stage
