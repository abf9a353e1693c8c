#pragma once

#include <vector>

#include "costmodel/topology.h"

namespace stagecraft::partitioner {

/// Ways to assign devices to stages, one per replica, other than in order: stages of a size that fits into a group of
/// the innermost level without dividing one, the largest first; and for equally replicated stages, replica j of all
/// stages as close together as possible. With chunks, stages that differ by the number of positions share devices. Each
/// way is listed once; none may remain.
[[nodiscard]] std::vector<std::vector<std::vector<int>>> placements(const Topology& topology,
                                                                    const std::vector<int>& replicas, int chunks);

}  // namespace stagecraft::partitioner
