#pragma once

#include <cstdint>
#include <vector>

namespace stagecraft {

/// The threads of one host on its processors, as Linux schedules them: each processor has a queue of the threads that
/// want to run on it and divides its time equally among them. A thread stays on its processor until it sleeps or is
/// moved by `balance`. Deterministic.
class RunQueues {
 public:
  /// Threads 0 to `threads - 1`, all asleep. Throws std::invalid_argument if there is no processor.
  RunQueues(int processors, int threads);

  /// The thread wants to run from the next `settle` on. One that runs already goes on, and does not leave.
  void wake(int thread);
  /// The thread sleeps from the next `settle` on, unless it wakes before: one piece of work follows another.
  void leave(int thread);
  /// Threads that leave go; then those that woke come, in the order of `wake`: each to the processor on which it ran
  /// last if that is idle, else to an idle one, else to its last one all the same (before it has run, to the shortest
  /// queue).
  void settle();

  /// Whether a processor is idle while two threads share another.
  [[nodiscard]] bool is_uneven() const { return idle_ > 0 && crowded_ > 0; }
  /// Each idle processor takes the thread that came last to the longest queue, while that has two or more.
  void balance();

  /// The part of a processor's time that a thread which is awake gets, after `settle`.
  [[nodiscard]] double share(int thread) const { return 1 / static_cast<double>(queues_[where(thread)].size()); }
  /// All that decides what comes next, after `settle`; equal in equal states.
  void append_state(std::vector<std::int64_t>& out) const;

 private:
  [[nodiscard]] std::size_t where(int thread) const;
  [[nodiscard]] std::size_t best_for(int thread) const;
  void join(int thread, std::size_t processor);
  void quit(int thread);

  std::vector<std::vector<int>> queues_;  // by processor: threads, in the order in which they came
  std::vector<int> processor_;            // by thread: the one on which it runs or ran last; -1: has not run
  std::vector<bool> awake_;               // by thread
  std::vector<bool> leaves_;              // by thread
  std::vector<int> leaving_;              // threads that may leave
  std::vector<int> waking_;               // threads that are awake and have not come
  int idle_;                              // processors without threads
  int crowded_ = 0;                       // processors with several
};

}  // namespace stagecraft
