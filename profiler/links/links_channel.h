#pragma once

#include <functional>
#include <string>

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

}  // namespace stagecraft::profiler
