#pragma once

#include <vector>

#include "costmodel/topology.h"
#include "costmodel/units.h"

namespace stagecraft {

// Collectives of `ranks` devices joined by `link`, by formula. `data` is the whole buffer: what every rank holds before
// and after an all-reduce, after an all-gather and before a reduce-scatter. One rank takes no time. The arithmetic of
// sums and contention between links are not modelled. All throw std::invalid_argument if ranks < 1.

/// Time for a ring all-reduce: 2(n-1) steps, each moving data/n: 2(n-1) * (latency + data / (n * bandwidth)).
/// Source: Patarasuk & Yuan, JPDC 69(2), 2009.
[[nodiscard]] Seconds ring_all_reduce_time(Bytes data, int ranks, const Link& link);

/// Time for a ring reduce-scatter, the first half of a ring all-reduce: (n-1) * (latency + data / (n * bandwidth)).
/// Source: as above.
[[nodiscard]] Seconds ring_reduce_scatter_time(Bytes data, int ranks, const Link& link);

/// Time for a ring all-gather, the second half of a ring all-reduce: (n-1) * (latency + data / (n * bandwidth)).
/// Source: as above; Thakur, Rabenseifner & Gropp, IJHPCA 19(1), 2005.
[[nodiscard]] Seconds ring_all_gather_time(Bytes data, int ranks, const Link& link);

/// Time for an all-reduce over two binary trees, of which each carries half the data, first up, then down; pieces
/// follow each other so closely that both phases run at the link's bandwidth: 2 ceil(log2 n) * latency + 2 data /
/// bandwidth. Source: Sanders, Speck & Traff, Parallel Computing 35(12), 2009, as NCCL uses them.
[[nodiscard]] Seconds tree_all_reduce_time(Bytes data, int ranks, const Link& link);

/// Time for an all-reduce of `data` by `ranks` devices joined by `link`: the measured curve for that number of ranks;
/// else the measured reduce-scatter and all-gather together; else the ring, or with `tree` the faster of ring and tree.
[[nodiscard]] Seconds level_all_reduce_time(Bytes data, int ranks, const Link& link, bool tree);

/// Whether all-reduces by formula may take the tree: on GPUs, where NCCL takes what it estimates to be faster.
[[nodiscard]] bool may_use_trees(const Topology& topology);

// Collectives among `devices`, by level with the largest group of each. One device takes no time. All throw
// std::invalid_argument if `devices` is empty.

/// Time for an all-reduce of `data`. Inside one level: level_all_reduce_time. Across levels: reduce-scatter inside,
/// all-reduce of the share outside, all-gather inside; for an inner level the measured reduce-scatter and all-gather
/// for that number of ranks, else the measured all-reduce, else the ring.
[[nodiscard]] Seconds all_reduce_time(Bytes data, const std::vector<int>& devices, const Topology& topology);

/// Time for a reduce-scatter of `data`: inside each level, then of the share outside; the measured curve for that
/// number of ranks, else the ring.
[[nodiscard]] Seconds reduce_scatter_time(Bytes data, const std::vector<int>& devices, const Topology& topology);

/// Time for an all-gather after which every device holds `data`: of the share outside, then inside; the measured curve
/// for that number of ranks, else the ring.
[[nodiscard]] Seconds all_gather_time(Bytes data, const std::vector<int>& devices, const Topology& topology);

}  // namespace stagecraft
