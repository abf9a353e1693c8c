#pragma once

#include <vector>

#include "partitioner/strategy.h"

namespace stagecraft {

// The four ways in which DeepSpeed parts a list of layers. The list is the graph's layers in topological order without
// its inputs. All ignore links and memory; Constraints::replicas says how often a stage stands, and the balanced ones
// then give it that many times the work. `steady_state` is the slowest stage's forward + backward time over its
// replicas. More stages than layers, which DeepSpeed answers with empty stages, are Infeasible. Source: DeepSpeed,
// PipelineModule.partition_method.

/// Bounds 0 = b[0] <= .. <= b[parts] = layers of `parts` nearly equal runs, the remainder one each to the first ones.
/// With fewer layers than parts the last ones are empty. Throws std::invalid_argument for parts < 1 or layers < 0.
[[nodiscard]] std::vector<int> uniform_bounds(int layers, int parts);

/// Bounds of `parts` non-empty runs of `weights` whose heaviest, over its `replicas` (empty: 1 each), is as light as
/// can be; among equals the lexicographically largest bounds. Throws std::invalid_argument for parts outside 1..size of
/// weights, or a weight that is negative or not finite.
[[nodiscard]] std::vector<int> balanced_bounds(const std::vector<double>& weights, int parts,
                                               const std::vector<int>& replicas = {});

/// Equal numbers of layers.
[[nodiscard]] StrategyResult uniform_partition(const Graph&, const Topology&, const StrategyOptions&);

/// Balanced trainable parameter counts; parameter_bytes / 4 where a layer has no count.
[[nodiscard]] StrategyResult parameters_partition(const Graph&, const Topology&, const StrategyOptions&);

/// Balanced numbers of layers whose kind or name StrategyOptions::regex finds (ECMAScript, any case). Throws
/// std::invalid_argument for a regex that is not one, and for one that matches no layer, listing the kinds.
[[nodiscard]] StrategyResult type_partition(const Graph&, const Topology&, const StrategyOptions&);

/// Balanced forward + backward times.
[[nodiscard]] StrategyResult profile_partition(const Graph&, const Topology&, const StrategyOptions&);

}  // namespace stagecraft
