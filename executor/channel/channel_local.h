#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "executor/channel/channel.h"
#include "executor/channel/channel_kind.h"

namespace stagecraft::channel {

/// `ranks` channels between threads of one process; tensors are handed over, not copied. Waits longer than `deadline`
/// fail.
[[nodiscard]] std::vector<std::unique_ptr<Channel>> make_local_channels(int ranks, std::chrono::milliseconds deadline);

/// The entry of the table of channels.
[[nodiscard]] ChannelKind local_channel();

}  // namespace stagecraft::channel
