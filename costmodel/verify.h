#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/bound_plan.h"
#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/queue_replay.h"
#include "costmodel/topology.h"

namespace stagecraft {

struct VerifyOptions {
  Queues queues = Queues::Edge;
  int steps = 1;                        ///< that the lists cover, see action_lists
  std::vector<int> reduce_groups = {};  ///< one number per stage; empty: those of the plan
};

/// What was proved of one rank.
struct RankProof {
  int in_flight = 0;          ///< microbatches held at most at once, those of all its stages together
  int in_flight_bound = 0;    ///< what the schedule states
  int versions = 1;           ///< of its parameters held at most at once, the newest among them
  int versions_bound = 1;     ///< what the schedule states
  std::optional<Bytes> peak;  ///< memory, where graph and topology were given
};

/// The lists end, and do what the plan says.
struct Verified {
  std::size_t actions = 0;
  std::size_t messages = 0;
  std::vector<RankProof> ranks;
  std::string summary;  ///< one line that says what was proved
};

/// Proves of the lists, before anything is launched:
///   every forward, backward and (where the schedule splits it) weight gradient of every microbatch stands once, on the
///     rank that runs it, and so do the transfers on every edge between them;
///   on a rank, what an action needs stands before it;
///   every gradient goes into the Update that update_of says, after a Reduce where replicas or tied parameters need
///     one, and every microbatch finds the parameters that the schedule's Weights say;
///   both ends of each directed edge see the same order;
///   the lists end, with the queues of `options`, see find_deadlock;
///   no rank holds more microbatches, or versions of its parameters, than the schedule states.
/// Infeasible names rank, entry (counted from 1) and action of the first thing that does not hold, or the circle.
[[nodiscard]] std::variant<Verified, Infeasible> verify(const BoundPlan& plan,
                                                        const std::vector<std::vector<Action>>& lists,
                                                        const VerifyOptions& options = {});
/// Of a plan that is not bound yet.
[[nodiscard]] std::variant<Verified, Infeasible> verify(const Plan& plan, const std::vector<std::vector<Action>>& lists,
                                                        const VerifyOptions& options = {});

/// The same, and that the peak memory of every rank (stage_memory) is within the device's, where the topology states
/// it. Precondition: the plan is valid for graph and topology.
[[nodiscard]] std::variant<Verified, Infeasible> verify(const BoundPlan& plan,
                                                        const std::vector<std::vector<Action>>& lists,
                                                        const Graph& graph, const Topology& topology,
                                                        const VerifyOptions& options = {});

}  // namespace stagecraft
