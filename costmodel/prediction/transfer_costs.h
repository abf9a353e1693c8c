#pragma once

#include <string>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/graph.h"
#include "costmodel/simulation/simulation_input.h"
#include "costmodel/topology.h"

namespace stagecraft {

// What messages between ranks cost, in link time and in processor time. Precondition of all: the plan is valid for
// graph and topology.

/// The host of each rank: its group of the innermost level.
[[nodiscard]] std::vector<int> hosts_of(const BoundPlan& plan, const Topology& topology);

/// The thread that handles messages. Where hosts are joined, processes have a thread for that whatever the channel.
[[nodiscard]] MessageThread message_thread(const BoundPlan& plan, const Topology& topology);

/// Whether messages are charged with processor time: they are known to compete for processors with computations, or
/// ranks are known to do nothing else meanwhile.
[[nodiscard]] bool charges_messages(const Graph& graph, const BoundPlan& plan, const Topology& topology);

/// The processors that ranks of the plan share, and the thread that handles their messages. `charged`: messages take
/// processor time.
[[nodiscard]] HostInput host_input(const Graph& graph, const Topology& topology, const BoundPlan& plan, bool charged);

/// If ranks of the plan share the processors of a host and the topology lacks the processor time of messages there, a
/// sentence that says so; else empty.
[[nodiscard]] std::string message_processing_assumption(const Graph& graph, const Topology& topology,
                                                        const BoundPlan& plan);

/// The cost of each message. A message's tensors follow each other: the latency of the link (or the whole
/// transfer_time, if that is less) and the rest of transfer_time add up over them. Ports: two for each group of devices
/// (out, in) at each level.
class TransferCosts {
 public:
  /// `charged`: with the processor time of messages, where it was measured: of each tensor the time of the curve's
  /// first point is fixed, the rest streaming. `free`: messages take no time at all.
  TransferCosts(const BoundPlan& plan, const Topology& topology, bool charged, bool free);

  [[nodiscard]] int ports() const { return ports_; }

  /// The cost of one message over `boundary`; `gradient`: of the gradient that comes back.
  [[nodiscard]] Transfer operator()(int boundary, bool gradient, int from_rank, int to_rank) const;

 private:
  Topology topology_;
  std::vector<int> device_of_rank_;
  std::vector<std::vector<Transfer>> by_level_[2];  // [gradient][level][boundary]
  std::vector<int> first_port_;                     // by level
  int ports_ = 0;
};

}  // namespace stagecraft
