#pragma once

#include <chrono>
#include <functional>

#include "executor/channel/channel_nccl.h"

namespace stagecraft {

/// Runs `body` once per rank, each in a thread with an NCCL channel over the fake library, on CPU tensors. Channels are
/// destroyed once all have ended, and must leave nothing in the library. Rethrows the first exception.
void run_on_nccl(int ranks, const channel::NcclProgram& program, std::chrono::milliseconds deadline,
                 const std::function<void(int rank, channel::Channel&)>& body,
                 const channel::NcclOptions& options = {});

}  // namespace stagecraft
