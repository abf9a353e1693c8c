#pragma once

#include <functional>
#include <string>

#include "executor/channel/channel.h"
#include "profiler/links.h"

namespace stagecraft {

/// Measures `channel`: every rank calls it, rank 0 leads and gets the measurement, the others but their number.
/// `threads` are the intra-op threads of a rank, as a run will have: they add in all-reduce and reduce-scatter.
/// One way is half a ping-pong: the first rank's time from posting its receive and its send until both are done, the
/// other rank sending as soon as it has received. Duplex is rank 0's time in such an exchange when the other rank does
/// not wait for the message to send its own, a collective rank 0's time in the call; one is right behind the other.
/// `progress` is told on rank 0 alone. Throws std::invalid_argument for a channel of one rank and less than one thread,
/// as measure_links of a meter, and PeerError as the channel.
[[nodiscard]] LinkMeasurement measure_links(Channel& channel, const LinksOptions& options, int threads,
                                            const std::function<void(const std::string&)>& progress = {});

}  // namespace stagecraft
