#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "costmodel/simulation/flows/flows.h"
#include "costmodel/simulation/flows/transfer.h"
#include "costmodel/simulation/host/host_input.h"
#include "costmodel/units.h"

namespace stagecraft::simulation {

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
