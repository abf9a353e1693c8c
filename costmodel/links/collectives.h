#pragma once

#include <optional>
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

/// Whether collectives are those of NCCL: on GPUs. It takes trees where it estimates them to be faster, and pipelines
/// what it sends over several levels.
[[nodiscard]] bool uses_nccl(const Topology& topology);

/// The time of a collective, and between which times it may lie for what is assumed about levels that work at the same
/// time; all are equal where nothing is assumed.
struct CollectiveTime {
  Seconds time;
  Seconds least;
  Seconds most;
  friend bool operator==(const CollectiveTime&, const CollectiveTime&) = default;
};

/// A collective among `devices`, of the bytes that Link counts. One device takes no time. At each level, the largest
/// group of devices counts.
///   one level    the measured curve for that number of ranks; else an all-reduce as level_all_reduce_time, the others
///                (n-1) * (latency + data / (n * bandwidth))
///   whole shape  the curve in Link::spans of that many ranks, so many in each group
///   NCCL         chunks follow each other through the levels, see below
///   others       one level after the other: reduce-scatter inside, all-reduce of the share outside, all-gather inside
/// NCCL's levels work at the same time: the slowest level + 0.1256 times the others; in `least` 0 times, in `most` 0.3
/// times and with 2.8 times the latencies, as NCCL's protocols differ. A level's time is that of its curve, without its
/// latency and in proportion to the bytes that cross a link; else bytes / bandwidth. With n devices in all and g inside
/// each group of a level,
///   a ring over all devices moves (n-1)/n * data / g over each link, an all-reduce twice that. Of its n-1 steps (an
///     all-reduce has twice as many), (k-1) * n / (k g) are at a level of k groups. n chunks go around, so the slowest
///     level takes its own time, or if that is more, that of a chunk: latency and share of the level's time of each
///     step.
///   a tree does a whole all-reduce in the innermost level, and moves 2 data / g over each other link, but data / g
///     between two groups; 2 ceil(log2 k) messages have the latency of a level of k groups, and as many pieces of at
///     most 1 MiB and a quarter of the data must pass before all levels work; both add to the slowest level.
///   an all-to-all sends each device's (k-1) g / n of the data over the links of a level; latencies add.
/// All-reduces take the tree or the ring as NCCL's tuner does.
/// Sources: NCCL 2.28, src/graph/tuning.cc (choice) and src/enqueue.cc (pieces of 64 KiB in 16 channels); Miao et al.,
/// Galvatron, PVLDB 16(3), 2022 (two activities at once: 1.1256).
/// Throws std::invalid_argument if `devices` is empty.
[[nodiscard]] CollectiveTime collective_time(Collective collective, Bytes data, const std::vector<int>& devices,
                                             const Topology& topology);

/// A measured curve that collective_time takes for a level of a topology, and the bytes at which.
struct CurveUse {
  const Curve* curve = nullptr;
  Bytes bytes;
};

/// The curves that collective_time may take for a level, empty if none, and absent if it does not depend on the level.
/// Precondition: `devices` is not empty.
[[nodiscard]] std::optional<std::vector<CurveUse>> curves_used(Collective collective, Bytes data,
                                                               const std::vector<int>& devices,
                                                               const Topology& topology, int level);

/// collective_time of one collective.
[[nodiscard]] Seconds all_reduce_time(Bytes data, const std::vector<int>& devices, const Topology& topology);
[[nodiscard]] Seconds reduce_scatter_time(Bytes data, const std::vector<int>& devices, const Topology& topology);
[[nodiscard]] Seconds all_gather_time(Bytes data, const std::vector<int>& devices, const Topology& topology);

/// Time in which each of `devices` sends `data` to the next one and receives as much: that of the slowest level. Among
/// more than 64 GPUs of several levels, a message has one channel of NCCL instead of two, which NCCL takes to carry 14
/// GB/s; `least` is that of two. Source: ncclTopoGetNchannels in src/graph/paths.cc of NCCL 2.28, and
/// NCCL_P2P_PER_CHANNEL_NET_BW. Throws std::invalid_argument if `devices` is empty.
[[nodiscard]] CollectiveTime neighbour_exchange_time(Bytes data, const std::vector<int>& devices,
                                                     const Topology& topology);

}  // namespace stagecraft
