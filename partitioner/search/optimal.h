#pragma once

#include <string>

#include "partitioner/strategy.h"

namespace stagecraft::partitioner {

/// "optimal": the plan with the shortest predicted step among all contiguous stages on the graph, with any number of
/// replicas for each, on devices in order (as make_plan assigns them). Where the constraints do not give the chunks of
/// a schedule that runs several stages on a device, 1, 2, 4 and 8 are compared. The best of what `auto` compares is
/// never better; nor are other placements of the best plans, which are tried where a topology has several levels.
/// Its ranking says how far from the best its first plan can be at most: see Ranking::lower_bound. The option
/// kTimeLimit is how long it may search, beyond the candidates of `auto`.
/// How: best first by a lower bound. Splits are enumerated up to a bound that rises until it reaches the best predicted
/// step; those that a tighter bound does not exclude are predicted.
[[nodiscard]] Strategy optimal_strategy();

/// "the best possible", or "at most 2.1 % above the best possible": of a step of `iteration` and a lower bound.
[[nodiscard]] std::string gap_text(Seconds iteration, Seconds lower_bound);

}  // namespace stagecraft::partitioner
