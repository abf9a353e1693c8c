#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/launch/rendezvous.h"
#include "executor/meeting/launch_info.h"

namespace stagecraft::launch {

/// Runs `body` once per channel, each in a separate thread, and returns when all have ended. Rethrows the first
/// exception, having aborted the channels of the others; to a missed deadline it adds one line per rank.
void run_as_threads(const std::vector<std::unique_ptr<channel::Channel>>& channels,
                    const std::function<void(channel::Channel&)>& body);

/// Joins the run of `launch` and runs `body`, which creates and sets the channel. If `body` returns, waits for the
/// other ranks at a barrier and leaves. If it throws, sends the others the reason while the channel is still open,
/// because a closed channel would look like the cause. Rethrows what `body` throws.
void run_as_process(const meeting::LaunchInfo& launch, std::chrono::milliseconds deadline,
                    const std::function<void(Rendezvous&, std::unique_ptr<channel::Channel>&)>& body);

/// Throws std::invalid_argument unless all ranks give the same `lines`, naming the first rank that differs from rank 0
/// and the first line of both that does. Every rank calls it.
void agree(Rendezvous& rendezvous, const std::vector<std::string>& lines);

/// The channel for a run in which no rank asks for a particular one. If it is not the best in the table, also the rank
/// that lacks the best.
struct AgreedChannel {
  std::string name;
  std::string note;  ///< a sentence, "" if there is nothing to say
};
/// The first of channel::fitting_channels for processes on `device` that all ranks have. Every rank calls it. Throws
/// std::invalid_argument if they have none in common.
[[nodiscard]] AgreedChannel agree_on_channel(Rendezvous& rendezvous, const std::string& device);

/// The machine of each rank, counted from 0 in the order of ranks. Ranks with different networks (containers, network
/// namespaces) count as on different machines. Every rank calls it.
[[nodiscard]] std::vector<int> machines_of(Rendezvous& rendezvous);

/// The clock that all processes of one machine share, in seconds; clocks of several machines start together at this
/// call. Every rank calls it.
[[nodiscard]] std::function<double()> common_clock(Rendezvous& rendezvous);

}  // namespace stagecraft::launch
