#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "costmodel/simulation/flows/flows.h"
#include "costmodel/simulation/host/host_input.h"
#include "costmodel/simulation/host/run_queues.h"
#include "costmodel/units.h"

namespace stagecraft::simulation {

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

}  // namespace stagecraft::simulation
