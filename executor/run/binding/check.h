#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "executor/run/binding/bound_model.h"

namespace stagecraft::run {

/// Largest error that a check accepts if the order of summation differs: torch.testing's for float32.
inline constexpr double kCheckTolerance = 1e-5;
/// The same, relative to the largest of all values, if the expected values come from another kind of processor or
/// another LibTorch, whose kernels round differently: values that cancel out then differ by more than a rounding, and
/// the difference grows over the steps.
inline constexpr double kOtherKernelsTolerance = 1e-3;
/// Relative to the largest value in a layer: sixteen units in the last place of a float32.
inline constexpr double kNoise = 16 * 1.1920929e-7;
/// Relative to the largest value in a layer: what rounding may leave of a sum that is 0 in exact arithmetic. For the
/// bias of a convolution before batch norm, up to 1.2e-4 was seen with 100000 terms.
inline constexpr double kCancelled = 0x1p-12;

/// Outcome of RunOptions::check, or of RunOptions::expected, over all steps and ranks.
struct Check {
  std::int64_t values = 0;     ///< number compared: of gradients, with a file also of parameters and buffers
  std::int64_t different = 0;  ///< number that differ
  std::int64_t cancelled = 0;  ///< number of these that are rounding errors of sums that are 0
  double largest_error = 0;    ///< see compare_tensors
  std::string worst;           ///< the tensor with the largest error
  std::int64_t losses = 0;     ///< microbatch losses compared
  std::int64_t losses_different = 0;
  double largest_loss_error = 0;          ///< relative
  std::string with = "a single process";  ///< or the file
  double tolerance = kCheckTolerance;     ///< for both errors
  bool other_kernels =
      false;  ///< the expected values come from other kernels: errors are relative to the largest value
  std::vector<std::string> reasons;  ///< why the last bits may differ
};

/// A computed tensor and the expected one, of the same shape. Each may be undefined: a parameter without a gradient is
/// not one whose gradient is zero, since optimizers leave it alone.
struct ComparedTensor {
  std::string what;  ///< for display: "gradient of \"fc.weight\" in step 2"
  int layer = 0;     ///< tensors of one layer share a scale
  at::Tensor found;
  at::Tensor expected;
};

/// Adds the comparison of all `tensors` to `check`. A tensor's error is its largest difference over its own scale,
/// which is its largest absolute expected value, but at least kNoise / tolerance times the largest of the same layer: a
/// value that is 0 in exact arithmetic (the gradient of the bias of attention's keys) consists of rounding errors of
/// larger numbers and has no scale. A tensor that differs although neither side exceeds kCancelled times the largest of
/// its layer, and neither is all zeros, is such a value with many terms: it is counted in `cancelled` and has no error.
/// With Check::other_kernels the scale is the largest value of all `tensors`. The error is NaN, the worst of all, if
/// only one of the two is defined.
void compare_tensors(const std::vector<ComparedTensor>& tensors, Check& check);

/// Adds the comparison of a microbatch's loss.
void compare_loss(double found, double expected, Check& check);

/// Adds another rank's results.
void add(Check& sum, const Check& part);

/// Whether all compared values are within tolerance.
[[nodiscard]] bool is_close(const Check& check);
/// The verdict: "compared with a single process: 12 gradient values and 3 losses, all bit-equal".
[[nodiscard]] std::string check_text(const Check& check);

/// Reasons why a run of this plan sums gradients in a different order from a single process without stages; empty if
/// the bits are the same.
[[nodiscard]] std::vector<std::string> other_orders(const BoundModel& bound);

}  // namespace stagecraft::run
