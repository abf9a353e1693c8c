#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/simulation/flows.h"
#include "costmodel/simulation/simulation_input.h"
#include "costmodel/units.h"

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

/// By host: the threads of its ranks. Each rank has the threads that compute and, unless they handle its messages too
/// (`one_thread`), one for those. Empty if ranks have separate hosts, or the number of processors is unknown.
[[nodiscard]] std::vector<int> threads_of_hosts(const HostInput& input, bool one_thread);

/// Sets the rates of flows that need processors (Compute and Handling) by what else runs on their host: the model of
/// processors and memory that HostInput describes. Which processor a thread runs on is decided by RunQueues; this
/// class numbers the threads, keeps the timer after which an idle processor takes a waiting thread, and turns shares of
/// processors and the slowdown of the memory into rates. Does nothing where ranks have separate hosts.
class HostSharing {
 public:
  /// `one_thread`: a rank's thread that computes handles its messages too. Refers to `input` and `flows`.
  HostSharing(const HostInput& input, bool one_thread, Flows& flows);

  /// Whether any rate may change: ranks of a host have too few processors, or their memory slows them down.
  [[nodiscard]] bool is_shared() const { return is_shared_; }

  /// The flow, which has just started, needs processors of the rank's host.
  void take(int rank, int flow) {
    if (is_shared_) begin(rank, flow);
  }
  /// The flow, which has just ended, does not need them any more.
  void give(int rank, int flow) {
    if (is_shared_) end(rank, flow);
  }
  /// After all that an event causes: threads without work sleep, and the flows of each host that has changed get their
  /// new rates.
  void share() {
    if (!changed_.empty()) share_changed();
  }
  /// A Balance flow, owned by host `id`, has ended.
  void balance(int id);

  /// Appends everything that determines what happens next, except the flows; equal in equal states.
  void append_state(std::vector<std::int64_t>& counts, std::vector<Seconds>& times) const;

 private:
  struct Sharer {
    int flow;
    bool computes;
    int first_thread;
    int threads;
  };
  struct SharedHost {
    std::vector<Sharer> sharers = {};
    int computing = 0;
    std::optional<RunQueues> queues = {};  // unless there is a processor for each thread, or their number is unknown
    int timer = -1;                        // the Balance flow; -1: none
    Seconds until_balance = {};            // of the timer, as of its last start or stop
    double compute_rate = 1;               // of memory, as of the last `share`
    std::size_t newcomers = 0;             // the last of `sharers`, since then
    bool is_changed = false;               // since rates were set
  };

  void number_threads();
  void begin(int rank, int flow);
  void end(int rank, int flow);
  void mark_changed(int host);
  void share_changed();
  void set_rates(SharedHost& host);
  void watch_balance(int id);
  [[nodiscard]] double memory_slowdown(int computing) const;

  const HostInput& input_;
  Flows& flows_;
  bool is_shared_;
  bool one_thread_;
  int compute_threads_ = 1;              // of a rank
  std::vector<int> first_thread_;        // by rank: among those of its host
  std::vector<double> memory_slowdown_;  // by computations of a host
  std::vector<SharedHost> hosts_;
  std::vector<int> changed_;  // hosts, in the order of their changes
};

/// A message's cost, in the parts in which it passes.
struct MessageCost {
  Transfer transfer;
  Seconds latency;       ///< that remains beside the fixed handling at both ends
  Seconds transmission;  ///< less what the handling before and after it takes beyond the latency
};
/// `one_thread`: the ranks handle messages with the thread that computes, see MessageThread::Own.
[[nodiscard]] MessageCost message_cost(const Transfer& transfer, bool one_thread);

/// Whether the thread of a rank that computes also handles its messages.
[[nodiscard]] inline bool has_one_thread(const HostInput& input, TransferMode mode) {
  return input.message_thread == MessageThread::Own && mode == TransferMode::Rendezvous;
}

/// message_cost for ranks of these hosts, with HostInput::wake where a host is crowded.
class MessageCosts {
 public:
  MessageCosts(const HostInput& input, TransferMode mode);
  [[nodiscard]] MessageCost operator()(const Transfer& transfer, int to_rank) const;

 private:
  const bool one_thread_;
  const Seconds wake_;
  std::vector<bool> is_crowded_;  // by rank: whether its host is; empty if none is, or waking up costs nothing
};

/// The message that a lane moves.
struct MovingMessage {
  int from = 0;  ///< rank
  int to = 0;
  int streams = 0;  ///< that have not ended: on the ports and at both ends

  /// The rank that does this part of a message.
  [[nodiscard]] int handler(HandlingPart part) const {
    return part == HandlingPart::SendFixed || part == HandlingPart::SendStreaming ? from : to;
  }
};

/// The hosts of a simulation: ranks of one host take turns on its processors, and messages take processor time. Ranks
/// on GPUs have neither; for them every function here does nothing.
class Hosts {
 public:
  /// The simulation, as Hosts sees it: the messages of its lanes and the ranks' threads.
  class Messages {
   public:
    [[nodiscard]] virtual MovingMessage& message(int lane) = 0;
    [[nodiscard]] virtual const Transfer& transfer(int lane) = 0;
    /// Whether the rank's thread neither computes, nor handles a message, nor goes on with its list.
    [[nodiscard]] virtual bool is_free(int rank) = 0;
    virtual void set_busy(int rank, bool busy) = 0;
    /// The next steps of a message, once a thread has done its part.
    virtual void start_latency(int lane) = 0;
    virtual void start_wire(int lane) = 0;
    virtual void end_stream(int lane) = 0;
    virtual void arrive(int lane) = 0;
    /// The rank has spent the processor time of the Send at which it is.
    virtual void end_own_send(int rank) = 0;

   protected:
    ~Messages() = default;
  };

  /// Hosts of `ranks` ranks with `lanes` lanes. Refers to `input`, `flows` and `messages`.
  Hosts(const HostInput& input, TransferMode mode, std::size_t ranks, int lanes, Flows& flows, Messages& messages);
  ~Hosts();

  /// The computation, which has just started, needs processors of the rank's host.
  void take(int rank, int flow) {
    if (!is_shared_) return;
    is_changed_ = true;
    begin(rank, flow);
  }
  /// The computation has just ended.
  void give(int rank, int flow) {
    if (!is_shared_) return;
    is_changed_ = true;
    end(rank, flow);
  }
  /// After all that an event causes: computations and messages of each host that has changed get their new rates.
  void share() {
    if (!is_changed_) return;
    is_changed_ = false;
    share_changed();
  }
  /// A Balance flow, owned by that host, has ended.
  void balance(int host);

  /// A message is about to begin. True if it begins later, because the sender has to handle it first.
  bool delays_departure(int lane, MovingMessage& message, const Transfer& cost) {
    if (one_thread_ || !(cost.sender.fixed > Seconds(0))) return false;
    enqueue(lane, HandlingPart::SendFixed, message, cost);
    return true;
  }
  /// The latency of a message is over: begins what both ends do while it moves, and sets the number of its streams.
  /// False if it does not move yet, because the receiver's own thread has to take it.
  bool begins_to_move(int lane, MovingMessage& message, const Transfer& cost) {
    if (one_thread_ && is_handled(cost.receiver)) {
      enqueue(lane, HandlingPart::ReceiveStreaming, message, cost);
      return false;
    }
    message.streams = 1;
    if (!one_thread_) {
      if (cost.sender.streaming > Seconds(0)) stream(lane, HandlingPart::SendStreaming, message, cost);
      if (cost.receiver.streaming > Seconds(0)) stream(lane, HandlingPart::ReceiveStreaming, message, cost);
    }
    return true;
  }
  /// All streams of a message have ended. True if it arrives later, because the receiver has to handle it first.
  bool delays_arrival(int lane, MovingMessage& message, const Transfer& cost) {
    if (one_thread_) {
      if (is_handled(cost.receiver)) release(message.to);
      return false;
    }
    if (!(cost.receiver.fixed > Seconds(0))) return false;
    enqueue(lane, HandlingPart::ReceiveFixed, message, cost);
    return true;
  }
  /// Whether ranks handle messages with the thread that computes.
  [[nodiscard]] bool has_one_thread_per_rank() const { return one_thread_; }
  /// The rank comes to a Send. True if its own thread is busy with it until Messages::end_own_send.
  bool delays_send(int rank, int lane, const Transfer& cost) {
    return one_thread_ && is_handled(cost.sender) && begin_own_send(rank, lane, cost);
  }
  /// Whether a rank that handles messages itself has to turn to one before it goes on with its list.
  [[nodiscard]] bool interrupts(int rank) const { return one_thread_ && has_waiting(rank); }
  /// The rank's thread waits: if it handles messages itself, it turns to the one that has waited longest.
  void wait(int rank) {
    if (one_thread_) handle_next(rank);
  }
  /// A Handling flow of that part of the lane's message has ended.
  void finish_handling(int lane, HandlingPart part, const MovingMessage& message, int flow);

  /// Whether the rank handles messages itself, and does so now.
  [[nodiscard]] bool handles_itself(int rank) const { return one_thread_ && is_handling(rank); }
  /// Appends everything of a rank that determines what happens next, except the flows; equal in equal states.
  void append_rank(int rank, std::vector<std::int64_t>& counts) const;
  /// Appends the same of all hosts.
  void append_state(std::vector<std::int64_t>& counts, std::vector<Seconds>& times) const;

 private:
  struct Threads;

  static bool is_handled(const Handling& handling) { return handling.fixed + handling.streaming > Seconds(0); }
  void begin(int rank, int flow);
  void end(int rank, int flow);
  void share_changed();
  void enqueue(int lane, HandlingPart part, MovingMessage& message, const Transfer& cost);
  void stream(int lane, HandlingPart part, MovingMessage& message, const Transfer& cost) {
    ++message.streams;
    enqueue(lane, part, message, cost);
  }
  void handle(int rank, int lane, HandlingPart part, MovingMessage& message, const Transfer& cost);
  void handle_next(int rank);
  void start_handling(int rank, int lane, HandlingPart part, Seconds time);
  bool begin_own_send(int rank, int lane, const Transfer& cost);
  void release(int rank);
  [[nodiscard]] bool has_waiting(int rank) const;
  [[nodiscard]] bool is_handling(int rank) const;

  const bool one_thread_;  // of each rank, for computations and messages
  const std::unique_ptr<Threads> threads_;
  const bool is_shared_;
  bool is_changed_ = false;  // what runs on any host, since `share`
};

}  // namespace stagecraft::simulation
