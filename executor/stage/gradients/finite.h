#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "costmodel/errors.h"
#include "executor/channel/channel.h"
#include "executor/channel/control_tags.h"
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

/// The scale of the loss's gradient, so that float16 gradients do not vanish, and how it changes.
struct LossScaleOptions {
  std::optional<double> fixed = {};     ///< absent: dynamic
  double first = 65536;                 ///< initial value of a dynamic scale
  std::int64_t growth_interval = 2000;  ///< steps without an overflow after which a dynamic scale doubles
};

/// Parses "dynamic" or a number above 0. Throws std::invalid_argument for others.
[[nodiscard]] std::optional<double> parse_loss_scale(const std::string& text);

/// The state of a scale between two steps.
struct LossScale {
  double scale = 65536;
  std::int64_t steps = 0;  ///< steps without an overflow since it last changed
  friend bool operator==(const LossScale&, const LossScale&) = default;
};

/// The scale of one run, the same on all ranks. A step with an overflow is skipped, and halves a dynamic scale. Source:
/// Micikevicius et al., ICLR 2018; torch.amp.GradScaler with its defaults.
class LossScaler {
 public:
  /// Throws std::invalid_argument for an interval below 1 or a fixed scale that is not above 0.
  explicit LossScaler(const LossScaleOptions& options);
  [[nodiscard]] double scale() const { return state_.scale; }
  [[nodiscard]] const LossScale& state() const { return state_; }
  /// Continues from a result of `state`; a fixed scale is unchanged.
  void set_state(const LossScale& state);
  /// Number of steps with an overflow so far.
  [[nodiscard]] std::int64_t skipped() const { return skipped_; }
  /// Call once per step.
  void update(bool overflow);

 private:
  LossScaleOptions options_;
  LossScale state_;
  std::int64_t skipped_ = 0;
};

/// Whether any gradient contains an infinity or NaN.
[[nodiscard]] bool overflows(const std::vector<Parameter>& parameters);

/// Whether `here` is true on any rank. All ranks call it.
[[nodiscard]] bool on_any_rank(channel::Channel& channel, bool here, int tag = channel::kOverflowTag);

}  // namespace stagecraft::stage
