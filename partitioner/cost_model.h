#pragma once

#include <functional>
#include <variant>

#include "costmodel/errors.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/predict.h"

namespace stagecraft::partitioner {

/// What a strategy may ask about a plan that is valid for graph and topology.
struct CostModel {
  /// How long a step takes and what each stage needs; Infeasible if the plan's action lists deadlock. Throws
  /// std::invalid_argument for a plan that cannot be predicted.
  std::function<std::variant<Prediction, Infeasible>(const Graph&, const Topology&, const Plan&)> predict;
  /// Bytes that no run exceeds, of the rank that needs the most, found without predicting times.
  std::function<Bytes(const Graph&, const Plan&)> peak_memory;
};

/// The cost model of costmodel/: predict() and replay_memory(). `progress` is PredictOptions::progress.
[[nodiscard]] CostModel simulated_costs(std::function<void(double done)> progress = {});

}  // namespace stagecraft::partitioner
