#include "costmodel/simulation/host/hosts.h"

#include <algorithm>

#include "costmodel/index.h"
#include "costmodel/simulation/host/host_sharing.h"
#include "costmodel/simulation/host/run_queues.h"

namespace stagecraft::simulation {

MessageCost message_cost(const Transfer& transfer, bool one_thread) {
  const Seconds latency = std::max(Seconds(0), transfer.latency - transfer.sender.fixed - transfer.receiver.fixed);
  const Seconds outside = transfer.sender.fixed + (one_thread ? transfer.sender.streaming : transfer.receiver.fixed);
  return {transfer, latency, std::max(Seconds(0), transfer.latency + transfer.transmission - latency - outside)};
}

MessageCosts::MessageCosts(const HostInput& input, TransferMode mode)
    : one_thread_(has_one_thread(input, mode)), wake_(input.wake) {
  if (!(wake_ > Seconds(0))) return;
  const std::vector<int> threads = threads_of_hosts(input, one_thread_);
  if (threads.empty()) return;
  for (const int host : input.of_rank) is_crowded_.push_back(threads[to_index(host)] > input.processors);
}

MessageCost MessageCosts::operator()(const Transfer& transfer, int to_rank) const {
  MessageCost cost = message_cost(transfer, one_thread_);
  if (!is_crowded_.empty() && is_crowded_[to_index(to_rank)]) cost.transfer.receiver.fixed += wake_;
  return cost;
}

struct Hosts::Threads {
  Flows& flows;
  Messages& messages;
  HostSharing sharing;
  WaitingParts waiting;
  std::vector<char> handles;  // by rank: whether its thread for messages is busy
};

Hosts::Hosts(const HostInput& input, TransferMode mode, std::size_t ranks, int lanes, Flows& flows, Messages& messages)
    : one_thread_(has_one_thread(input, mode)),
      threads_(new Threads{flows, messages, HostSharing(input, one_thread_, flows), WaitingParts(ranks, lanes),
                           std::vector<char>(ranks, 0)}),
      is_shared_(threads_->sharing.is_shared()) {}

Hosts::~Hosts() = default;

void Hosts::begin(int rank, int flow) { threads_->sharing.take(rank, flow); }
void Hosts::end(int rank, int flow) { threads_->sharing.give(rank, flow); }
void Hosts::share_changed() { threads_->sharing.share(); }
void Hosts::balance(int host) {
  is_changed_ = true;
  threads_->sharing.balance(host);
}

void Hosts::enqueue(int lane, HandlingPart part, MovingMessage& message, const Transfer& cost) {
  const int rank = message.handler(part);
  // A rank that handles messages itself takes this part when it waits.
  const bool is_free = !is_handling(rank) && (!one_thread_ || threads_->messages.is_free(rank));
  if (is_free && !has_waiting(rank)) return handle(rank, lane, part, message, cost);
  threads_->waiting.push(rank, {lane, part});
  if (is_free) handle_next(rank);
}

/// Begins to handle what has waited longest, unless the rank's thread is busy with another message.
void Hosts::handle_next(int rank) {
  if (is_handling(rank) || !has_waiting(rank)) return;
  const auto [lane, part] = threads_->waiting.pop(rank);
  handle(rank, lane, part, threads_->messages.message(lane), threads_->messages.transfer(lane));
}

void Hosts::handle(int rank, int lane, HandlingPart part, MovingMessage& message, const Transfer& cost) {
  threads_->handles[to_index(rank)] = 1;
  if (one_thread_) {
    message.streams = 2;
    threads_->messages.set_busy(rank, true);
    start_handling(rank, lane, part, cost.receiver.fixed + cost.receiver.streaming);
    threads_->messages.start_wire(lane);
    return;
  }
  const Handling& handling = rank == message.from ? cost.sender : cost.receiver;
  const bool fixed = part == HandlingPart::SendFixed || part == HandlingPart::ReceiveFixed;
  start_handling(rank, lane, part, fixed ? handling.fixed : handling.streaming);
}

void Hosts::start_handling(int rank, int lane, HandlingPart part, Seconds time) {
  take(rank, threads_->flows.start({.kind = Task::Kind::Handling, .part = part, .owner = lane}, time));
}

void Hosts::finish_handling(int lane, HandlingPart part, const MovingMessage& message, int flow) {
  Messages& messages = threads_->messages;
  const int rank = message.handler(part);
  give(rank, flow);
  if (one_thread_) return part == HandlingPart::SendFixed ? messages.end_own_send(rank) : messages.end_stream(lane);
  threads_->handles[to_index(rank)] = 0;
  if (part == HandlingPart::SendFixed) {
    messages.start_latency(lane);
  } else if (part == HandlingPart::ReceiveFixed) {
    messages.arrive(lane);
  } else {
    messages.end_stream(lane);
  }
  handle_next(rank);
}

bool Hosts::begin_own_send(int rank, int lane, const Transfer& cost) {
  threads_->messages.set_busy(rank, true);
  start_handling(rank, lane, HandlingPart::SendFixed, cost.sender.fixed + cost.sender.streaming);
  return true;
}

void Hosts::release(int rank) {
  threads_->handles[to_index(rank)] = 0;
  threads_->messages.set_busy(rank, false);
}

bool Hosts::has_waiting(int rank) const { return !threads_->waiting.is_empty(rank); }
bool Hosts::is_handling(int rank) const { return threads_->handles[to_index(rank)] != 0; }

void Hosts::append_rank(int rank, std::vector<std::int64_t>& counts) const {
  counts.push_back(is_handling(rank));
  threads_->waiting.visit(rank, [&](const WaitingParts::Entry& entry) {
    counts.push_back(entry.lane);
    counts.push_back(static_cast<int>(entry.part));
  });
}

void Hosts::append_state(std::vector<std::int64_t>& counts, std::vector<Seconds>& times) const {
  threads_->sharing.append_state(counts, times);
}

}  // namespace stagecraft::simulation
