#pragma once

#include <optional>

#include "costmodel/simulation/closed_forms.h"
#include "costmodel/simulation/simulation_input.h"

namespace stagecraft {

/// Lower and upper bounds of the step that simulate() gives, from sums and maxima over stages and boundaries; no list
/// is replayed. The step of an asynchronous schedule is the mean of BoundPlan::step_window. Both bounds hold in both
/// TransferModes, with messages that share ports, any boundaries, replicas, buckets, reduces and updates.
/// Absent where ranks share a host or messages take processor time, and for an asynchronous schedule whose stages sum
/// gradients. Precondition: the lists are those of BoundPlan::action_lists with a prefetch of 2 or more.
///
/// low: a rank's work, after the longest chain of forwards and messages to its first action and before the longest
/// chain of backwards and messages from its last backward, its sum and its update. Asynchronous: the work of the
/// window's microbatches but those that a full pipeline holds.
///
/// high, the least of those that apply:
///   all work and all messages, one after the other: something is always under way, and messages that share a port
///     take as much time as one after the other;
///   gpipe, forward: a flow shop, sum F' + (M-1) max F, and the same for backwards;
///   1f1b, zb-h1, interleaved-1f1b: the longest chain of actions that wait for each other passes at most M + p - 1
///     forwards and as many backwards, of which one is of each stage: sum F' + sum B' + (M-1) (max F' + max B'), F' and
///     B' with their messages; interleaved, M v + p - 1 of each;
///   1f1b with any replicas: a periodic step, in which microbatch m of each stage begins m P after the first one. P is
///     the least period that keeps every order and every message. A replay begins each action as soon as it can, so
///     none is later than in this step.
/// The proofs are beside the code. Source: derived; Johnson, Naval Research Logistics Quarterly 1(1), 1954 (flow
/// shops).
[[nodiscard]] std::optional<Bracket> step_bracket(const SimulationInput& input);

}  // namespace stagecraft
