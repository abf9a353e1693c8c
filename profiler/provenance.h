#pragma once

#include "costmodel/topology.h"

namespace stagecraft {

/// What one of `ranks` ranks on this machine has: the processor model and its share of the physical memory.
/// Throws std::invalid_argument for fewer than 1.
[[nodiscard]] Device device_here(int ranks);

}  // namespace stagecraft
