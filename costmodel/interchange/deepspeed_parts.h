#pragma once

#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"
#include "costmodel/plan.h"

namespace stagecraft::interchange {

// Bounds of the stages in the list of layers of DeepSpeed's PipelineModule, its member `parts`: stage s has the layers
// parts[s] .. parts[s + 1] - 1. PipelineModule takes a partition_method instead of bounds, so a plan becomes a subclass
// whose _partition_layers sets them. The loss is the loss_fn there, not a layer: if the last layer of a plan or graph
// is called loss or criterion, the list ends before it.

/// Bounds, and the ids of the layers if known.
struct DeepspeedParts {
  std::vector<int> parts;
  std::vector<std::string> layers;  ///< as many as the last bound, or none
  friend bool operator==(const DeepspeedParts&, const DeepspeedParts&) = default;
};

/// Reads `text`: {"parts": [0, 19, 22]}, optionally with "layers" and an ignored "partition_method", or only the list.
/// Throws FormatError "FILE: POINTER: found, expected" for another key, bounds that do not increase from 0, and a
/// number of layers other than the last bound.
[[nodiscard]] DeepspeedParts parse_deepspeed_parts(const std::string& text, const std::string& file);
[[nodiscard]] std::string deepspeed_parts_json(const DeepspeedParts& parts);

/// The bounds of the plan. Throws std::invalid_argument for plans that no PipelineModule can run: several stages on a
/// device, unequal numbers of replicas, a tensor that skips a stage, a last stage with only the loss.
[[nodiscard]] DeepspeedParts deepspeed_parts(const BoundPlan& bound);

/// A Python module with the class PlannedPipelineModule, a PipelineModule with these bounds.
[[nodiscard]] std::string deepspeed_module(const DeepspeedParts& parts);

/// The partition of `graph` by `parts`, one replica each. Throws std::invalid_argument for a list whose length or
/// layers differ from layer_list(graph).
[[nodiscard]] Partition deepspeed_partition(const DeepspeedParts& parts, const Graph& graph);

}  // namespace stagecraft::interchange
