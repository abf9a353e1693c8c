#pragma once

#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/predict.h"

namespace stagecraft::report {

/// The stages that a device runs: one, or several with chunks.
struct StageGroup {
  std::string label;    ///< "stage 1", "stages 1, 3"
  StagePrediction sum;  ///< of times per step and of memory; `stage` is the first of them
};

/// All stages, those of a device together, by their first stage.
[[nodiscard]] std::vector<StageGroup> stage_groups(const Prediction& prediction);

/// The stage of each layer; -1 for inputs, and for all layers without a plan. Throws std::invalid_argument as
/// staged_graph for a plan of another graph.
[[nodiscard]] std::vector<int> stage_of_layers(const Graph& graph, const Plan* plan);

}  // namespace stagecraft::report
