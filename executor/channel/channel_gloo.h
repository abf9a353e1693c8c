#pragma once

#include <chrono>
#include <memory>

#include "executor/channel/channel.h"
#include "executor/channel/channel_kind.h"
#include "executor/meeting/launch_info.h"

namespace stagecraft::channel {

/// The Gloo channel of a run over TCP. Call after `join`. Listens on the interface that GLOO_SOCKET_IFNAME names, else
/// at LaunchInfo::listen, else at this machine's address on the route to the rendezvous server (loopback if that is
/// local). All ranks prove to each other over the new connections that they know the run's secret. Collective: returns
/// when all ranks are connected. Throws PeerError if that takes longer than the deadline. Waits are recorded in
/// `activity`, if given.
[[nodiscard]] std::unique_ptr<Channel> make_gloo_channel(const meeting::LaunchInfo& launch,
                                                         std::chrono::milliseconds deadline,
                                                         std::shared_ptr<Activity> activity = nullptr);

/// The entry of the table of channels.
[[nodiscard]] ChannelKind gloo_channel();

}  // namespace stagecraft::channel
