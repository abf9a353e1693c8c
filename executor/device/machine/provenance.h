#pragma once

#include <c10/core/Device.h>

#include <string>

#include "costmodel/graph.h"

namespace stagecraft::device {

/// Processor model and library versions of this machine, with today's date; `tool` names the program. For a GPU, the
/// device is its model, and the notes have its UUID, the CUDA version of its driver, the processor, and whether TF32 is
/// allowed.
[[nodiscard]] Provenance provenance_here(const std::string& tool, c10::Device device = c10::Device(c10::kCPU));

}  // namespace stagecraft::device
