#pragma once

#include <vector>

#include "costmodel/simulation/simulation_input.h"
#include "costmodel/timeline.h"
#include "costmodel/units.h"

namespace stagecraft {

/// The chain of actions that determines when a replay ends.
struct CriticalPath {
  /// In the order of time, without gaps: each begins when the previous one ends. Computations and updates with the
  /// slowdown by other ranks of their host; messages (the Send of their sender) from the moment both ends are ready and
  /// the lane is free; a Reduce from the arrival of its last member. The first begins and the last ends with the
  /// replayed time.
  std::vector<Span> segments;
  /// For each rank, how much later each of its computations, reductions and updates (in the order of its list) could
  /// end without delaying the end of the replay, if nothing else took longer. 0 on the path, infinite for actions after
  /// that end.
  std::vector<std::vector<Seconds>> slack;
};

/// The critical path of the replay `timeline` of `input` from `begin` to the end of step `last`. Lengthening an action
/// on it lengthens the replay by the same time; lengthening an action with slack by no more than its slack does not.
/// Both are exact where ranks share neither links nor hosts and gradients are not reduced in buckets, since sharing
/// changes the rates of others. Throws std::invalid_argument for TransferMode::Latency and for a timeline that is not
/// the lists' own, such as one with a gap.
/// Source: the critical path method, Kelley & Walker, Proc. Eastern Joint Computer Conference, 1959.
[[nodiscard]] CriticalPath critical_path(const SimulationInput& input, const Timeline& timeline, Seconds begin,
                                         int last);

}  // namespace stagecraft
