#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/accuracy/intervals.h"
#include "costmodel/errors.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/text/table.h"

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

/// A quantity that can be set, described for people: "link.LEVEL.bandwidth", "2x, 25GB/s", and what it changes.
struct SettingText {
  std::string name;
  std::string values;
  std::string meaning;
};

/// All quantities that can be set: `S` is a stage of the plan, `LEVEL` a level of the topology.
[[nodiscard]] const std::vector<SettingText>& settings_known();

/// The scenario after `change`, "NAME=VALUE". A value with a trailing x is a factor ("0.8x"). A faster link divides the
/// part of each measured time beyond its latency, a lower latency scales that part: one latency of a transfer,
/// 2 (n - 1) of an all-reduce over n ranks, n - 1 of an all-gather or reduce-scatter, as in the ring formulas. Of the
/// processor time of messages, which is a part of theirs, the latency's factor scales what every message takes (the
/// time of the smallest measured one), the bandwidth's the rest. Layer times, on every type of devices, are first
/// scaled by closure_factor, whose iteration is then dropped, so that a change of one stage leaves the others alone. An
/// absolute time of a stage is that on the slowest type of its devices. Another number of groups changes the plan too,
/// as with_groups says. Another card scales the graph's times as estimated does, from the card that they
/// belong to, and sets the devices' name and memory; links stay. Throws std::invalid_argument: a change without "=", an
/// unknown name (listing the known ones), level, stage or card, or a value that is not valid for it.
[[nodiscard]] Scenario with_change(Scenario scenario, const std::string& change);

/// Predictions before and after changes.
struct WhatIf {
  std::vector<std::string> changes;
  Prediction before;
  Prediction after;
  Seconds before_microbatch;  ///< time per microbatch
  Seconds after_microbatch;   ///< likewise
  StepRatio ratio;            ///< of the time per microbatch after to that before
};

/// Both predictions, with intervals. `other_device` is Prediction::other_device of the scenario's times; where a change
/// estimates them for another card, the prediction after says that instead. Throws std::invalid_argument as
/// with_change, naming the change, and as predict.
[[nodiscard]] std::variant<WhatIf, Infeasible> what_if(const Scenario& scenario,
                                                       const std::vector<std::string>& changes,
                                                       const std::optional<Calibration>& calibration = {},
                                                       const PredictOptions& options = {},
                                                       const std::string& other_device = {});

/// A table to print: step, throughput, and for each stage the largest peak memory of its ranks, before and after.
[[nodiscard]] std::string whatif_text(const WhatIf& result, const Screen& screen);

}  // namespace stagecraft
