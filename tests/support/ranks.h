#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "executor/channel/channel.h"

namespace stagecraft {

/// The channels that this program's suite runs on: those of the table that carry tensors on CPUs, or, in a program with
/// nccl_ranks.cpp, the others, over libraries that pretend.
[[nodiscard]] std::vector<std::string> suite_channels();

/// Runs `body` once per rank, each in a thread of this process with its channel of the kind `name`. All end, then the
/// channels go. Rethrows the first exception, having aborted the others.
void run_on_ranks(const std::string& name, int ranks, std::chrono::milliseconds deadline,
                  const std::function<void(channel::Channel&)>& body);

}  // namespace stagecraft
