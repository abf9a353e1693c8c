#pragma once

#include <chrono>
#include <functional>

#include "executor/channel/nccl/channel_nccl.h"

namespace stagecraft {

/// Runs `body` once per rank, each in a thread with an NCCL channel over the fake library, on CPU tensors. All end,
/// then the channels are destroyed, and no object of the library may be left. Rethrows the first exception.
void run_on_nccl(int ranks, const channel::NcclProgram& program, std::chrono::milliseconds deadline,
                 const std::function<void(int rank, channel::Channel&)>& body, const channel::NcclOptions& options = {},
                 std::chrono::milliseconds control_deadline = std::chrono::seconds(20));

}  // namespace stagecraft
