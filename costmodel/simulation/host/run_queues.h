#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/simulation/flows/flows.h"

namespace stagecraft::simulation {

/// The threads of one host on its processors, as Linux schedules them: each processor has a queue of the threads that
/// want to run on it and divides its time equally among them. A thread stays on its processor until it is moved by
/// `balance`: Linux looks for an idle processor for a thread that wakes only while processors are less busy than those
/// of a host with more threads than processors (SIS_UTIL in kernel/sched/features.h; with two processors, below 60 %).
/// Deterministic.
class RunQueues {
 public:
  /// Threads 0 to `threads - 1`, all asleep. Throws std::invalid_argument if there is no processor.
  RunQueues(int processors, int threads);

  /// The thread wants to run from the next `settle` on. One that is already running keeps running.
  void wake(int thread);
  /// The thread sleeps from the next `settle` on, unless it wakes before: one piece of work follows another.
  void leave(int thread);
  /// Removes the threads that went to sleep from their processors, then places those that woke, in the order of `wake`:
  /// each on the processor on which it last ran, even if another one is idle; if it has not run, in the shortest
  /// queue.
  void settle();

  /// Whether a processor is idle while two threads share another.
  [[nodiscard]] bool is_uneven() const { return idle_ > 0 && crowded_ > 0; }
  /// Each idle processor takes the thread that came last to the longest queue, while that has two or more.
  void balance();

  /// Threads in the queue of an awake thread, after `settle`: each of them gets an equal share of a processor's time.
  [[nodiscard]] std::size_t length(int thread) const { return queues_[to_index(processor_[to_index(thread)])].size(); }
  /// Everything that determines what happens next, after `settle`; equal for equal states.
  void append_state(std::vector<std::int64_t>& out) const;

 private:
  [[nodiscard]] std::size_t where(int thread) const;
  [[nodiscard]] std::size_t shortest() const;
  void join(int thread, std::size_t processor);
  void quit(int thread);

  std::vector<std::vector<int>> queues_;  // by processor: threads, in the order in which they came
  std::vector<int> processor_;            // by thread: the one on which it runs or ran last; -1: has not run
  std::vector<bool> awake_;               // by thread
  std::vector<bool> leaves_;              // by thread
  std::vector<int> leaving_;              // threads that may leave
  std::vector<int> waking_;               // threads that are awake and not placed yet
  int idle_;                              // processors without threads
  int crowded_ = 0;                       // processors with several
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
