#pragma once

#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/plan.h"

namespace stagecraft {

// Bounds of the stages in the list of layers of DeepSpeed's PipelineModule, its member `parts`: stage s holds the
// layers parts[s] .. parts[s + 1] - 1. PipelineModule takes a partition_method, no bounds, so that a plan reaches it as
// a subclass whose _partition_layers sets them. The loss is no layer there but the loss_fn: where the last layer of a
// plan or graph is called loss or criterion, the list ends before it.

/// Bounds, and the ids of the layers where they are known.
struct DeepspeedParts {
  std::vector<int> parts;
  std::vector<std::string> layers;  ///< as many as the last bound, or none
  friend bool operator==(const DeepspeedParts&, const DeepspeedParts&) = default;
};

/// Those in `text`: {"parts": [0, 19, 22]}, with "layers" and a "partition_method", which says nothing, or the list
/// alone. Throws FormatError "FILE: POINTER: found, wanted" for another key, bounds that do not rise from 0, and layers
/// as many as no bound says.
[[nodiscard]] DeepspeedParts parse_deepspeed_parts(const std::string& text, const std::string& file);
[[nodiscard]] std::string deepspeed_parts_json(const DeepspeedParts& parts);

/// Those of `plan`. Throws std::invalid_argument for what no PipelineModule runs: several stages on a device, unequal
/// numbers of replicas, a tensor that skips a stage, a last stage with nothing but the loss.
[[nodiscard]] DeepspeedParts deepspeed_parts(const Plan& plan);

/// A Python module with the class PlannedPipelineModule, a PipelineModule with these bounds.
[[nodiscard]] std::string deepspeed_module(const DeepspeedParts& parts);

/// The partition that `parts` make of `graph`, one replica each. Throws std::invalid_argument for a list of another
/// length or of other layers than layer_list(graph).
[[nodiscard]] Partition deepspeed_partition(const DeepspeedParts& parts, const Graph& graph);

}  // namespace stagecraft
