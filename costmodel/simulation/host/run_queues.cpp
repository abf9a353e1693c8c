#include "costmodel/simulation/host/run_queues.h"

#include <algorithm>
#include <stdexcept>

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

}  // namespace stagecraft::simulation
