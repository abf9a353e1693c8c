#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "costmodel/bound_plan.h"

namespace stagecraft {

/// How the transfers that a rank has begun queue up. The first in a queue is in progress, the others wait behind it.
enum class Queues {
  Edge,      ///< one for each directed edge: boundary, direction and the two ranks
  Boundary,  ///< one for each boundary and direction
  Pair,      ///< one for each other rank, both directions together, like an NCCL communicator for two ranks
  Rank,      ///< one for all transfers of the rank
};

/// "edge", "boundary", "pair", "rank".
[[nodiscard]] const char* to_string(Queues queues);
/// The inverse. Throws std::invalid_argument listing the words.
[[nodiscard]] Queues queues_by_name(const std::string& word);

/// The messages of a plan by number. A message is the transfer over one boundary in one direction for one microbatch
/// between two different ranks; numbers run from 0 to count(), with gaps.
class MessageTable {
 public:
  /// `microbatches`: over all the steps of the lists.
  MessageTable(BoundPlan plan, int microbatches) : plan_(std::move(plan)), microbatches_(microbatches) {}
  [[nodiscard]] int microbatches() const { return microbatches_; }
  /// As in BoundPlan.
  [[nodiscard]] int runner(int stage, int microbatch) const { return plan_.runner(stage, microbatch); }
  [[nodiscard]] std::optional<int> boundary(int stage, int peer) const { return plan_.boundary(stage, peer); }
  [[nodiscard]] std::size_t count() const;
  [[nodiscard]] int message(int boundary, bool gradient, int microbatch) const;
  /// The message of a transfer action. Precondition: there is a boundary between its stages.
  [[nodiscard]] int message(const Action& transfer) const;
  /// The two actions of a message.
  [[nodiscard]] Action send(int message) const;
  [[nodiscard]] Action receive(int message) const;
  /// Messages that must arrive before a Forward or Backward begins, none for other actions.
  [[nodiscard]] std::vector<int> inputs(const Action& compute) const;
  /// Messages that a Forward or Backward produces.
  [[nodiscard]] std::vector<int> outputs(const Action& compute) const;

 private:
  std::vector<int> messages(const Action& compute, const std::vector<Passage>& passages) const;

  BoundPlan plan_;
  int microbatches_ = 1;
};

/// The deadlock of the lists, as a cycle of actions that wait for each other and the first blocked action of each rank;
/// absent if the lists end. The rules: a rank runs its list in order; Forward and Backward wait for their messages; a
/// transfer only joins its queue; a message moves when its send and its receive are each first in their queues, and
/// then both complete together; a Reduce waits for all ranks with a Reduce of its group. No step ever disables another,
/// so one order of steps decides for all.
/// `reduce_groups`: one number per stage. Precondition: every action's stage, microbatch and peer exist and each
/// message has one send and one receive, on the ranks that run them.
[[nodiscard]] std::optional<std::string> find_deadlock(const MessageTable& table,
                                                       const std::vector<std::vector<Action>>& lists, Queues queues,
                                                       const std::vector<int>& reduce_groups);

}  // namespace stagecraft
