#pragma once

#include <string>

#include "costmodel/graph.h"

namespace stagecraft {

/// Whether the GPU waited for the host in more than 0.5 % of the profiled time: its kernels are about as short as their
/// launches, so that the host's speed, too, decides how long a step takes. False for a profile of a CPU.
[[nodiscard]] bool waits_for_launches(const Graph& graph);

/// "the GPU waits for kernel launches in 4.7 % of a step, so ..."; empty unless waits_for_launches.
[[nodiscard]] std::string launches_text(const Graph& graph);

}  // namespace stagecraft
