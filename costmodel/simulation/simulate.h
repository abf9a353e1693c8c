#pragma once

#include <cstddef>
#include <variant>

#include "costmodel/errors.h"
#include "costmodel/simulation/simulation_input.h"
#include "costmodel/timeline.h"

namespace stagecraft {

/// The timeline of the steps, or the reason for a deadlock: the cycle of actions that wait for each other. Forward,
/// Backward, WeightGradient and Update spans are computation; a Receive span is the time for which the rank waited for
/// that message; a Send span is the message's own time on the link; a Reduce span runs from this rank's arrival to the
/// end, with what its buckets did not reduce before. Of several Reduces of a rank in one reduce group the last one does
/// the work of all, the others take no time. Reduce and Update belong to the step of the rank's gradient before
/// them. A step lasts from the end of the step before to the end of its last action. The result is deterministic.
/// Throws std::invalid_argument if both ends of an edge disagree on order.
[[nodiscard]] std::variant<Timeline, Infeasible> simulate(const SimulationInput& input);

/// Simulates, and compares the state after each cycle of the first rank: the position of each rank and lane, the
/// messages under way, and all times relative to now, which count as equal within 1e-10 of the period. Where times are
/// maxima and sums of earlier ones, a difference never grows (except with shared links and hosts): n periods err by
/// 1e-10. Finds nothing in TransferMode::Latency.
[[nodiscard]] std::variant<Timeline, Infeasible> simulate_and_watch(const SimulationInput& input, PeriodSearch& watch);

/// Number of actions in the lists.
[[nodiscard]] std::size_t action_count(const SimulationInput& input);

}  // namespace stagecraft
