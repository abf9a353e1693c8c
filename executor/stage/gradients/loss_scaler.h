#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/channel/control_tags.h"
#include "executor/stage/stage_program.h"

namespace stagecraft::stage {

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
