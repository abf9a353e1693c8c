#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/conditions.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/text/table.h"
#include "costmodel/timeline.h"
#include "costmodel/units.h"

namespace stagecraft {

/// One figure of two steps: Seconds, Bytes, or a plain number for a rate or a share. Absent where a step has no such
/// figure.
template <class T>
struct Changed {
  std::optional<T> first = {};
  std::optional<T> second = {};
  /// second / first - 1; absent unless both are known and the first is not 0.
  [[nodiscard]] std::optional<double> change() const {
    if (!first || !second || *first == T{}) return std::nullopt;
    return *second / *first - 1;
  }
  friend bool operator==(const Changed&, const Changed&) = default;
};

/// The time of one kind of action on one stage, as in a comparison of a prediction and a run.
struct ActionChange {
  int stage = 0;
  ActionKind kind = ActionKind::Forward;
  Changed<Seconds> time;
  friend bool operator==(const ActionChange&, const ActionChange&) = default;
};

/// The ranks that run a stage, and with chunks the later stages of the same ranks.
struct RanksChange {
  int stage = 0;
  Changed<double> bubble;  ///< idle share of the step, mean over the ranks
  Changed<Bytes> memory;   ///< peak of the rank that needs the most
  friend bool operator==(const RanksChange&, const RanksChange&) = default;
};

/// Something else in which two predictions or runs differ.
struct ConditionChange {
  std::string what;  ///< "schedule"
  std::string first;
  std::string second;
  friend bool operator==(const ConditionChange&, const ConditionChange&) = default;
};

/// From one predicted step to another, or from one measured run to another. They may be of different plans.
struct StepChange {
  bool measured = false;  ///< two runs; else two predictions
  Changed<Seconds> step;
  Changed<Range<Seconds>> interval;  ///< the 90 % intervals; predictions only
  Changed<Seconds> spread;           ///< median absolute deviation of the steps that count; runs only
  Changed<std::size_t> steps;        ///< that count; runs only
  Changed<double> samples_per_s;
  Changed<double> bubble;  ///< idle share of the step, mean over all ranks
  Changed<Bytes> memory;   ///< peak of the rank that needs the most
  std::vector<ActionChange> actions;
  std::vector<RanksChange> ranks;  ///< by stage
  std::vector<ConditionChange> differences;
  std::vector<std::string> distrust;  ///< reasons not to trust it: other programs
  std::optional<Drift> drift;         ///< of the machine, from the first run to the second; absent: unknown
  std::string no_drift;               ///< why there is none although both have a yardstick; else empty
  friend bool operator==(const StepChange&, const StepChange&) = default;
};

/// Figures are those of compare. Sends do not count, as there.
[[nodiscard]] StepChange step_change(const Prediction& first, const Prediction& second);
/// The first `skip` steps of each run are skipped as warm-up, but never the last one. Throws std::invalid_argument for
/// a run without steps.
[[nodiscard]] StepChange step_change(const Measurement& first, const Measurement& second, std::size_t skip = 2);

/// A table to print, no wider than the screen if its columns allow it; `first` and `second` are the names of its
/// columns. The document is format/results/accuracy_json.h.
[[nodiscard]] std::string step_change_text(const StepChange& change, const std::string& first,
                                           const std::string& second, const Screen& screen);

}  // namespace stagecraft
