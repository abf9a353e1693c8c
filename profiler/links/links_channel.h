#pragma once

#include <functional>
#include <string>
#include <vector>

#include "costmodel/topology.h"
#include "executor/channel/channel.h"
#include "profiler/links/links.h"

namespace stagecraft::profiler {

/// Measures `channel`. Every rank must call it. Rank 0 leads and gets the measurement; the other ranks get only the
/// number of ranks. `threads` is the number of intra-op threads of each rank, as in a run: they compute the sums of
/// all-reduce and reduce-scatter.
/// A transfer one way is half a ping-pong: the first rank's time from posting its receive and its send until both are
/// done, while the other rank sends as soon as it has received. Duplex is rank 0's time of such an exchange in which
/// the other rank sends at the same time. A collective is rank 0's time of the call. Runs follow each other without a
/// pause, except for readings of the yardstick between rounds, on rank 0. `progress` is called on rank 0 only. Throws
/// std::invalid_argument if the channel has only one rank or `threads` < 1, as measure_links of a meter does, and
/// PeerError as the channel does.
[[nodiscard]] LinkMeasurement measure_links(channel::Channel& channel, const LinksOptions& options, int threads,
                                            const std::function<void(const std::string&)>& progress = {});

/// Measures `meter`, whose ranks are GPUs of this process. Without a yardstick: it would need LibTorch's CUDA library,
/// which nothing else here does. Throws as measure_links of a meter does.
[[nodiscard]] LinkMeasurement measure_gpu_links(LinkMeter& meter, const LinksOptions& options,
                                                const std::function<void(const std::string&)>& progress = {});

/// Links between ranks on several machines: one machine's ranks among themselves, and the first ranks of all machines.
struct MachineLinks {
  int ranks_per_machine = 1;
  LinkMeasurement inside;  ///< no curves if each machine has one rank
  LinkMeasurement between;
};

/// Measures both, one after the other, as measure_links does. `machines`: the machine of each rank, counted from 0 in
/// the order of ranks. Every rank must call it; rank 0 gets the result. Throws std::invalid_argument unless there are
/// several machines, each with the same number of consecutive ranks.
[[nodiscard]] MachineLinks measure_machines(channel::Channel& channel, const std::vector<int>& machines,
                                            const LinksOptions& options, int threads,
                                            const std::function<void(const std::string&)>& progress = {});

/// topology_of the measurement: level "host" inside a machine, if it has several ranks, and level "network" between
/// machines. The notes of the latter begin with "network". The conditions are those inside the first machine, with the
/// other hosts as they were between machines.
[[nodiscard]] Topology topology_of(const MachineLinks& measured, const std::string& channel, Device device,
                                   const Provenance& provenance);

}  // namespace stagecraft::profiler
