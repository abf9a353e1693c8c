#pragma once

#include <variant>
#include <vector>

#include "partitioner/candidate.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

// The four ways in which DeepSpeed divides a list of layers. The list is the graph's layers in topological order
// without its inputs. All ignore links and memory; Constraints::replicas is the number of replicas of each stage, and
// the balanced ones then give it that many times the work, up to the number of microbatches of a step. The steady state
// is the slowest stage's forward + backward time over its busy replicas. They use Constraints::stages; if it is absent,
// there are as many stages as entries in replicas, or one per device. More stages than layers, which DeepSpeed answers
// with empty stages, are Infeasible. Source: DeepSpeed, PipelineModule.partition_method.

/// Bounds 0 = b[0] <= .. <= b[parts] = layers of `parts` nearly equal runs; the first ones get one more each. With
/// fewer layers than parts the last ones are empty. Throws std::invalid_argument for parts < 1 or layers < 0.
[[nodiscard]] std::vector<int> uniform_bounds(int layers, int parts);

/// Bounds of `parts` non-empty runs of `weights` whose heaviest, over its `replicas` (empty: 1 each), is as light as
/// possible; on ties, the lexicographically largest bounds. Throws std::invalid_argument for parts outside 1..size of
/// weights, or a weight that is negative or not finite.
[[nodiscard]] std::vector<int> balanced_bounds(const std::vector<double>& weights, int parts,
                                               const std::vector<int>& replicas = {});

// Each returns a plan, or why there is none. They throw std::invalid_argument for stages and replicas that do not agree
// or are below 1.

/// Equal numbers of layers.
[[nodiscard]] std::variant<Candidate, Infeasible> uniform_candidate(const Graph& graph, const Topology& topology,
                                                                    const Constraints& constraints);

/// Balanced trainable parameter counts; parameter_bytes / 4 where a layer has no count.
[[nodiscard]] std::variant<Candidate, Infeasible> parameters_candidate(const Graph& graph, const Topology& topology,
                                                                       const Constraints& constraints);

/// Balanced forward + backward times.
[[nodiscard]] std::variant<Candidate, Infeasible> profile_candidate(const Graph& graph, const Topology& topology,
                                                                    const Constraints& constraints);

inline constexpr const char* kProfileStrategy = "profile";

/// "uniform", "parameters", "type:REGEX" and "profile". The third balances the numbers of layers whose kind or name
/// matches the option REGEX (ECMAScript, case-insensitive); its plan throws std::invalid_argument for an invalid regex,
/// and for one that matches no layer, listing the kinds.
[[nodiscard]] Strategy uniform_strategy();
[[nodiscard]] Strategy parameters_strategy();
[[nodiscard]] Strategy type_strategy();
[[nodiscard]] Strategy profile_strategy();

}  // namespace stagecraft::partitioner
