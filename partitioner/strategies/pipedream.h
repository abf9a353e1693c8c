#pragma once

#include <optional>
#include <variant>

#include "partitioner/candidate.h"
#include "partitioner/search/pipedream_search.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// PipeDream's partition: the contiguous stages and replica counts with the least time of the slowest stage, by the
/// cost formulas of its published optimizer on the topology's levels (counts and bandwidths; no latency, no curves).
/// `steady_state` is that time. A stage inside a replicated group of an outer level has the product of both replica
/// counts; `devices` keeps each copy of the group on its own machine. Layers that PipeDream skips (sinks called
/// __getitem__, branches that it never reaches) go to the earliest stage that keeps every edge going forward.
/// Infeasible, with the numbers, where its optimizer crashes: no stage fits in memory, more straight stages than cuts,
/// too many down-sets. Throws std::invalid_argument for a compression ratio or memory limit that is not positive.
/// Source: Narayanan et al., PipeDream, SOSP 2019, and its published optimizer; unlike there, the range of every stage
/// is checked to lie between nested sets, without which outer levels count layers that are not there.
[[nodiscard]] std::variant<Candidate, Infeasible> pipedream_candidate(const Graph& graph, const Topology& topology,
                                                                      const PipedreamOptions& options = {});

inline constexpr const char* kPipedreamStrategy = "pipedream";

/// "pipedream": pipedream_candidate. Constraints::memory_limit is PipeDream's own limit and switches its rule on.
/// Throws std::invalid_argument for Constraints::stages. Its objective is defined for topologies of one level.
[[nodiscard]] Strategy pipedream_strategy();

/// The switches that the strategy's options give.
[[nodiscard]] PipedreamOptions pipedream_options(const OptionValues& values);

}  // namespace stagecraft::partitioner
