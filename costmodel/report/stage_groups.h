#pragma once

#include <string>
#include <vector>

#include "costmodel/prediction/predict.h"

namespace stagecraft::report {

/// The stages that a device runs: one, or several with chunks.
struct StageGroup {
  std::string label;    ///< "stage 1", "stages 1, 3"
  StagePrediction sum;  ///< of times per step and of memory; `stage` is the first of them
};

/// All stages, those of a device together, by their first stage.
[[nodiscard]] std::vector<StageGroup> stage_groups(const Prediction& prediction);

}  // namespace stagecraft::report
