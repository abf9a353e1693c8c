#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"
#include "costmodel/units.h"

namespace stagecraft {

/// A sum of gradients over ranks.
struct GradientSum {
  std::vector<int> ranks;   ///< ascending
  Bytes bytes;              ///< of the gradients, at each rank
  std::optional<int> tied;  ///< index in BoundPlan::tied of the parameter; absent: all that the stage does not share
};

/// By stage, the sums of its Reduce in order: over its replicas, if it has several, that of all parameters that it does
/// not share, then those of each parameter in BoundPlan::shared, over all holders. Precondition: the plan is valid for
/// the graph.
[[nodiscard]] std::vector<std::vector<GradientSum>> gradient_sums(const Graph& graph, const BoundPlan& plan);

/// Bytes of the layer's parameters that no other layer shares.
[[nodiscard]] Bytes untied_bytes(const Layer& layer);

/// Gradients that replicas sum while a backward goes on.
struct LayersBucket {
  Bytes bytes;
  std::size_t first = 0;  ///< the layer whose backward completes it
};

/// The buckets of layers with these bytes. A backward completes the gradients from the last layer to the first: a
/// bucket takes layers until it has `full` bytes; a layer stays together. Layers without bytes complete nothing.
[[nodiscard]] std::vector<LayersBucket> fill_buckets(std::span<const Bytes> layers, Bytes full);

}  // namespace stagecraft
