#pragma once

#include <c10/core/Device.h>

#include <string>

#include "costmodel/graph.h"

namespace stagecraft {

/// Processor model and library versions of this machine, with today's date; `tool` names the program. For a GPU its
/// model is the device, and the notes hold its UUID, what its driver serves, and the processor.
[[nodiscard]] Provenance provenance_here(const std::string& tool, c10::Device device = c10::Device(c10::kCPU));

}  // namespace stagecraft
