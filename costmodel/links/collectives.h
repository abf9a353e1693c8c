#pragma once

#include <vector>

#include "costmodel/topology.h"
#include "costmodel/units.h"

namespace stagecraft {

/// Time for a ring all-reduce of `data` held by each of `ranks` devices joined by `link`.
/// 2(n-1) steps, each moving data/n: 2(n-1) * (latency + data / (n * bandwidth)). One rank takes no time.
/// Throws std::invalid_argument if ranks < 1.
/// Source: Patarasuk & Yuan, JPDC 69(2), 2009; no contention between links is modelled.
[[nodiscard]] Seconds ring_all_reduce_time(Bytes data, int ranks, const Link& link);

/// Time for an all-reduce of `data` among `devices`. Inside one level: the measured curve for that number of ranks
/// if the level has one, else the ring. Across levels: reduce-scatter inside, all-reduce of the share outside,
/// all-gather inside, level by level with the largest group of each. One device takes no time.
/// Throws std::invalid_argument if `devices` is empty.
[[nodiscard]] Seconds all_reduce_time(Bytes data, const std::vector<int>& devices, const Topology& topology);

}  // namespace stagecraft
