#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/simulation/flows.h"
#include "costmodel/simulation/simulate.h"

namespace stagecraft::simulation {

/// A message's cost, in the parts in which it passes.
struct MessageCost {
  Transfer transfer;
  Seconds latency;       ///< that remains beside the fixed handling at both ends
  Seconds transmission;  ///< less what the handling before and after it takes beyond the latency
};
/// `one_thread`: the ranks handle messages with the thread that computes, see MessageThread::Own.
[[nodiscard]] MessageCost message_cost(const Transfer& transfer, bool one_thread);
/// Whether it takes any time.
[[nodiscard]] inline bool is_handled(const Handling& handling) {
  return handling.fixed + handling.streaming > Seconds(0);
}

/// One directed edge between two replicas for one boundary and direction: messages are sent one at a time, in order.
struct Lane {
  int boundary = 0;
  bool gradient = false;
  bool busy = false;
  int from = 0;  ///< rank
  int to = 0;
  int streams = 0;                       ///< of the moving message that have not ended: on the ports and at both ends
  Seconds started{};                     ///< of the moving message
  std::size_t moved = 0;                 ///< messages that have arrived
  std::vector<int> sent = {};            ///< microbatches in the order of sending
  std::vector<int> posted = {};          ///< and of receiving
  std::optional<MessageCost> cost = {};  ///< see Lanes::cost

  /// The rank that does this part of a message.
  [[nodiscard]] int handler(HandlingPart part) const {
    return part == HandlingPart::SendFixed || part == HandlingPart::SendStreaming ? from : to;
  }
};

/// The lanes of a plan, by number.
class Lanes {
 public:
  /// With room for each message of all steps once. Refers to `input`.
  explicit Lanes(const SimulationInput& input);

  [[nodiscard]] int count() const { return to_int(lanes_.size()); }
  [[nodiscard]] Lane& operator[](int id) { return lanes_[to_index(id)]; }
  [[nodiscard]] const Lane& operator[](int id) const { return lanes_[to_index(id)]; }
  [[nodiscard]] const std::vector<Lane>& all() const { return lanes_; }

  /// The lane of a Send or Receive. Throws std::invalid_argument if there is no boundary between its stages.
  [[nodiscard]] int of(const Action& message) const;
  /// The cost of each message of the lane, which is asked for once.
  const MessageCost& cost(Lane& lane) const {
    if (!lane.cost) set_cost(lane);
    return *lane.cost;
  }

 private:
  void set_cost(Lane& lane) const;

  struct Cycle {
    int first;   // lane of microbatch 0; each microbatch has two, activation and gradient
    int length;  // microbatches after which the same replicas meet again
  };

  const SimulationInput& input_;
  const bool one_thread_;
  const std::vector<int> threads_;  // by host, see threads_of_hosts; empty if waking up costs nothing
  std::vector<Cycle> cycles_;       // by boundary
  std::vector<Lane> lanes_;
};

/// Parts of messages that wait for the thread of a rank, first come, first served.
class WaitingParts {
 public:
  struct Entry {
    int lane;
    HandlingPart part;
  };

  WaitingParts(std::size_t ranks, int lanes) : queues_(ranks), after_(kParts * to_index(lanes), -1) {}

  [[nodiscard]] bool is_empty(int rank) const { return queues_[to_index(rank)].first < 0; }
  /// Each part of a lane waits at most once at a time, because only one of its messages moves.
  void push(int rank, Entry entry) {
    Queue& queue = queues_[to_index(rank)];
    const int id = kParts * entry.lane + static_cast<int>(entry.part);
    (queue.first < 0 ? queue.first : after_[to_index(queue.last)]) = id;
    queue.last = id;
    after_[to_index(id)] = -1;
  }
  /// Precondition: not empty.
  Entry pop(int rank) {
    Queue& queue = queues_[to_index(rank)];
    const int id = queue.first;
    queue.first = after_[to_index(id)];
    return entry(id);
  }
  template <class Visit>
  void visit(int rank, const Visit& visit) const {
    for (int id = queues_[to_index(rank)].first; id >= 0; id = after_[to_index(id)]) visit(entry(id));
  }

 private:
  struct Queue {
    int first = -1;
    int last = -1;
  };
  static Entry entry(int id) { return {id / kParts, static_cast<HandlingPart>(id % kParts)}; }

  std::vector<Queue> queues_;  // by rank
  std::vector<int> after_;     // by lane and part: the next one in its queue, -1: none
};

}  // namespace stagecraft::simulation
