#pragma once

#include <vector>

#include "costmodel/topology.h"
#include "costmodel/units.h"

namespace stagecraft {

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

}  // namespace stagecraft
