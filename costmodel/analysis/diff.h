#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/accuracy/intervals.h"
#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/plan.h"
#include "costmodel/prediction/predict.h"
#include "costmodel/text/table.h"

namespace stagecraft {

/// A layer whose stage differs between two plans.
struct MovedLayer {
  std::string layer;
  int first = 0;   ///< its stage in the first plan
  int second = 0;  ///< and in the second
  friend bool operator==(const MovedLayer&, const MovedLayer&) = default;
};

/// Something else in which two plans differ.
struct PlanDifference {
  std::string what;  ///< "schedule", "stage 1 devices", ...
  std::string first;
  std::string second;
  friend bool operator==(const PlanDifference&, const PlanDifference&) = default;
};

/// Two plans for one graph and topology.
struct PlanComparison {
  std::vector<MovedLayer> moved;  ///< in the first plan's order
  std::vector<PlanDifference> differences;
  Prediction first;
  Prediction second;
  StepRatio ratio;  ///< of the first plan's time per microbatch to the second's
};

/// What differs apart from layers: schedule, microbatches, chunks, number of devices and of stages; for each stage in
/// both plans, replicas, devices and recomputation; gradient buckets, warm-ups, listed actions.
[[nodiscard]] std::vector<PlanDifference> plan_differences(const Plan& first, const Plan& second);

/// The layers in different stages. A layer that only one plan has does not count.
[[nodiscard]] std::vector<MovedLayer> moved_layers(const BoundPlan& first, const BoundPlan& second);

/// Both predictions with intervals, and how likely the first plan is faster per microbatch, see step_ratio. Throws as
/// predict.
[[nodiscard]] std::variant<PlanComparison, Infeasible> compare_plans(const Graph& graph, const Topology& topology,
                                                                     const Plan& first, const Plan& second,
                                                                     const std::optional<Calibration>& calibration = {},
                                                                     const PredictOptions& options = {});

/// For people; `first` and `second` name the plans.
[[nodiscard]] std::string plan_comparison_text(const PlanComparison& comparison, const std::string& first,
                                               const std::string& second, const Screen& screen);

}  // namespace stagecraft
