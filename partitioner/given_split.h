#pragma once

#include <optional>
#include <string>
#include <vector>

#include "costmodel/graph.h"
#include "costmodel/topology.h"
#include "partitioner/candidate.h"

namespace stagecraft::partitioner {

/// A given split as a candidate: stages that begin at the layers `names`, see bounds_at, with `replicas` for each
/// (empty: 1 each). The steady state is the slowest stage's forward + backward time over its replicas, of which only as
/// many count as there are `microbatches` (absent: all). Throws std::invalid_argument as bounds_at does, and for
/// replicas that are not one number per stage. With `chunks` stages per device (see check_chunks, which throws) it is
/// that of the slowest device.
[[nodiscard]] Candidate split_candidate(const Graph& graph, const std::vector<std::string>& names,
                                        const std::vector<int>& replicas, std::optional<int> microbatches = {},
                                        int chunks = 1);

/// The same for a partition, with `devices` for each stage (empty: in order) and `warmups` (empty: by warmup_counts).
/// `replicas`, if not empty, replace the partition's own. Throws std::invalid_argument for both replicas and devices.
[[nodiscard]] Candidate given_candidate(const Graph& graph, Partition partition, std::vector<std::vector<int>> devices,
                                        std::vector<int> warmups, const std::vector<int>& replicas,
                                        std::optional<int> microbatches = {}, int chunks = 1);

}  // namespace stagecraft::partitioner
