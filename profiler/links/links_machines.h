#pragma once

#include <functional>
#include <string>
#include <vector>

#include "costmodel/topology.h"
#include "executor/channel/channel.h"
#include "profiler/links/links.h"

namespace stagecraft::profiler {

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
