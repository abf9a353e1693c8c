#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "costmodel/errors.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::stage {

/// What a run does if a loss or a gradient is infinite or NaN.
enum class OnNonfinite {
  Stop,  ///< ends the run before the parameters are updated (on a GPU a step later)
  Warn,  ///< warns and continues
  Skip,  ///< skips the update, including moving statistics, on all ranks
};

/// "stop", "warn", "skip".
[[nodiscard]] const std::vector<std::string>& on_nonfinite_names();
/// Throws std::invalid_argument listing the names.
[[nodiscard]] OnNonfinite parse_on_nonfinite(const std::string& name);

/// Ends a run under OnNonfinite::Stop.
class NonfiniteError : public std::runtime_error, public HasErrorKind {
 public:
  explicit NonfiniteError(const std::string& text)
      : std::runtime_error(text), HasErrorKind(ErrorKind::NonfiniteValue) {}
};

/// Whether no value is infinite or NaN; true for types without these. Waits for a GPU.
[[nodiscard]] bool all_finite(const at::Tensor& tensor);

/// A scalar above 0 if any parameter's gradient is not finite, 0 otherwise; undefined without gradients. On a GPU, it
/// is computed on the current stream.
[[nodiscard]] at::Tensor nonfinite_flag(const std::vector<Parameter>& parameters);

/// Name of the first parameter whose gradient is not finite. Waits for a GPU.
[[nodiscard]] std::optional<std::string> nonfinite_gradient(const std::vector<Parameter>& parameters);

}  // namespace stagecraft::stage
