#pragma once

#include "costmodel/prediction/predict.h"
#include "costmodel/timeline.h"
#include "costmodel/units.h"

namespace stagecraft {

/// Time per step in a run of many steps, at most, from the timeline of one step of a synchronous schedule in which all
/// ranks begin at time 0: a rank begins its next step when it has ended this one, while others may still work on it.
/// The longest time that a rank needs from the moment when the message that its first action waits for begins to move,
/// to its last action: if every rank repeats its actions after that time, none begins before those that it follows on
/// its rank, nor before its messages. An action that can begin earlier makes no other one later, unless they share
/// links or processors.
[[nodiscard]] Seconds steady_step(const Timeline& timeline);

/// The same of a prediction. With an asynchronous schedule, or without a timeline, its `iteration`.
[[nodiscard]] Seconds steady_step(const Prediction& prediction);

}  // namespace stagecraft
