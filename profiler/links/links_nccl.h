#pragma once

#include <chrono>
#include <memory>
#include <optional>

#include "profiler/links/links.h"

namespace stagecraft::profiler {

/// A meter of NCCL between the first `ranks` GPUs of this machine; all GPUs if absent. Each GPU has its own thread and
/// stream and is timed by events on that stream; a sample is the time of the slowest GPU. A transfer one way is half a
/// ping-pong; a single GPU sends to itself, in a group. One operation runs before the first event, so that all ranks
/// are ready. In all-gather and reduce-scatter, each rank's share is rounded up to whole floats. Communicators are
/// created with the first task that needs them. seconds_of throws DeviceError if a call fails or a GPU does not finish
/// within `deadline`; after that, the meter cannot be used. make_nccl_meter throws std::invalid_argument if `ranks` is
/// not in 1..GPUs, and DeviceError, with advice, if there is no GPU or if this build has no CUDA.
[[nodiscard]] std::unique_ptr<LinkMeter> make_nccl_meter(std::optional<int> ranks, std::chrono::milliseconds deadline);

}  // namespace stagecraft::profiler
