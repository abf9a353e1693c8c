#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/candidate.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

inline constexpr const char* kEqualShares = "equal shares";

/// A candidate with as many replicas of each stage.
struct EqualDraft {
  std::string origin;  ///< "equal shares, 4 stages of 8 replicas"
  Candidate candidate;
};

/// The best splits into equal shares (see EqualShares) that fit in memory, in order and placed: 1, 2, ... stages, each
/// on all devices, on a half, a quarter, ... of them, and of as many replicas as divide the microbatches; where the
/// schedule can run several stages per device, with 2, 4 and 8 of them; with Constraints::stages, chunks or replicas
/// only those. Of all shapes, those with the shortest estimated steps. Asks `costs` for the memory of plans.
[[nodiscard]] std::vector<EqualDraft> equal_drafts(const Graph& graph, const Topology& topology, const CostModel& costs,
                                                   const Constraints& constraints);

/// The split into equal shares that needs the least memory, by bounds of it; absent if the constraints allow none.
[[nodiscard]] std::optional<EqualDraft> smallest_equal_draft(const Graph& graph, const Topology& topology,
                                                             const Constraints& constraints);

/// About the shortest step of such splits, found much faster; absent if none seems to fit.
[[nodiscard]] std::optional<Seconds> estimated_step(const Graph& graph, const Topology& topology,
                                                    const Constraints& constraints);

/// The numbers of stages per device that strategies try: the one of the constraints, else 1 and, where the schedule
/// can run several, 2, 4 and 8.
[[nodiscard]] std::vector<int> chunk_counts(const Constraints& constraints);

}  // namespace stagecraft::partitioner
