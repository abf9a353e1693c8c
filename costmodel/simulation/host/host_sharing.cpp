#include "costmodel/simulation/host/host_sharing.h"

#include <algorithm>

#include "costmodel/index.h"

namespace stagecraft::simulation {
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

}  // namespace stagecraft::simulation
