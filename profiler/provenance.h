#pragma once

#include <string>

#include "costmodel/graph.h"
#include "costmodel/topology.h"

namespace stagecraft {

/// Processor model and library versions of this machine, with today's date; `tool` names the program.
[[nodiscard]] Provenance provenance_here(const std::string& tool);

/// What one of `ranks` ranks on this machine has: the processor model and its share of the physical memory.
/// Throws std::invalid_argument for fewer than 1.
[[nodiscard]] Device device_here(int ranks);

}  // namespace stagecraft
