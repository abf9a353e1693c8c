#pragma once

#include <c10/core/Device.h>

#include <string>

#include "costmodel/graph.h"
#include "costmodel/topology.h"

namespace stagecraft::device {

/// Processor model and library versions of this machine, with today's date; `tool` names the program. For a GPU, the
/// device is its model, and the notes have its UUID, the CUDA version of its driver, the processor, and whether TF32 is
/// allowed.
[[nodiscard]] Provenance provenance_here(const std::string& tool, c10::Device device = c10::Device(c10::kCPU));

/// The device of each of `ranks` ranks on this machine: the processor model, with an equal share of the physical
/// memory. Throws std::invalid_argument if ranks < 1.
[[nodiscard]] Device device_here(int ranks);

/// `device` of this machine, for Graph::device. Throws DeviceError if there is no such GPU.
[[nodiscard]] MeasuredDevice measured_device_here(c10::Device device);

}  // namespace stagecraft::device
