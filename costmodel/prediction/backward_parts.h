#pragma once

#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"

namespace stagecraft {

/// The parts of a layer's backward: Layer::backward_parts, or an estimate for a layer without them. Then the backward
/// of a layer with trainable parameters is half gradient of the inputs and half gradient of the weights, and any other
/// is all gradient of the inputs. Source: Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, table 1: the matrix
/// product of a linear layer takes as many operations for its inputs as for its weights. Layers that do little work
/// with their weights (norms, biases) spend less than half on them.
[[nodiscard]] BackwardParts backward_parts(const Layer& layer);

/// One microbatch's backward of a stage, with the graph's own times.
struct SplitBackwardTimes {
  Seconds inputs;   ///< Backward
  Seconds weights;  ///< WeightGradient
  friend bool operator==(const SplitBackwardTimes&, const SplitBackwardTimes&) = default;
};

/// For each stage, its backward where the schedule splits it, as the executor does. Backward covers the layers through
/// which gradients flow to the stage's inputs, without their weight gradients; WeightGradient covers the weight
/// gradients of those layers and the whole backward of every other layer. If a stage sends no gradient back, or
/// contains a layer that is not separable, its whole backward is in the first part. If a stage recomputes in segments,
/// this applies to each segment. Recomputation itself is not included. Precondition: the plan is valid for the graph.
[[nodiscard]] std::vector<SplitBackwardTimes> split_backward_times(const Graph& graph, const BoundPlan& plan);

/// For each stage, whether its backward leaves work to the second part according to split_backward_times; false for all
/// if the schedule does not split.
[[nodiscard]] std::vector<bool> splits_backward(const Graph& graph, const BoundPlan& plan);

/// A sentence that says for how many layers predictions of `plan` rest on the estimate of backward_parts; empty if
/// the schedule does not split the backward, or all parts were measured. Precondition: the plan is valid for the graph.
[[nodiscard]] std::string backward_parts_assumption(const Graph& graph, const BoundPlan& plan);

}  // namespace stagecraft
