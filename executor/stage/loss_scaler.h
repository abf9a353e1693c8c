#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "executor/channel/channel.h"
#include "executor/stage/stage_program.h"

namespace stagecraft {

/// What the loss's gradient begins with, so that float16 gradients do not vanish, and how that changes.
struct LossScaleOptions {
  std::optional<double> fixed = {};     ///< absent: dynamic
  double first = 65536;                 ///< where a dynamic scale begins
  std::int64_t growth_interval = 2000;  ///< steps without an overflow after which a dynamic scale doubles
};

/// "dynamic" or a number above 0. Throws std::invalid_argument for others.
[[nodiscard]] std::optional<double> parse_loss_scale(const std::string& text);

/// Where a scale stands between two steps.
struct LossScale {
  double scale = 65536;
  std::int64_t steps = 0;  ///< without an overflow since it last changed
  friend bool operator==(const LossScale&, const LossScale&) = default;
};

/// The scale of one run, the same on all ranks. A step with an overflow is left out, and halves a dynamic scale.
/// Source: Micikevicius et al., ICLR 2018; torch.amp.GradScaler with its defaults.
class LossScaler {
 public:
  /// Throws std::invalid_argument for an interval below 1 or a fixed scale that is not above 0.
  explicit LossScaler(const LossScaleOptions& options);
  [[nodiscard]] double scale() const { return state_.scale; }
  [[nodiscard]] const LossScale& state() const { return state_; }
  /// Goes on from what `state` gave; a fixed scale stays what it is.
  void set_state(const LossScale& state);
  /// Steps with an overflow so far, of this object.
  [[nodiscard]] std::int64_t skipped() const { return skipped_; }
  /// To be called once a step.
  void update(bool overflow);

 private:
  LossScaleOptions options_;
  LossScale state_;
  std::int64_t skipped_ = 0;
};

/// The scaler of a run of `plan`: none unless it trains in float16. Throws std::invalid_argument for an asynchronous
/// schedule in float16, which has no moment at which a step could be left out everywhere.
[[nodiscard]] std::optional<LossScaler> loss_scaler_of(const BoundPlan& plan, const LossScaleOptions& options);

/// Whether any gradient holds an infinity or what is not a number.
[[nodiscard]] bool overflows(const std::vector<Parameter>& parameters);

/// Whether `own` is true on any rank. All ranks call it.
[[nodiscard]] bool on_any_rank(Channel& channel, bool own);

}  // namespace stagecraft
