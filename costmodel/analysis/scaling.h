#pragma once

#include <optional>
#include <variant>
#include <vector>

#include "costmodel/accuracy/intervals.h"
#include "costmodel/errors.h"
#include "costmodel/prediction/predict.h"

namespace stagecraft {

/// How the work of a step grows with copies of a plan.
enum class ScaledWork {
  PerCopy,  ///< each copy keeps the plan's microbatches: a step has more samples
  Fixed,    ///< the microbatches of the plan are shared: a step has as many samples
};

/// `one` on `copies` times as many of the topology's outermost groups: each stage has `copies` times its replicas, the
/// new ones on the devices of the new groups. Throws std::invalid_argument if `copies` is below 1, if the schedule does
/// not support replicas or the plan lists its actions, if a topology with one level gives the number of processors of
/// its only host, or as validate.
[[nodiscard]] Scenario scaled(const Scenario& one, int copies, ScaledWork work);

/// `one` with `count` groups at a level of the topology (0: the innermost) and its plan in all of them. With more
/// groups, a multiple of those that there are, the plan is copied into the new ones, as scaled does, with the
/// microbatches of each copy. With fewer, a divisor, the copies on the groups that go are dropped: those that stay must
/// have the same share of each stage's replicas, and of the microbatches. Throws std::invalid_argument if that is not
/// so, and as scaled, except that a level that is a host gets more devices.
[[nodiscard]] Scenario with_groups(const Scenario& one, int level, int count);

/// Predicts `one` on each number of copies. The efficiency is the throughput per device over that of one copy; its
/// interval is that of step_ratio, in which errors that both have in common cancel. Throws as scaled and predict.
[[nodiscard]] std::variant<std::vector<ScalePoint>, Infeasible> predict_scaling(
    const Scenario& one, const std::vector<int>& copies, ScaledWork work, const std::optional<Calibration>& calibration,
    const PredictOptions& options = {});

}  // namespace stagecraft
