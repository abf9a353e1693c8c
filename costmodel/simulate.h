#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/timeline.h"
#include "costmodel/topology.h"

namespace stagecraft {

/// Gradients that replicas sum together, while the backward goes on.
struct ReduceBucket {
  Seconds time;        ///< of the all-reduce
  Seconds before_end;  ///< its gradients are complete so long before the last backward ends
};

/// What one action costs on a device that has its host for itself.
struct StageCost {
  Seconds forward;          ///< of one microbatch
  Seconds backward;         ///< of one microbatch; the input gradient alone if the schedule splits the backward
  Seconds weight_gradient;  ///< of one microbatch, if the schedule splits the backward
  Seconds reduce;           ///< of one Reduce, among all replicas (and other holders of tied parameters)
  Seconds update;           ///< of one Update
  std::vector<ReduceBucket> buckets = {};  ///< that go before `reduce`, one after the other, in this order
};

/// How a message moves.
enum class TransferMode {
  Rendezvous,  ///< starts when sent and its receive is posted, one at a time per directed edge, links shared
  Latency,     ///< arrives its time after it was sent and occupies nothing; closed forms assume this
};

/// A message between two ranks that has its links for itself: `latency` first, then `transmission` on the ports.
/// Flows on one port share it equally; a flow moves at the smaller of its two ports' shares. Port -1 is never shared.
struct Transfer {
  Seconds latency;
  Seconds transmission;
  int egress = -1;
  int ingress = -1;
};

/// All that a simulation needs; predict() makes one from graph, topology and plan.
struct SimulationInput {
  BoundPlan plan;                          ///< who runs what, what joins two stages, who reduces together
  std::vector<std::vector<Action>> lists;  ///< one per rank
  std::vector<StageCost> stages;
  int steps = 1;  ///< that the lists cover; microbatch m is of step m / microbatches
  TransferMode mode = TransferMode::Rendezvous;
  /// Cost of one message of boundary `boundary` from one rank to another, `gradient` back.
  std::function<Transfer(int boundary, bool gradient, int from_rank, int to_rank)> transfer = {};
  int ports = 0;                       ///< number of port ids that `transfer` uses
  std::vector<int> host_of_rank = {};  ///< empty: every rank has a host for itself
  std::vector<double> slowdown = {};   ///< slowdown[k-1] while k ranks of one host compute; empty: none
};

/// The timeline of the steps, or the reason why it cannot end: the actions that wait for each other in a circle.
/// Forward, Backward, WeightGradient and Update spans are computation; a Receive span is the time for which the rank
/// stood waiting for that message; a Send span is the message's own time on the link; a Reduce span runs from this
/// rank's arrival to the end, with what its buckets did not do before. Reduce and Update are of the step of the rank's
/// gradient before them. A step lasts from the end of the step before to the end of its last action. Deterministic.
/// Throws std::invalid_argument if both ends of an edge disagree on order.
[[nodiscard]] std::variant<Timeline, Infeasible> simulate(const SimulationInput& input);

/// Two moments between which a run repeats itself: at `to` everything is as it was at `from`, `microbatches` further
/// on, and the lists go on as they did. A run whose lists hold that stretch n times more lasts n (to - from) longer.
struct Period {
  Seconds from;
  Seconds to;
  int microbatches = 0;
  std::vector<std::size_t> begin;  ///< of each list, the first action that is not done at `from`
  std::vector<std::size_t> end;    ///< and at `to`
};

/// What simulate_and_watch looks for and tells.
struct PeriodSearch {
  int cycle = 1;                                   ///< microbatches after which the lists of all ranks may repeat
  std::optional<Period> period = {};               ///< out: the first one, if any
  std::function<void(double done)> progress = {};  ///< hears now and then which part of the actions is done
};

/// simulate, with an eye on the state after each cycle of the first rank: what each rank and lane is at, the messages
/// under way, and all times relative to now, which count as equal within 1e-10 of the period. Where times are maxima
/// and sums of earlier ones, a difference never grows (links and hosts that are shared apart): n periods err by 1e-10.
/// Finds nothing in TransferMode::Latency.
[[nodiscard]] std::variant<Timeline, Infeasible> simulate_and_watch(const SimulationInput& input, PeriodSearch& watch);

/// Number of actions in the lists.
[[nodiscard]] std::size_t action_count(const SimulationInput& input);

}  // namespace stagecraft
