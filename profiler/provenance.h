#pragma once

#include <c10/core/Device.h>

#include "costmodel/topology.h"

namespace stagecraft {

/// What one of `ranks` ranks on this machine has: the processor model and its share of the physical memory.
/// Throws std::invalid_argument for fewer than 1.
[[nodiscard]] Device device_here(int ranks);

/// The device on which a graph is measured here: Graph::device. Throws DeviceError without the GPU `device`.
[[nodiscard]] MeasuredDevice measured_device_here(c10::Device device);

}  // namespace stagecraft
