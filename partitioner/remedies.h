#pragma once

#include <functional>
#include <optional>
#include <string>

#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/topology.h"

namespace stagecraft::partitioner {

/// Bytes of the largest stage for the same request on another graph and topology; absent if it then has no plan.
using NeedOf = std::function<std::optional<Bytes>(const Graph&, const Topology&, const PlanSettings&)>;

/// Changes that would bring a request within `limit` bytes per device, to append to the message that it needs more: ";
/// these would fit: --recompute (600 MiB), ...". Tries, by `need`: recomputation of whole stages and in segments of 1,
/// 2, 4, ... layers; microbatches of half, a quarter, ... of the samples, whose activations scale in proportion; twice,
/// four times, ... the groups of the outermost level, up to 8 times; recomputation of the smallest microbatches.
/// Changes that do not fit either are listed with their memory.
[[nodiscard]] std::string remedies_text(const Graph& graph, const Topology& topology, const PlanSettings& settings,
                                        Bytes limit, const NeedOf& need);

/// The graph of microbatches of `samples` samples: all bytes except parameters and gradients scale in proportion,
/// rounded up. Times are unchanged. Precondition: the graph gives its microbatch.
[[nodiscard]] Graph with_samples(Graph graph, std::int64_t samples);

}  // namespace stagecraft::partitioner
