#pragma once

#include <c10/core/Device.h>

#include "costmodel/topology.h"

namespace stagecraft::profiler {

/// The device of each of `ranks` ranks on this machine: the processor model, with an equal share of the physical
/// memory. Throws std::invalid_argument if ranks < 1.
[[nodiscard]] Device device_here(int ranks);

/// `device` of this machine, for Graph::device. Throws DeviceError if there is no such GPU.
[[nodiscard]] MeasuredDevice measured_device_here(c10::Device device);

}  // namespace stagecraft::profiler
