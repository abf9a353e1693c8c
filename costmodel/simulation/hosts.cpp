#include "costmodel/simulation/hosts.h"

#include <algorithm>
#include <stdexcept>

#include "costmodel/index.h"

namespace stagecraft::simulation {

RunQueues::RunQueues(int processors, int threads)
    : queues_(to_index(std::max(processors, 1))),
      processor_(to_index(threads), -1),
      awake_(to_index(threads), false),
      leaves_(to_index(threads), false),
      idle_(processors) {
  if (processors < 1) throw std::invalid_argument("a host has no processor");
  leaving_.reserve(to_index(threads));
  waking_.reserve(to_index(threads));
  constexpr int kUsual = 16;  // no more allocations unless queues get longer than that
  for (std::vector<int>& queue : queues_) queue.reserve(to_index(std::min(threads, kUsual)));
}

std::size_t RunQueues::where(int thread) const { return to_index(processor_[to_index(thread)]); }

std::size_t RunQueues::shortest() const {
  const auto queue =
      std::ranges::min_element(queues_, {}, [](const std::vector<int>& threads) { return threads.size(); });
  return static_cast<std::size_t>(queue - queues_.begin());
}

void RunQueues::join(int thread, std::size_t processor) {
  std::vector<int>& queue = queues_[processor];
  queue.push_back(thread);
  if (queue.size() == 1) --idle_;
  if (queue.size() == 2) ++crowded_;
  processor_[to_index(thread)] = to_int(processor);
}

void RunQueues::quit(int thread) {
  std::vector<int>& queue = queues_[where(thread)];
  std::erase(queue, thread);
  if (queue.empty()) ++idle_;
  if (queue.size() == 1) --crowded_;
}

void RunQueues::wake(int thread) {
  leaves_[to_index(thread)] = false;
  if (awake_[to_index(thread)]) return;
  awake_[to_index(thread)] = true;
  waking_.push_back(thread);
}

void RunQueues::leave(int thread) {
  if (!awake_[to_index(thread)]) return;
  leaves_[to_index(thread)] = true;
  leaving_.push_back(thread);
}

void RunQueues::settle() {
  for (const int thread : leaving_) {
    if (!leaves_[to_index(thread)]) continue;
    leaves_[to_index(thread)] = false;
    awake_[to_index(thread)] = false;
    quit(thread);
  }
  leaving_.clear();
  for (const int thread : waking_) join(thread, processor_[to_index(thread)] >= 0 ? where(thread) : shortest());
  waking_.clear();
}

void RunQueues::balance() {
  for (std::size_t processor = 0; processor < queues_.size() && is_uneven(); ++processor) {
    if (!queues_[processor].empty()) continue;
    const auto longest =
        std::ranges::max_element(queues_, {}, [](const std::vector<int>& queue) { return queue.size(); });
    const int thread = longest->back();
    quit(thread);
    join(thread, processor);
  }
}

void RunQueues::append_state(std::vector<std::int64_t>& out) const {
  for (const std::vector<int>& queue : queues_) {
    out.push_back(static_cast<std::int64_t>(queue.size()));
    out.insert(out.end(), queue.begin(), queue.end());
  }
  out.insert(out.end(), processor_.begin(), processor_.end());
}

namespace {

/// For each number of computations on a host, the slowdown by its memory alone: the measured slowdown divided by that
/// of sharing the processors.
std::vector<double> memory_slowdowns(const HostInput& input, int compute_threads) {
  std::vector<double> out = input.slowdown;
  const double processors = input.processors;
  for (std::size_t k = 1; processors > 0 && k <= out.size(); ++k) {
    double& factor = out[k - 1];
    const double sharing = static_cast<double>(k) * compute_threads / processors;
    // The factor does not fall with more computations: medians of short layers miss the times without a processor.
    if (sharing > 1) factor = std::max(k > 1 ? out[k - 2] : 1.0, factor / sharing);
  }
  return out;
}

/// The number of threads of a rank that compute.
int compute_threads(const HostInput& input) {
  return input.processors > 0 ? std::min(input.compute_processors, input.processors) : 1;
}

int threads_of_rank(const HostInput& input, bool one_thread) { return compute_threads(input) + (one_thread ? 0 : 1); }

}  // namespace

std::vector<int> threads_of_hosts(const HostInput& input, bool one_thread) {
  if (input.of_rank.empty() || input.processors == 0) return {};
  std::vector<int> out(to_index(*std::ranges::max_element(input.of_rank) + 1), 0);
  for (const int host : input.of_rank) out[to_index(host)] += threads_of_rank(input, one_thread);
  return out;
}

HostSharing::HostSharing(const HostInput& input, bool one_thread, Flows& flows)
    : input_(input),
      flows_(flows),
      is_shared_(!input.of_rank.empty() && (!input.slowdown.empty() || input.processors > 0)),
      one_thread_(one_thread) {
  if (!is_shared_) return;
  hosts_.resize(to_index(*std::ranges::max_element(input.of_rank) + 1));
  compute_threads_ = compute_threads(input);
  memory_slowdown_ = memory_slowdowns(input, compute_threads_);
  if (input.processors > 0) number_threads();
  // Where each thread has a processor and memory does not slow down, all rates stay 1.
  const auto has_queues = [](const SharedHost& host) { return host.queues.has_value(); };
  is_shared_ = !memory_slowdown_.empty() || std::ranges::any_of(hosts_, has_queues);
}

void HostSharing::number_threads() {
  std::vector<int> numbered(hosts_.size(), 0);
  for (const int host : input_.of_rank) {
    int& count = numbered[to_index(host)];
    first_thread_.push_back(count);
    count += threads_of_rank(input_, one_thread_);
  }
  const std::vector<int> threads = threads_of_hosts(input_, one_thread_);
  for (std::size_t h = 0; h < hosts_.size(); ++h) {
    if (threads[h] <= input_.processors) continue;
    hosts_[h].queues.emplace(input_.processors, threads[h]);
    hosts_[h].sharers.reserve(to_index(threads[h]));
    hosts_[h].until_balance = input_.balance_after;
  }
}

void HostSharing::begin(int rank, int flow) {
  const int id = input_.of_rank[to_index(rank)];
  SharedHost& host = hosts_[to_index(id)];
  const bool computes = flows_[flow].task.kind == Task::Kind::Compute;
  if (!computes && !host.queues) return;  // its rate stays 1
  Sharer sharer{flow, computes, 0, 0};
  if (computes) ++host.computing;
  if (host.queues) {
    sharer.first_thread = first_thread_[to_index(rank)] + (computes || one_thread_ ? 0 : compute_threads_);
    sharer.threads = computes ? compute_threads_ : 1;
    for (int i = 0; i < sharer.threads; ++i) host.queues->wake(sharer.first_thread + i);
  }
  host.sharers.push_back(sharer);
  ++host.newcomers;
  mark_changed(id);
}

void HostSharing::end(int rank, int flow) {
  const int id = input_.of_rank[to_index(rank)];
  SharedHost& host = hosts_[to_index(id)];
  const auto sharer = std::ranges::find(host.sharers, flow, &Sharer::flow);
  if (sharer == host.sharers.end()) return;
  if (sharer->computes) --host.computing;
  for (int i = 0; i < sharer->threads; ++i) host.queues->leave(sharer->first_thread + i);
  host.sharers.erase(sharer);
  mark_changed(id);
}

void HostSharing::mark_changed(int host) {
  bool& is_changed = hosts_[to_index(host)].is_changed;
  if (!is_changed) changed_.push_back(host);
  is_changed = true;
}

void HostSharing::share_changed() {
  for (const int id : changed_) {
    SharedHost& host = hosts_[to_index(id)];
    host.is_changed = false;
    if (host.queues) {
      host.queues->settle();
      if (host.queues->is_uneven() && input_.balance_after <= Seconds(0)) host.queues->balance();
      watch_balance(id);
    }
    set_rates(host);
  }
  changed_.clear();
}

void HostSharing::set_rates(SharedHost& host) {
  const double compute_rate = 1 / memory_slowdown(host.computing);
  const bool all = host.queues || compute_rate != host.compute_rate;
  for (std::size_t i = all ? 0 : host.sharers.size() - host.newcomers; i < host.sharers.size(); ++i) {
    const Sharer& sharer = host.sharers[i];
    std::size_t longest = 1;  // queue of its threads: threads of one computation wait for each other
    for (int t = 0; t < sharer.threads; ++t) longest = std::max(longest, host.queues->length(sharer.first_thread + t));
    const double share = 1 / static_cast<double>(longest);
    flows_.set_rate(sharer.flow, sharer.computes ? share * compute_rate : share);
  }
  host.compute_rate = compute_rate;
  host.newcomers = 0;
}

/// The timer runs while a processor is idle and threads wait for another. When it is interrupted, it keeps the time
/// that is left.
void HostSharing::watch_balance(int id) {
  SharedHost& host = hosts_[to_index(id)];
  if (host.queues->is_uneven() == (host.timer >= 0)) return;
  if (host.timer >= 0) {
    host.until_balance = std::max(Seconds(0), host.until_balance - (flows_.now() - flows_[host.timer].started));
    flows_.cancel(host.timer);
    host.timer = -1;
  } else {
    host.timer = flows_.start({.kind = Task::Kind::Balance, .owner = id}, host.until_balance);
  }
}

void HostSharing::balance(int id) {
  SharedHost& host = hosts_[to_index(id)];
  host.timer = -1;
  host.until_balance = input_.balance_after;
  host.queues->balance();
  mark_changed(id);
}

/// Factor on the time of each of `computing` computations of a host, without that of sharing its processors.
double HostSharing::memory_slowdown(int computing) const {
  const int known = to_int(memory_slowdown_.size());
  if (known == 0 || computing == 0) return 1;
  if (computing <= known) return memory_slowdown_[to_index(computing - 1)];
  // If the number of processors is unknown, all are assumed to be busy, so time grows in proportion.
  const double factor = memory_slowdown_.back();
  return input_.processors > 0 ? factor : factor * computing / known;
}

void HostSharing::append_state(std::vector<std::int64_t>& counts, std::vector<Seconds>& times) const {
  for (const SharedHost& host : hosts_) {
    if (!host.queues) continue;
    host.queues->append_state(counts);
    times.push_back(host.until_balance);
  }
}

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
