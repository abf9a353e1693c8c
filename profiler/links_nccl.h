#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "profiler/links.h"

namespace stagecraft {

/// A meter of NCCL between the first `ranks` GPUs of this machine (absent: all of them), one thread for each, on a
/// stream of its own, timed by events on that stream; a sample is that of the slowest GPU. A transfer one way is half a
/// ping-pong of two; of one GPU alone it goes to itself, in a group. An operation goes ahead of the first event, so
/// that all have arrived. In all-gather and reduce-scatter a rank's share is rounded up to whole floats.
/// Building it sets up nothing but streams; communicators come with the tasks that need them.
/// seconds_of throws DeviceError when a call fails or a GPU is not done within `deadline`; then the meter is of no use.
/// Throws std::invalid_argument if `ranks` is not in 1..GPUs, DeviceError saying what was found and what to do where
/// there is no GPU, and, in a build without CUDA, one that names the option which builds it.
[[nodiscard]] std::unique_ptr<LinkMeter> make_nccl_meter(std::optional<int> ranks, std::chrono::milliseconds deadline);

}  // namespace stagecraft
