#pragma once

#include <string>

#include "costmodel/accuracy/intervals.h"
#include "costmodel/conditions.h"
#include "costmodel/format/description.h"
#include "costmodel/graph.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/timeline.h"

// Only for this folder: what several documents contain.

namespace stagecraft::format {

/// "processor" or "gpu"; not for DeviceKind::Unknown, which documents omit.
[[nodiscard]] Notation<DeviceKind> device_kind();
/// A number of processors, at least 1.
[[nodiscard]] Integer processors();
[[nodiscard]] Notation<Yardstick> yardstick();
/// `ratio` says of which times; `earlier` are keys of earlier versions.
[[nodiscard]] Notation<Drift> drift(const char* ratio, const FieldList<Drift>& earlier = {});

/// "name", "shape" and "dtype".
[[nodiscard]] FieldList<StateTensor> state_tensor_fields();
/// "parameter_dtype", "gradient_dtype" and "moment_dtype".
[[nodiscard]] FieldList<StateTypes> state_types_fields();
/// "tokens_per_s", "flops_per_s", "peak_share" and "peak_of".
[[nodiscard]] FieldList<WorkRates> rates_fields();
/// "iteration_s", "iteration_low_s", "iteration_high_s" and "samples_per_s": of each prediction in documents that
/// compare predictions.
[[nodiscard]] FieldList<Prediction> predicted_step_fields();
/// Of two steps; `key` names the ratio.
[[nodiscard]] Notation<StepRatio> step_ratio(const char* key);
inline constexpr const char* kStepRatioHelp = "The times per microbatch compared: errors common to both cancel.";
[[nodiscard]] Notation<ActionKind> action(const char* help);

[[nodiscard]] Notation<Conditions> conditions();
[[nodiscard]] Notation<Provenance> provenance();

/// The key "conditions", for a member.
template <class T>
Field<T> conditions_field(Conditions T::* place) {
  return optional("conditions", place, conditions(), "What the machine was like while the figures were measured.");
}
/// The key "provenance", for a member.
template <class T>
Field<T> provenance_field(Provenance T::* place) {
  return optional("provenance", place, provenance());
}

// Only for this folder: what predictions and measurements share.

[[nodiscard]] Notation<RankMemory> rank_memory();
[[nodiscard]] Notation<Timeline> timeline();

}  // namespace stagecraft::format
