#pragma once

#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"
#include "costmodel/topology.h"

namespace stagecraft {

/// A measurement that a profile does not have, and that the time of a plan depends on.
struct Unmeasured {
  std::string text;       ///< "the profile lacks the slowdown of 3 ranks on a host; ..."
  double half_width = 0;  ///< of a 90 % interval of the step, as a share; assumed
};

/// What the profile of a CPU lacks for `plan`: the slowdown of as many ranks as share a host (profile --concurrent),
/// and that of several microbatches in flight, which --max-seconds may have cut. None for other graphs, and where the
/// topology's devices are not those of the profile.
[[nodiscard]] std::vector<Unmeasured> unmeasured(const Graph& graph, const Topology& topology, const BoundPlan& plan);

/// Whether the GPU waited for the host in more than 0.5 % of the profiled time: its kernels are about as short as their
/// launches, so that the host's speed, too, decides how long a step takes. False for a profile of a CPU.
[[nodiscard]] bool waits_for_launches(const Graph& graph);

/// "the GPU waits for kernel launches in 4.7 % of a step, so ..."; empty unless waits_for_launches.
[[nodiscard]] std::string launches_text(const Graph& graph);

}  // namespace stagecraft
