#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "costmodel/errors.h"
#include "costmodel/graph.h"
#include "costmodel/plan.h"
#include "costmodel/queue_replay.h"
#include "costmodel/topology.h"

namespace stagecraft {

struct VerifyOptions {
  Queues queues = Queues::Edge;
  int steps = 1;                        ///< that the lists cover, see action_lists
  std::vector<int> reduce_groups = {};  ///< one number a stage, see reduce_groups(); empty: every stage for itself
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
/// Precondition: the plan is valid.
[[nodiscard]] std::variant<Verified, Infeasible> verify(const Plan& plan, const std::vector<std::vector<Action>>& lists,
                                                        const VerifyOptions& options = {});

/// The same, and that the peak memory of every rank (stage_memory) is within the device's, where the topology states
/// it. `options.reduce_groups` is taken from the graph. Precondition: the plan is valid for graph and topology.
[[nodiscard]] std::variant<Verified, Infeasible> verify(const Plan& plan, const std::vector<std::vector<Action>>& lists,
                                                        const Graph& graph, const Topology& topology,
                                                        VerifyOptions options = {});

/// A number that ranks compare at the start to see that all run the same: FNV-1a, 64 bits, of the plan's document
/// without its provenance and of every action. The same on every machine. It guards against accidents, not against
/// intent. Source: draft-eastlake-fnv.
[[nodiscard]] std::uint64_t plan_hash(const Plan& plan, const std::vector<std::vector<Action>>& lists);

}  // namespace stagecraft
