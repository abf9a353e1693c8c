#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/units.h"

namespace stagecraft::simulation {

/// A part of a thread's work for a message. With MessageThread::Own, all work of the sender is SendFixed, and all work
/// of the receiver is ReceiveStreaming.
enum class HandlingPart : std::uint8_t { SendFixed, SendStreaming, ReceiveStreaming, ReceiveFixed };
inline constexpr int kParts = 4;

/// What a flow does, and for whom.
struct Task {
  enum class Kind : std::uint8_t { Compute, Latency, Wire, Delivery, Reduce, Gather, Handling, Balance };
  Kind kind = Kind::Compute;
  HandlingPart part = HandlingPart::SendFixed;  ///< of Handling
  int owner = 0;        ///< rank of Compute and Reduce, stage of Gather, host of Balance, lane of the others
  int microbatch = -1;  ///< of Delivery
};

/// Ports that a flow shares with others; -1: none.
struct Ports {
  int egress = -1;
  int ingress = -1;
};

/// Work in progress: a computation, a message on its way, or a timer.
struct Flow {
  Task task;
  Ports ports;
  Seconds remaining;    ///< at rate 1, as of `since`
  Seconds since;        ///< when its rate was set
  Seconds started;      ///< when it started
  double rate;          ///< of its seconds done in a second
  std::uint64_t event;  ///< the one that ends it; 0: it has ended
};

/// When a flow ends, unless its rate changes before.
struct FlowEnd {
  Seconds time;
  std::uint64_t event;  ///< orders equal times by creation
  int flow;
  // Computed without a branch, which would be mispredicted: equal stages have many equal times.
  friend bool operator<(const FlowEnd& a, const FlowEnd& b) {
    return static_cast<bool>(static_cast<int>(a.time < b.time) |
                             (static_cast<int>(a.time == b.time) & static_cast<int>(a.event < b.event)));
  }
};

/// A heap of ends with the first one on top. Each node has four children: the heap is half as deep as with two, and the
/// children of a node are adjacent in memory.
class FlowEnds {
 public:
  [[nodiscard]] bool is_empty() const { return ends_.empty(); }
  /// Whether the next `push` allocates.
  [[nodiscard]] bool is_full() const { return ends_.size() == ends_.capacity(); }
  [[nodiscard]] const FlowEnd& first() const { return ends_.front(); }
  [[nodiscard]] const std::vector<FlowEnd>& all() const { return ends_; }
  void reserve(std::size_t count) { ends_.reserve(count); }
  void push(const FlowEnd& end) {
    std::size_t hole = ends_.size();
    ends_.push_back(end);
    for (; hole > 0 && end < ends_[(hole - 1) / 4]; hole = (hole - 1) / 4) ends_[hole] = ends_[(hole - 1) / 4];
    ends_[hole] = end;
  }
  void pop() {
    const FlowEnd last = ends_.back();
    ends_.pop_back();
    const std::size_t count = ends_.size();
    if (count == 0) return;
    std::size_t hole = 0;
    for (std::size_t child = 1; child < count; child = 4 * hole + 1) {
      std::size_t least = child;
      if (child + 4 <= count) {
        const std::size_t left = child + static_cast<std::size_t>(ends_[child + 1] < ends_[child]);
        const std::size_t right = child + 2 + static_cast<std::size_t>(ends_[child + 3] < ends_[child + 2]);
        least = ends_[right] < ends_[left] ? right : left;
      } else {
        for (std::size_t other = child + 1; other < count; ++other) least = ends_[other] < ends_[least] ? other : least;
      }
      if (!(ends_[least] < last)) break;
      ends_[hole] = ends_[least];
      hole = least;
    }
    ends_[hole] = last;
  }
  /// Removes the ends for which `is_past(end)` holds.
  template <class IsPast>
  void remove_if(const IsPast& is_past) {
    std::erase_if(ends_, is_past);
    std::sort(ends_.begin(), ends_.end());  // which is a heap too
  }

 private:
  std::vector<FlowEnd> ends_;
};

/// All flows of a run, and its clock. A flow takes its `remaining` seconds divided by its rate: 1, or with ports the
/// smaller of its two ports' shares (a port is shared equally), until `set_rate`. Equal ends come in the order in which
/// they were set. Allocates only when more flows than ever before are under way, or are at a port.
class Flows {
 public:
  explicit Flows(int ports = 0) : at_port_(to_index(ports)) {}
  /// Makes room for that many flows at a time.
  void reserve(std::size_t count) {
    flows_.reserve(count);
    free_.reserve(count);
    ends_.reserve(2 * count);
  }

  [[nodiscard]] Seconds now() const { return now_; }
  /// The flow of that number, until another one starts.
  [[nodiscard]] const Flow& operator[](int id) const { return flows_[to_index(id)]; }

  /// Starts a flow now that takes `seconds` at rate 1; its number is that of a flow that has ended, or a new one.
  int start(Task task, Seconds seconds, Ports ports = {}) {
    // Inlined as far as the flow is filled in, so that `task` need not be assembled in memory.
    const int id = take_number();
    Flow& flow = flows_[to_index(id)];
    flow.task.kind = task.kind;
    flow.task.part = task.part;
    flow.task.owner = task.owner;
    flow.task.microbatch = task.microbatch;
    flow.ports = ports;
    flow.remaining = seconds;
    begin(id);
    return id;
  }
  /// The flow goes on at this rate, above 0, from now on.
  void set_rate(int id, double rate) {
    Flow& flow = flows_[to_index(id)];
    if (flow.rate == rate) return;
    flow.remaining = std::max(Seconds(0), flow.remaining - flow.rate * (now_ - flow.since));
    flow.since = now_;
    flow.rate = rate;
    set_end(id);
  }
  /// Removes a flow without ports: `next` will not return it.
  void cancel(int id) {
    flows_[to_index(id)].event = 0;
    free_.push_back(id);
  }

  /// Moves the clock to the first end and ends that flow; returns its number, -1 if no flow is left.
  int next() {
    while (!ends_.is_empty()) {
      const FlowEnd end = ends_.first();
      ends_.pop();
      if (!is_current(end)) continue;
      Flow& flow = flows_[to_index(end.flow)];
      now_ = end.time;
      flow.event = 0;
      free_.push_back(end.flow);
      const Ports ports = flow.ports;
      if (ports.egress >= 0) std::erase(at_port_[to_index(ports.egress)], end.flow);
      if (ports.ingress >= 0) std::erase(at_port_[to_index(ports.ingress)], end.flow);
      share(ports);
      return end.flow;
    }
    return -1;
  }
  /// Whether no other flow ends at this moment, and none was to end now before its rate changed.
  [[nodiscard]] bool is_moment_over() const { return ends_.is_empty() || ends_.first().time > now_; }

  /// Calls `visit(flow, end)` for each flow, in the order of their ends.
  template <class Visit>
  void visit_in_order(const Visit& visit) {
    ordered_ = ends_.all();
    std::erase_if(ordered_, [this](const FlowEnd& end) { return !is_current(end); });
    std::sort(ordered_.begin(), ordered_.end());
    for (const FlowEnd& end : ordered_) visit(flows_[to_index(end.flow)], end.time);
  }

 private:
  int take_number() {
    if (free_.empty()) add_number();
    const int id = free_.back();
    free_.pop_back();
    return id;
  }
  [[gnu::noinline]] void add_number() {
    free_.push_back(to_int(flows_.size()));
    flows_.emplace_back();
  }
  [[gnu::noinline]] void begin(int id) {
    Flow& flow = flows_[to_index(id)];
    flow.since = flow.started = now_;
    flow.rate = 1;
    set_end(id);
    const Ports ports = flow.ports;
    if (ports.egress >= 0) at_port_[to_index(ports.egress)].push_back(id);
    if (ports.ingress >= 0) at_port_[to_index(ports.ingress)].push_back(id);
    share(ports);
  }
  void set_end(int id) {
    if (ends_.is_full()) make_room();
    Flow& flow = flows_[to_index(id)];
    flow.event = ++events_;
    ends_.push({now_ + flow.remaining / flow.rate, flow.event, id});
  }
  [[nodiscard]] bool is_current(const FlowEnd& end) const { return flows_[to_index(end.flow)].event == end.event; }
  /// Forgets ends that are out of date, except those of this moment, which is_moment_over counts.
  [[gnu::noinline]] void make_room() {
    ends_.remove_if([this](const FlowEnd& end) { return !is_current(end) && end.time > now_; });
    if (2 * ends_.all().size() >= ends_.all().capacity()) ends_.reserve(2 * ends_.all().size() + 16);
  }
  [[nodiscard]] double share_of(int port) const {
    return port < 0 ? 1.0 : 1.0 / static_cast<double>(at_port_[to_index(port)].size());
  }
  void share(Ports ports) {
    if (ports.egress >= 0) share_port(ports.egress);
    if (ports.ingress >= 0) share_port(ports.ingress);
  }
  void share_port(int port) {
    for (const int id : at_port_[to_index(port)]) {
      const Flow& flow = flows_[to_index(id)];
      set_rate(id, std::min(share_of(flow.ports.egress), share_of(flow.ports.ingress)));
    }
  }

  Seconds now_;
  std::uint64_t events_ = 0;
  std::vector<Flow> flows_;
  std::vector<int> free_;
  FlowEnds ends_;                          // also those that are out of date: their event is not the flow's
  std::vector<std::vector<int>> at_port_;  // flows, in the order of their start
  std::vector<FlowEnd> ordered_;           // scratch
};

}  // namespace stagecraft::simulation
