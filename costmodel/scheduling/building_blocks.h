#pragma once

#include <vector>

#include "costmodel/schedule.h"

// Shared by the files of schedules.

namespace stagecraft::scheduling {

[[nodiscard]] inline Action compute(ActionKind kind, int stage, int microbatch) {
  return {kind, stage, microbatch, -1};
}

/// Replicas of `stage`: 1 if the shape gives none.
[[nodiscard]] int replicas_of(const PipelineShape& shape, int stage);

/// Microbatches of all steps that the lists cover.
[[nodiscard]] int all_microbatches(const PipelineShape& shape);

/// Those that `replica` of `stage` runs.
[[nodiscard]] std::vector<int> own_of(const PipelineShape& shape, int stage, int replica);

/// Number of microbatches of the stage's first replica, which has the most.
[[nodiscard]] int most_own(const PipelineShape& shape, int stage);

/// 1F1B: as many forwards as in PipelineShape::warmups, then a forward and a backward in turn.
[[nodiscard]] std::vector<Action> one_forward_one_backward(const PipelineShape& shape, int position, int replica);

/// The forwards and backwards of a list with its backwards split: weight gradients wait while at most `position` of
/// them are pending. Source: Qi et al., ICLR 2024 (ZB-H1).
[[nodiscard]] std::vector<Action> with_weight_gradients(const std::vector<Action>& list, int position);

/// Largest number of microbatches that a position of 1F1B holds at once.
[[nodiscard]] int warmup_and_one(const PipelineShape& shape, int position);

}  // namespace stagecraft::scheduling
