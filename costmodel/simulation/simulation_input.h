#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/topology.h"
#include "costmodel/units.h"

namespace stagecraft {

/// How a message moves.
enum class TransferMode {
  Rendezvous,  ///< starts once sent and its receive is posted, one at a time per directed edge; links are shared
  Latency,     ///< arrives a fixed time after it was sent and does not occupy links; closed forms assume this
};

/// Processor time of a message at one end.
struct Handling {
  Seconds fixed;      ///< before the message leaves, or after all of it has arrived
  Seconds streaming;  ///< while it moves
};

/// A message between two ranks on otherwise idle links and processors: `latency` first, then `transmission` on the
/// ports. Flows on one port share it equally; a flow moves at the smaller of its two ports' shares. Port -1 is never
/// shared. Handling overlaps with that time and adds only what exceeds it. With MessageThread::Separate a message takes
/// the sender's fixed time, the rest of the latency, the longest of transmission and both ends' streaming, and the
/// receiver's fixed time; the thread of a rank handles one message end at a time, in the order in which they arise.
/// With MessageThread::Own, a Send occupies the rank for the sender's time; then the rest of the latency passes; the
/// receiver spends its time while it waits for a message, and transmission may continue after that. A wait receives all
/// messages that have arrived, one after the other.
struct Transfer {
  Seconds latency;
  Seconds transmission;
  int egress = -1;
  int ingress = -1;
  Handling sender = {};
  Handling receiver = {};
};

/// Linux looks for threads to move on the ticks of its timer, 250 a second unless it was built otherwise, and leaves a
/// thread that ran a moment ago where it is. Traces of its scheduler (sched_switch, sched_migrate_task) of seven plans
/// of three ranks on two processors over UCX had one move to an idle processor in 5.3 to 16 ms, median 8.4 ms, of idle
/// time beside a crowded processor (bench/accuracy/thread_moves).
inline constexpr Seconds kBalanceAfter{0.008};

/// Processor time that a rank loses with each message on a host with more threads than processors: the
/// switch between threads, and the caches that others have filled meanwhile. Three ranks on two processors had a
/// message 0.1 to 0.2 ms (median) after it was sent if they waited for it and did not wait for a processor too. A
/// message that had come before it was asked for took 0.05 ms; the simulation charges both alike.
inline constexpr Seconds kWakeOnCrowdedHost{0.0002};

/// The processors that ranks of one host share. Without any, as for ranks that compute on GPUs, every rank computes and
/// sends as if it were alone.
struct HostInput {
  std::vector<int> of_rank = {};      ///< number of its host; empty: every rank has a separate host
  std::vector<double> slowdown = {};  ///< slowdown[k-1] while k ranks of one host compute; empty: none
  /// Processors of each host, of which a computation needs `compute_processors` (all of them, if there are fewer) and
  /// the handling of a message one. If a host has fewer than its ranks have threads, each processor has a queue of
  /// threads that share it equally (RunQueues); a computation is as fast as the slowest of its threads. A slowdown of
  /// ranks that need n > 1 times the processors contains this: it is divided by n, but not below that of one rank less.
  /// Beyond the last slowdown, the last one applies. 0: unknown; processors are not shared, and beyond the last
  /// slowdown times grow in proportion to k.
  int processors = 0;
  int compute_processors = 1;
  /// Time for which processors are idle in all, while threads share another one, before a thread moves.
  Seconds balance_after = kBalanceAfter;
  /// Processor time added to the receiver's handling of a message where a host has fewer processors than its ranks have
  /// threads; see kWakeOnCrowdedHost.
  Seconds wake = {};
  MessageThread message_thread = MessageThread::Separate;  ///< that handles messages in TransferMode::Rendezvous
};

/// Gradients that replicas sum during the backward.
struct ReduceBucket {
  Seconds time;        ///< of the all-reduce
  Seconds before_end;  ///< time from completion of its gradients to the end of the last backward
};

/// Cost of one action on a device whose host runs nothing else.
struct StageCost {
  Seconds forward;          ///< of one microbatch
  Seconds backward;         ///< of one microbatch; only the input gradient if the schedule splits the backward
  Seconds weight_gradient;  ///< of one microbatch, if the schedule splits the backward
  Seconds reduce;           ///< of one Reduce, among all replicas
  Seconds update;           ///< of one Update
  Seconds gather = {};      ///< of one Gather, among all replicas; a rank's Gathers go one after the other
  Seconds tied = {};  ///< of the part of a Reduce that sums tied parameters over all their holders, after `reduce`
  /// Time of a backward that the lists do not split although they split others, as lists by hand may; absent:
  /// `backward`.
  std::optional<Seconds> whole_backward = {};
  std::vector<ReduceBucket> buckets = {};  ///< that come before `reduce`, one at a time, in this order
};

/// Time of a Forward, Backward, WeightGradient or Update; `splits`: a WeightGradient follows the Backward.
[[nodiscard]] inline Seconds time_of(const StageCost& stage, ActionKind kind, bool splits) {
  if (kind == ActionKind::Forward) return stage.forward;
  if (kind == ActionKind::Backward) return splits ? stage.backward : stage.whole_backward.value_or(stage.backward);
  return kind == ActionKind::WeightGradient ? stage.weight_gradient : stage.update;
}

/// All inputs of a simulation; predict() makes one from graph, topology and plan.
struct SimulationInput {
  BoundPlan plan;                          ///< stages of ranks, boundaries, reduce groups
  std::vector<std::vector<Action>> lists;  ///< one per rank
  std::vector<StageCost> stages;
  int steps = 1;  ///< covered by the lists; microbatch m belongs to step m / microbatches
  TransferMode mode = TransferMode::Rendezvous;
  /// Cost of one message of boundary `boundary` from one rank to another; `gradient`: of the gradient that comes back.
  std::function<Transfer(int boundary, bool gradient, int from_rank, int to_rank)> transfer = {};
  int ports = 0;         ///< number of port ids that `transfer` uses
  HostInput hosts = {};  ///< processors that ranks share; nothing for ranks on GPUs
};

/// Two moments between which a run repeats itself: at `to` everything is as it was at `from`, `microbatches` later, and
/// the lists continue as they did. A run whose lists have that period n more times takes n (to - from) longer.
struct Period {
  Seconds from;
  Seconds to;
  int microbatches = 0;
  std::vector<std::size_t> begin;  ///< for each list, the first action that is not done at `from`
  std::vector<std::size_t> end;    ///< and at `to`
};

/// The repetition that simulate_and_watch looks for, and its findings.
struct PeriodSearch {
  int cycle = 1;                                   ///< microbatches after which the lists of all ranks may repeat
  std::optional<Period> period = {};               ///< out: the first one, if any
  std::function<void(double done)> progress = {};  ///< called now and then with the fraction of actions done
};

}  // namespace stagecraft
