#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "executor/channel/channel.h"
#include "executor/channel/channel_kind.h"
#include "executor/meeting/launch_info.h"

namespace stagecraft::channel {

/// The UCX channel of a run on CPUs. Call after `join`. Ranks that can share memory use only that; others also TCP on
/// the interface towards the rendezvous server, and InfiniBand or RoCE where there is any. UCX_TLS and UCX_NET_DEVICES
/// override the choice. Its ports accept only the machines of the run. All ranks prove to each other over the new
/// connections that they know the run's secret; after that, the ports accept no further connections. Collective:
/// returns when all ranks are connected. Throws PeerError if that takes longer than the deadline, DeviceError if UCX is
/// not available. Waits are recorded in `activity`, if given. `transports` replaces the choice, as UCX_TLS does.
[[nodiscard]] std::unique_ptr<Channel> make_ucx_channel(const meeting::LaunchInfo& launch,
                                                        std::chrono::milliseconds deadline,
                                                        std::shared_ptr<Activity> activity = nullptr,
                                                        const std::string& transports = "");

/// Why this build or this machine does not have the channel ucx; empty if it does.
[[nodiscard]] std::string why_no_ucx();

/// The version of UCX that a run would use, for --version: "UCX 1.13.1"; "UCX not found" if it cannot be loaded,
/// "without UCX" if it was not built in. Loads the library.
[[nodiscard]] std::string ucx_version();

/// The entry of the table of channels.
[[nodiscard]] ChannelKind ucx_channel();

}  // namespace stagecraft::channel
