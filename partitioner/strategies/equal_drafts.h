#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/candidate.h"
#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

inline constexpr const char* kEqualShares = "equal shares";

/// A candidate whose stages all have the same number of replicas.
struct EqualDraft {
  std::string origin;  ///< "equal shares, 4 stages of 8 replicas"
  Candidate candidate;
};

/// The best splits into equal shares (see EqualShares) that fit in memory, on devices in order and as in placements: 1,
/// 2, ... stages on all devices, on a half, a quarter, ... of the devices, and with replica counts that divide the
/// microbatches. If the schedule can run several stages per device, also with 2, 4 and 8 of them. Constraints::stages,
/// chunks and replicas restrict these shapes. Of all shapes, the ones with the shortest estimated steps are used, one
/// after the other until `stop` returns true. Asks `costs` for the memory of plans.
[[nodiscard]] std::vector<EqualDraft> equal_drafts(
    const Graph& graph, const Topology& topology, const CostModel& costs, const Constraints& constraints,
    const std::function<bool()>& stop = [] { return false; });

/// The split into equal shares with the smallest bound of its memory; absent if the constraints allow no such split.
[[nodiscard]] std::optional<EqualDraft> smallest_equal_draft(const Graph& graph, const Topology& topology,
                                                             const Constraints& constraints);

/// An estimate of the shortest step of the splits into equal shares, found much faster; absent if none seems to fit.
[[nodiscard]] std::optional<Seconds> estimated_step(const Graph& graph, const Topology& topology,
                                                    const Constraints& constraints);

}  // namespace stagecraft::partitioner
