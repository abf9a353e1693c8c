#pragma once

#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/simulation/queue_replay.h"
#include "costmodel/topology.h"

namespace stagecraft {

struct VerifyOptions {
  Queues queues = Queues::Edge;
  int steps = 1;                                          ///< covered by the lists, see action_lists
  std::function<void(const std::string&)> progress = {};  ///< told what is proved next: "no deadlock"
};

/// The proof for one rank.
struct RankProof {
  int in_flight = 0;          ///< largest number of microbatches held at once, over all its stages
  int in_flight_bound = 0;    ///< the schedule's bound
  int versions = 1;           ///< largest number of parameter versions held at once, including the newest
  int versions_bound = 1;     ///< the schedule's bound
  std::optional<Bytes> peak;  ///< memory, if graph and topology were given
};

/// The lists terminate and follow the plan.
struct Verified {
  std::size_t actions = 0;
  std::size_t messages = 0;
  std::vector<RankProof> ranks;
  std::string summary;  ///< one line with the proved properties
};

/// Proves for the lists, before anything is launched:
///   every forward, backward and (where the schedule splits it) weight gradient of every microbatch appears once, on
///     the rank that runs it, and so do the transfers on every edge between them;
///   on a rank, the inputs of an action come before it;
///   every gradient belongs to its Update by update_of, after a Reduce if replicas or tied parameters need
///     one, and every microbatch uses the parameters of the schedule's Weights;
///   both ends of each directed edge see the same order;
///   the lists terminate, with the queues of `options`, see find_deadlock;
///   no rank holds more microbatches, or versions of its parameters, than the schedule allows;
///   if the plan lists its parameters, each gradient is summed over exactly the ranks that hold its parameter, once,
///     and in one order on all of them.
/// Infeasible names rank, entry (counted from 1) and action of the first violation, or the cycle.
[[nodiscard]] std::variant<Verified, Infeasible> verify(const BoundPlan& plan,
                                                        const std::vector<std::vector<Action>>& lists,
                                                        const VerifyOptions& options = {});
/// The same for the graph's parameters, and that the memory of every rank (MemoryReplay::bound) is within the device's,
/// if the topology gives it. Precondition: the plan is valid for graph and topology.
[[nodiscard]] std::variant<Verified, Infeasible> verify(const BoundPlan& plan,
                                                        const std::vector<std::vector<Action>>& lists,
                                                        const Graph& graph, const Topology& topology,
                                                        const VerifyOptions& options = {});

}  // namespace stagecraft
