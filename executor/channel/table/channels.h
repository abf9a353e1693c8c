#pragma once

#include <string>
#include <vector>

#include "executor/channel/channel_kind.h"

namespace stagecraft::channel {

/// All channels: local, ucx, gloo, nccl. The first that fits a run, and that all its ranks have, is the default.
[[nodiscard]] const std::vector<ChannelKind>& channels();
/// Their names, in the same order.
[[nodiscard]] std::vector<std::string> channel_names();
/// The one called `name`. Throws std::invalid_argument listing the names.
[[nodiscard]] const ChannelKind& channel_by_name(const std::string& name);
/// Throws DeviceError if this build or this machine does not have it.
void require(const ChannelKind& kind);
/// Those for ranks that compute on `device` ("cpu" or "cuda") as threads of one process, or as processes. Throws
/// std::invalid_argument if there is none.
[[nodiscard]] std::vector<const ChannelKind*> fitting_channels(const std::string& device, bool processes);
/// The first of them that this machine has, or else the last.
[[nodiscard]] const ChannelKind& default_channel(const std::string& device, bool processes);
/// The versions of all channels that have one, in the order of the alphabet: "Gloo (c10d), UCX 1.13.1".
[[nodiscard]] std::string channel_versions();
/// For --help: "local (ranks are threads of one process), ... or nccl (one process per rank, on GPUs)".
[[nodiscard]] std::string channels_text();

}  // namespace stagecraft::channel
