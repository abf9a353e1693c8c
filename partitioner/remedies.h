#pragma once

#include <functional>
#include <optional>
#include <string>

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"

namespace stagecraft::partitioner {

/// Bytes of the neediest stage that the same request would come to; absent if it has no plan then.
using NeedOf = std::function<std::optional<Bytes>(const Graph&, const Topology&, const PlanSettings&)>;

/// What would bring a request within `limit` bytes on a device, to follow the message that it needs more: "; would fit:
/// --recompute (600 MiB), ...". Tried, by `need`: recomputation, of whole stages and in segments of 1, 2, 4, ...
/// layers; microbatches of half, a quarter, ... of the samples, whose activations are taken in proportion; twice, four
/// times, .. the groups of the outermost level, up to 8 times; recomputation of the smallest microbatches. What does
/// not fit either is told with what it needs.
[[nodiscard]] std::string remedies_text(const Graph& graph, const Topology& topology, const PlanSettings& settings,
                                        Bytes limit, const NeedOf& need);

/// The graph of microbatches of `samples` samples: all bytes but those of parameters and gradients in proportion,
/// rounded up. Times stay. Precondition: the graph states its microbatch.
[[nodiscard]] Graph with_samples(Graph graph, std::int64_t samples);

}  // namespace stagecraft::partitioner
