#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "executor/channel/channel.h"

namespace stagecraft {

/// The channels that this program's suite runs on: those of the table that carry tensors on CPUs, or, in a program with
/// nccl_ranks.cpp, NCCL's over fake libraries.
[[nodiscard]] std::vector<std::string> suite_channels();

/// The device that the channel of this name needs, as in channel::ChannelKind.
[[nodiscard]] std::string channel_device(const std::string& name);

/// Runs `body` once per rank, each in a thread of this process with a channel of the kind `name`. Channels are
/// destroyed once all have ended. After an exception aborts the other ranks and rethrows the first one.
void run_on_ranks(const std::string& name, int ranks, std::chrono::milliseconds deadline,
                  const std::function<void(channel::Channel&)>& body);

}  // namespace stagecraft
