#include "costmodel/simulation/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <set>
#include <span>
#include <stdexcept>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/simulation/run_queues.h"

namespace stagecraft {
namespace {

constexpr Seconds kNever(std::numeric_limits<double>::infinity());

/// What a thread does for a message. With a rank's own thread: all of the sender's work is SendFixed, all of the
/// receiver's ReceiveStreaming.
enum class Part : std::uint8_t { SendFixed, SendStreaming, ReceiveStreaming, ReceiveFixed };

/// Work in progress, computing or transferring: `remaining` seconds at rate 1, as of time `since`.
struct Flow {
  Seconds remaining{};
  double rate = 1;
  Seconds since{};
  Seconds started{};
  std::uint32_t version = 0;
  bool active = false;
  enum class Kind { Compute, Latency, Wire, Delivery, Reduce, Handling, Balance } kind = Kind::Compute;
  int owner = 0;          ///< rank of a computation or reduction, lane of a transfer, host of a balance
  int first_thread = -1;  ///< of those of its host that compute or handle; -1: processors are not shared
  int threads = 0;
  Part part = Part::SendFixed;  ///< of handling
  int microbatch = -1;          ///< of a delivery
  int egress = -1;
  int ingress = -1;
};

struct Event {
  Seconds time;
  std::uint64_t sequence;  // orders equal times by creation
  int flow;
  std::uint32_t version;
  friend bool operator>(const Event& a, const Event& b) {
    return a.time != b.time ? a.time > b.time : a.sequence > b.sequence;
  }
};

/// One directed edge between two replicas for one boundary and direction: messages are sent one at a time, in order.
struct Lane {
  int boundary = 0;
  bool gradient = false;
  int from = 0;
  int to = 0;
  std::vector<int> sent;    // microbatches in the order of sending
  std::vector<int> posted;  // and of receiving
  std::size_t moved = 0;    // messages that have arrived
  bool busy = false;
  std::optional<Transfer> cost;  // of a message, once the first one moves
  Seconds started{};             // of the moving message
  int streams = 0;               // of it that have not ended: on the ports and at both ends
};

/// Work that waits for a thread, first come, first served.
class WorkQueue {
 public:
  struct Work {
    int lane;
    Part part;
  };
  [[nodiscard]] bool is_empty() const { return first_ == waiting_.size(); }
  void push(Work work) { waiting_.push_back(work); }
  Work pop() {
    const Work out = waiting_[first_++];
    if (is_empty()) {
      waiting_.clear();
      first_ = 0;
    }
    return out;
  }
  [[nodiscard]] std::span<const Work> waiting() const { return std::span(waiting_).subspan(first_); }

 private:
  std::vector<Work> waiting_;
  std::size_t first_ = 0;
};

/// What shares the processors and the memory of one host.
struct Host {
  std::vector<int> flows;  // that need processors
  int computing = 0;
  std::optional<RunQueues> queues = {};  // unless there is a processor for each thread, or their number is unknown
  int timer = -1;                        // flow that ends when idle processors take waiting threads; -1: none
  bool changed = false;                  // since rates were set
};

/// The state of a run at one moment, with times and microbatches relative to that moment.
struct Snapshot {
  Seconds now{};
  int microbatch = 0;
  std::vector<std::size_t> next;     // of each rank
  std::vector<std::size_t> moved;    // of each lane
  std::vector<std::int64_t> counts;  // equal in equal states
  std::vector<Seconds> times;        // equal within a tolerance
  std::vector<double> rates;         // of the flows; equal within kEqual
};

/// Snapshots that are compared with a new one: a run may repeat itself after several cycles.
constexpr std::size_t kMostCycles = 12;

/// Tolerance for equal times, relative to the period; rounding differs by about 1e-12 of it.
constexpr double kEqual = 1e-10;

class Simulation {
 public:
  explicit Simulation(const SimulationInput& input, PeriodSearch* watch = nullptr)
      : in_(input),
        plan_(input.plan),
        watch_(watch),
        microbatches_(plan_.plan().microbatches * input.steps),
        step_of_rank_(input.lists.size(), 0),
        own_thread_(input.message_thread == MessageThread::Own && input.mode == TransferMode::Rendezvous) {
    const std::size_t stages = in_.stages.size();
    const std::size_t m = to_index(microbatches_);
    for (std::size_t b = 0; b < plan_.plan().boundaries.size(); ++b) {
      const auto [source, destination, with_gradient] = plan_.ends(to_int(b));
      const int cycle = std::lcm(plan_.replicas(source), plan_.replicas(destination));
      first_lane_.push_back(to_int(lanes_.size()));
      lane_cycle_.push_back(std::min(cycle, microbatches_));
      for (int i = 0; i < lane_cycle_.back(); ++i) {
        for (const bool gradient : {false, true}) {
          Lane lane;
          lane.boundary = to_int(b);
          lane.gradient = gradient;
          lane.from = plan_.runner(gradient ? destination : source, i);
          lane.to = plan_.runner(gradient ? source : destination, i);
          lanes_.push_back(lane);
        }
      }
      arrived_[0].emplace_back(m, kNever);
      arrived_[1].emplace_back(m, kNever);
    }
    forward_done_.assign(stages * m, false);
    backward_done_.assign(stages * m, false);
    split_.assign(stages * m, false);
    for (const auto& list : in_.lists) {
      for (const Action& action : list) {
        if (action.kind == ActionKind::WeightGradient) split_[slot(action.stage, action.microbatch)] = true;
      }
    }
    next_.assign(in_.lists.size(), 0);
    since_.assign(in_.lists.size(), Seconds(0));
    running_.assign(in_.lists.size(), -1);
    waited_.assign(in_.lists.size(), false);
    port_flows_.resize(to_index(in_.ports));
    int hosts = 0;
    for (const int host : in_.host_of_rank) hosts = std::max(hosts, host + 1);
    hosts_.resize(to_index(hosts));
    handled_.resize(in_.lists.size());
    handling_.assign(in_.lists.size(), false);
    const double processors = in_.host_processors;
    compute_threads_ = in_.host_processors > 0 ? std::min(in_.compute_processors, in_.host_processors) : 1;
    number_threads();
    memory_slowdown_ = in_.slowdown;
    for (std::size_t k = 1; processors > 0 && k <= memory_slowdown_.size(); ++k) {
      double& factor = memory_slowdown_[k - 1];
      const double sharing = static_cast<double>(k) * compute_threads_ / processors;
      // No less than that of fewer: medians of short layers miss the times during which they had no processor.
      if (sharing > 1) factor = std::max(k > 1 ? memory_slowdown_[k - 2] : 1.0, factor / sharing);
    }
    reduce_waiting_.resize(stages);
    reduce_members_.assign(stages, 0);
    for (const auto& list : in_.lists) {
      std::set<int> groups;
      for (const Action& action : list) {
        if (action.kind == ActionKind::Reduce) groups.insert(group_of(action));
      }
      for (const int group : groups) ++reduce_members_[to_index(group)];
    }
    timeline_.spans.reserve(action_count(in_));
  }

  std::variant<Timeline, Infeasible> run() {
    for (std::size_t rank = 0; rank < in_.lists.size(); ++rank) advance(to_int(rank));
    share_changed_hosts();
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      Flow& flow = flows_[to_index(event.flow)];
      if (!flow.active || flow.version != event.version) continue;
      now_ = event.time;
      finish(event.flow);
      share_changed_hosts();
      if (snapshot_due_ && (events_.empty() || events_.top().time > now_)) look_for_period();
      if (watch_ && watch_->progress && ++finished_ % kProgressEvents == 0)
        watch_->progress(std::accumulate(next_.begin(), next_.end(), 0.0) / static_cast<double>(action_count(in_)));
    }
    for (std::size_t rank = 0; rank < in_.lists.size(); ++rank) {
      if (next_[rank] < in_.lists[rank].size()) return Infeasible{circle(to_int(rank)), ErrorKind::Unprovable};
    }
    timeline_.ranks = to_int(in_.lists.size());
    for (const auto& list : in_.lists) timeline_.stage_of_rank.push_back(list.empty() ? -1 : list.front().stage);
    std::stable_sort(timeline_.spans.begin(), timeline_.spans.end(), [](const Span& a, const Span& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.start < b.start;
    });
    std::vector<Seconds> ends(to_index(in_.steps));
    for (const Span& span : timeline_.spans) ends[to_index(span.step)] = std::max(ends[to_index(span.step)], span.end);
    Seconds start;
    for (int step = 0; step < in_.steps; ++step) {
      const Seconds end = std::max(start, ends[to_index(step)]);
      timeline_.steps.push_back({step, start, end});
      start = end;
    }
    return std::move(timeline_);
  }

 private:
  std::size_t slot(int stage, int microbatch) const {
    return to_index(stage) * to_index(microbatches_) + to_index(microbatch);
  }
  int lane_of(int boundary, bool gradient, int microbatch) const {
    return first_lane_[to_index(boundary)] + 2 * (microbatch % lane_cycle_[to_index(boundary)]) + (gradient ? 1 : 0);
  }
  int boundary_between(int stage, int peer) const {
    if (const std::optional<int> boundary = plan_.boundary(stage, peer)) return *boundary;
    throw std::invalid_argument("there is no boundary between stage " + std::to_string(stage) + " and stage " +
                                std::to_string(peer));
  }
  void record(int rank, const Action& action, Seconds start, Seconds end) {
    if (action.microbatch >= 0) {
      const int step = action.microbatch / plan_.plan().microbatches;
      const bool gradient = action.kind == ActionKind::Backward || action.kind == ActionKind::WeightGradient;
      if (gradient) step_of_rank_[to_index(rank)] = step;
      timeline_.spans.push_back({rank, step, action, start, end});
    } else {
      timeline_.spans.push_back({rank, step_of_rank_[to_index(rank)], action, start, end});
    }
  }

  // --- flows ---
  void settle(Flow& flow) {
    flow.remaining = std::max(Seconds(0), flow.remaining - flow.rate * (now_ - flow.since));
    flow.since = now_;
  }
  void schedule(int id) {
    Flow& flow = flows_[to_index(id)];
    ++flow.version;
    events_.push({now_ + flow.remaining / flow.rate, sequence_++, id, flow.version});
  }
  void set_rate(int id, double rate) {
    Flow& flow = flows_[to_index(id)];
    if (flow.rate == rate) return;
    settle(flow);
    flow.rate = rate;
    schedule(id);
  }
  int start_flow(Flow flow) {
    flow.since = flow.started = now_;
    flow.active = true;
    if (free_.empty()) {
      flows_.push_back(flow);
      return to_int(flows_.size()) - 1;
    }
    const int id = free_.back();
    free_.pop_back();
    flow.version = flows_[to_index(id)].version;
    flows_[to_index(id)] = flow;
    return id;
  }
  double port_share(int port) const {
    return port < 0 ? 1.0 : 1.0 / static_cast<double>(port_flows_[to_index(port)].size());
  }
  void share_port(int port) {
    if (port < 0) return;
    for (const int id : port_flows_[to_index(port)]) {
      const Flow& flow = flows_[to_index(id)];
      set_rate(id, std::min(port_share(flow.egress), port_share(flow.ingress)));
    }
  }
  /// Factor on the time of each of `k` computations of a host, without that of sharing its processors.
  double memory_slowdown(int k) const {
    const int known = to_int(memory_slowdown_.size());
    if (known == 0 || k == 0) return 1;
    if (k <= known) return memory_slowdown_[to_index(k - 1)];
    // Without a number of processors they are assumed to be full: time grows in proportion.
    const double factor = memory_slowdown_.back();
    return in_.host_processors > 0 ? factor : factor * k / known;
  }
  bool shares_hosts() const { return !in_.host_of_rank.empty() && (!in_.slowdown.empty() || in_.host_processors > 0); }
  /// Each rank of a host has the threads that compute and, with MessageThread::Separate, one for messages.
  int threads_of_rank() const { return compute_threads_ + (own_thread_ ? 0 : 1); }
  void number_threads() {
    first_thread_.assign(in_.lists.size(), 0);
    if (!shares_hosts() || in_.host_processors == 0) return;
    std::vector<int> threads(hosts_.size(), 0);
    for (std::size_t rank = 0; rank < in_.lists.size(); ++rank) {
      int& count = threads[to_index(in_.host_of_rank[rank])];
      first_thread_[rank] = count;
      count += threads_of_rank();
    }
    for (std::size_t h = 0; h < hosts_.size(); ++h) {
      if (threads[h] > in_.host_processors) hosts_[h].queues.emplace(in_.host_processors, threads[h]);
    }
  }
  /// The part of its time at rate 1 that a flow gets: threads of one computation wait for each other.
  static double share_of(const Host& host, const Flow& flow) {
    double share = 1;
    for (int thread = flow.first_thread; thread < flow.first_thread + flow.threads; ++thread)
      share = std::min(share, host.queues->share(thread));
    return share;
  }
  void share_host(Host& host) {
    const double compute_rate = 1 / memory_slowdown(host.computing);
    for (const int id : host.flows) {
      const Flow& flow = flows_[to_index(id)];
      const double share = host.queues ? share_of(host, flow) : 1;
      set_rate(id, flow.kind == Flow::Kind::Compute ? share * compute_rate : share);
    }
  }
  /// After an event: ranks that have nothing more to do at this moment sleep, and those that are left share.
  void share_changed_hosts() {
    for (const int id : changed_hosts_) {
      Host& host = hosts_[to_index(id)];
      host.changed = false;
      if (host.queues) {
        host.queues->settle();
        if (host.queues->is_uneven() && in_.balance_after <= Seconds(0)) host.queues->balance();
        watch_balance(id);
      }
      share_host(host);
    }
    changed_hosts_.clear();
  }
  /// The timer runs while a processor is idle and threads wait for another.
  void watch_balance(int id) {
    Host& host = hosts_[to_index(id)];
    if (host.queues->is_uneven() == (host.timer >= 0)) return;
    if (host.timer >= 0) {
      flows_[to_index(host.timer)].active = false;
      free_.push_back(host.timer);
      host.timer = -1;
      return;
    }
    Flow flow;
    flow.kind = Flow::Kind::Balance;
    flow.owner = id;
    flow.remaining = in_.balance_after;
    host.timer = start_flow(flow);
    schedule(host.timer);
  }
  void mark_changed(int id) {
    Host& host = hosts_[to_index(id)];
    if (!host.changed) changed_hosts_.push_back(id);
    host.changed = true;
  }
  /// The flow begins to need processors of the rank's host.
  void take_processors(int rank, int id) {
    if (!shares_hosts()) return;
    const int host_id = in_.host_of_rank[to_index(rank)];
    Host& host = hosts_[to_index(host_id)];
    Flow& flow = flows_[to_index(id)];
    const bool computes = flow.kind == Flow::Kind::Compute;
    if (computes) ++host.computing;
    host.flows.push_back(id);
    mark_changed(host_id);
    if (!host.queues) return;
    flow.first_thread = first_thread_[to_index(rank)] + (computes || own_thread_ ? 0 : compute_threads_);
    flow.threads = computes ? compute_threads_ : 1;
    for (int i = 0; i < flow.threads; ++i) host.queues->wake(flow.first_thread + i);
  }
  /// It does not need them any more.
  void give_processors(int rank, int id) {
    if (!shares_hosts()) return;
    const int host_id = in_.host_of_rank[to_index(rank)];
    Host& host = hosts_[to_index(host_id)];
    const Flow& flow = flows_[to_index(id)];
    if (flow.kind == Flow::Kind::Compute) --host.computing;
    std::erase(host.flows, id);
    mark_changed(host_id);
    for (int i = 0; host.queues && i < flow.threads; ++i) host.queues->leave(flow.first_thread + i);
  }

  void start_compute(int rank, Seconds cost) {
    Flow flow;
    flow.remaining = cost;
    flow.owner = rank;
    const int id = start_flow(flow);
    running_[to_index(rank)] = id;
    schedule(id);
    take_processors(rank, id);
  }

  const Transfer& cost_of(Lane& lane) const {
    if (!lane.cost) lane.cost = in_.transfer(lane.boundary, lane.gradient, lane.from, lane.to);
    return *lane.cost;
  }
  /// Latency that remains beside the fixed handling.
  static Seconds latency_left(const Transfer& cost) {
    return std::max(Seconds(0), cost.latency - cost.sender.fixed - cost.receiver.fixed);
  }
  /// Transmission, less what the handling that comes before and after it takes beyond the latency.
  Seconds transmission_left(const Transfer& cost) const {
    const Seconds outside = cost.sender.fixed + (own_thread_ ? cost.sender.streaming : cost.receiver.fixed);
    return std::max(Seconds(0), cost.latency + cost.transmission - latency_left(cost) - outside);
  }
  static bool is_handled(const Handling& handling) { return handling.fixed + handling.streaming > Seconds(0); }

  void start_transfer(int lane_id) {
    Lane& lane = lanes_[to_index(lane_id)];
    lane.busy = true;
    lane.started = now_;
    const Transfer& cost = cost_of(lane);
    if (!own_thread_ && cost.sender.fixed > Seconds(0)) {
      enqueue(lane_id, Part::SendFixed);
    } else {
      start_latency(lane_id);
    }
  }
  void start_latency(int lane_id) {
    const Seconds latency = latency_left(*lanes_[to_index(lane_id)].cost);
    if (!(latency > Seconds(0))) return start_streams(lane_id);
    Flow flow;
    flow.kind = Flow::Kind::Latency;
    flow.remaining = latency;
    flow.owner = lane_id;
    schedule(start_flow(flow));
  }
  void start_streams(int lane_id) {
    Lane& lane = lanes_[to_index(lane_id)];
    const Transfer& cost = *lane.cost;
    if (own_thread_ && is_handled(cost.receiver)) return enqueue(lane_id, Part::ReceiveStreaming);
    if (own_thread_) {
      lane.streams = 1;
      return start_wire(lane_id);
    }
    lane.streams = 1 + (cost.sender.streaming > Seconds(0) ? 1 : 0) + (cost.receiver.streaming > Seconds(0) ? 1 : 0);
    if (cost.sender.streaming > Seconds(0)) enqueue(lane_id, Part::SendStreaming);
    if (cost.receiver.streaming > Seconds(0)) enqueue(lane_id, Part::ReceiveStreaming);
    start_wire(lane_id);
  }
  void start_wire(int lane_id) {
    const Transfer& cost = *lanes_[to_index(lane_id)].cost;
    Flow flow;
    flow.kind = Flow::Kind::Wire;
    flow.owner = lane_id;
    flow.egress = cost.egress;
    flow.ingress = cost.ingress;
    flow.remaining = transmission_left(cost);
    const int id = start_flow(flow);
    schedule(id);
    for (const int port : {flow.egress, flow.ingress}) {
      if (port >= 0) port_flows_[to_index(port)].push_back(id);
    }
    share_port(flow.egress);
    share_port(flow.ingress);
  }
  void end_stream(int lane_id) {
    Lane& lane = lanes_[to_index(lane_id)];
    if (--lane.streams > 0) return;
    if (own_thread_) {
      const int rank = lane.to;
      if (is_handled(lane.cost->receiver)) {
        handling_[to_index(rank)] = false;
        running_[to_index(rank)] = -1;
      }
      arrive(lane_id);
    } else if (lane.cost->receiver.fixed > Seconds(0)) {
      enqueue(lane_id, Part::ReceiveFixed);
    } else {
      arrive(lane_id);
    }
  }

  // --- handling of messages ---
  int handler(const Lane& lane, Part part) const {
    return part == Part::SendFixed || part == Part::SendStreaming ? lane.from : lane.to;
  }
  void enqueue(int lane_id, Part part) {
    const Lane& lane = lanes_[to_index(lane_id)];
    const int rank = handler(lane, part);
    handled_[to_index(rank)].push({lane_id, part});
    // A rank's own thread takes it when it waits.
    if (!own_thread_ || (running_[to_index(rank)] < 0 && rank != continuing_)) handle_next(rank);
  }
  /// Begins to handle what has waited longest, unless the rank's thread is busy with another message.
  void handle_next(int rank) {
    WorkQueue& queue = handled_[to_index(rank)];
    if (handling_[to_index(rank)] || queue.is_empty()) return;
    handling_[to_index(rank)] = true;
    const auto [lane_id, part] = queue.pop();
    Lane& lane = lanes_[to_index(lane_id)];
    const Transfer& cost = *lane.cost;
    if (own_thread_) {
      lane.streams = 2;
      running_[to_index(rank)] = start_handling(rank, lane_id, part, cost.receiver.fixed + cost.receiver.streaming);
      start_wire(lane_id);
      return;
    }
    const Handling& handling = handler(lane, part) == lane.from ? cost.sender : cost.receiver;
    const bool fixed = part == Part::SendFixed || part == Part::ReceiveFixed;
    start_handling(rank, lane_id, part, fixed ? handling.fixed : handling.streaming);
  }
  int start_handling(int rank, int lane_id, Part part, Seconds time) {
    Flow flow;
    flow.kind = Flow::Kind::Handling;
    flow.owner = lane_id;
    flow.part = part;
    flow.remaining = time;
    const int id = start_flow(flow);
    schedule(id);
    take_processors(rank, id);
    return id;
  }
  void end_handling(int lane_id, Part part) {
    Lane& lane = lanes_[to_index(lane_id)];
    const int rank = handler(lane, part);
    if (own_thread_) return part == Part::SendFixed ? end_own_send(rank) : end_stream(lane_id);
    handling_[to_index(rank)] = false;
    if (part == Part::SendFixed) {
      start_latency(lane_id);
    } else if (part == Part::ReceiveFixed) {
      arrive(lane_id);
    } else {
      end_stream(lane_id);
    }
    handle_next(rank);
  }
  /// A Send by the rank's own thread; false if it takes no time.
  bool start_own_send(int rank, const Action& action) {
    if (!own_thread_) return false;
    const bool gradient = action.kind == ActionKind::SendGradient;
    const int lane_id = lane_of(boundary_between(action.stage, action.peer), gradient, action.microbatch);
    const Handling& sender = cost_of(lanes_[to_index(lane_id)]).sender;
    if (!is_handled(sender)) return false;
    running_[to_index(rank)] = start_handling(rank, lane_id, Part::SendFixed, sender.fixed + sender.streaming);
    return true;
  }
  void end_own_send(int rank) {
    const Action action = in_.lists[to_index(rank)][next_[to_index(rank)]];
    running_[to_index(rank)] = -1;
    post(action);
    step(rank);
    advance(rank);
  }

  void finish(int id) {
    const Flow flow = flows_[to_index(id)];
    flows_[to_index(id)].active = false;
    free_.push_back(id);
    switch (flow.kind) {
      case Flow::Kind::Latency:
        start_streams(flow.owner);
        break;
      case Flow::Kind::Wire:
        for (const int port : {flow.egress, flow.ingress}) {
          if (port >= 0) std::erase(port_flows_[to_index(port)], id);
        }
        share_port(flow.egress);
        share_port(flow.ingress);
        end_stream(flow.owner);
        break;
      case Flow::Kind::Handling:
        give_processors(handler(lanes_[to_index(flow.owner)], flow.part), id);
        end_handling(flow.owner, flow.part);
        break;
      case Flow::Kind::Delivery:
        deliver(lanes_[to_index(flow.owner)], flow.microbatch, flow.started);
        break;
      case Flow::Kind::Reduce:
        step(flow.owner);
        if (running_[to_index(flow.owner)] < 0) advance(flow.owner);
        break;
      case Flow::Kind::Balance: {
        Host& host = hosts_[to_index(flow.owner)];
        host.timer = -1;
        host.queues->balance();
        mark_changed(flow.owner);
        break;
      }
      case Flow::Kind::Compute:
        give_processors(flow.owner, id);
        computed(flow.owner, flow.started);
        break;
    }
  }

  // --- messages ---
  void try_lane(int lane_id) {
    Lane& lane = lanes_[to_index(lane_id)];
    if (lane.busy || lane.moved >= lane.sent.size() || lane.moved >= lane.posted.size()) return;
    if (lane.sent[lane.moved] != lane.posted[lane.moved]) {
      throw std::invalid_argument("rank " + std::to_string(lane.from) + " sends microbatch " +
                                  std::to_string(lane.sent[lane.moved]) + " where rank " + std::to_string(lane.to) +
                                  " receives microbatch " + std::to_string(lane.posted[lane.moved]));
    }
    start_transfer(lane_id);
  }
  void arrive(int lane_id) {
    Lane& lane = lanes_[to_index(lane_id)];
    const Seconds started = lane.started;
    const int microbatch = lane.sent[lane.moved++];
    lane.busy = false;
    try_lane(lane_id);
    deliver(lane, microbatch, started);
  }
  void deliver(const Lane& lane, int microbatch, Seconds started) {
    const BoundaryEnds& pair = plan_.ends(lane.boundary);
    const bool gradient = lane.gradient;
    record(lane.from,
           {gradient ? ActionKind::SendGradient : ActionKind::SendActivation, gradient ? pair.destination : pair.source,
            microbatch, gradient ? pair.source : pair.destination},
           started, now_);
    arrived_[gradient][to_index(lane.boundary)][to_index(microbatch)] = now_;
    if (running_[to_index(lane.to)] < 0) advance(lane.to);
  }

  // --- repetition ---
  Snapshot snapshot() const {
    Snapshot out;
    out.now = now_;
    out.microbatch = snapshot_microbatch_;
    out.next = next_;
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      out.counts.push_back(running_[rank] >= 0);
      out.counts.push_back(waited_[rank]);
      out.counts.push_back(handling_[rank]);
      for (const WorkQueue::Work& work : handled_[rank].waiting()) {
        out.counts.push_back(work.lane);
        out.counts.push_back(static_cast<int>(work.part));
      }
      const bool waits = running_[rank] < 0 || (own_thread_ && handling_[rank]);
      if (waits) out.times.push_back(since_[rank] - now_);
      if (!waits || next_[rank] >= in_.lists[rank].size()) continue;
      // Arrival times of the messages that have come, of those that it waits for.
      const Action& action = in_.lists[rank][next_[rank]];
      const bool gradient = action.kind == ActionKind::Backward;
      if (action.kind != ActionKind::Forward && !gradient) continue;
      for (const int b : gradient ? plan_.outgoing(action.stage) : plan_.incoming(action.stage)) {
        const Seconds arrival = arrived_[gradient][to_index(b)][to_index(action.microbatch)];
        out.counts.push_back(arrival < kNever);
        if (arrival < kNever) out.times.push_back(arrival - now_);
      }
    }
    for (const Lane& lane : lanes_) {
      out.moved.push_back(lane.moved);
      out.counts.push_back(lane.busy);
      if (lane.busy) {
        out.counts.push_back(lane.streams);
        out.times.push_back(lane.started - now_);
      }
      for (const auto* queue : {&lane.sent, &lane.posted}) {
        out.counts.push_back(static_cast<std::int64_t>(queue->size() - lane.moved));
        for (std::size_t i = lane.moved; i < queue->size(); ++i)
          out.counts.push_back((*queue)[i] - snapshot_microbatch_);
      }
    }
    for (const Host& host : hosts_) {
      if (host.queues) host.queues->append_state(out.counts);
    }
    for (const auto& waiting : reduce_waiting_) out.counts.push_back(static_cast<std::int64_t>(waiting.size()));
    auto events = events_;
    for (; !events.empty(); events.pop()) {
      const Event& event = events.top();
      const Flow& flow = flows_[to_index(event.flow)];
      if (!flow.active || flow.version != event.version) continue;
      for (const int each :
           {static_cast<int>(flow.kind), flow.owner, static_cast<int>(flow.part), flow.egress, flow.ingress})
        out.counts.push_back(each);
      out.times.push_back(event.time - now_);
      out.times.push_back(flow.started - now_);
      out.rates.push_back(flow.rate);
    }
    return out;
  }

  /// Whether every list continues after the later of two snapshots as it did after the earlier, for as long.
  bool lists_repeat(const Snapshot& a, const Snapshot& b) const {
    for (std::size_t rank = 0; rank < in_.lists.size(); ++rank) {
      const auto& list = in_.lists[rank];
      const std::size_t length = b.next[rank] - a.next[rank];
      if (length == 0 || b.next[rank] + length > list.size()) return false;
      for (std::size_t i = a.next[rank]; i < b.next[rank]; ++i) {
        Action shifted = list[i];
        if (shifted.microbatch < 0) return false;
        shifted.microbatch += b.microbatch - a.microbatch;
        if (shifted != list[i + length]) return false;
      }
    }
    return true;
  }

  static bool is_repeated(const Snapshot& a, const Snapshot& b) {
    if (a.counts != b.counts || a.times.size() != b.times.size() || a.rates.size() != b.rates.size()) return false;
    const Seconds tolerance = kEqual * (b.now - a.now);
    for (std::size_t i = 0; i < a.times.size(); ++i) {
      if (!(Seconds(std::abs((a.times[i] - b.times[i]).value)) <= tolerance)) return false;
    }
    for (std::size_t i = 0; i < a.rates.size(); ++i) {
      if (!(std::abs(a.rates[i] - b.rates[i]) <= kEqual)) return false;
    }
    return b.now > a.now;
  }

  void look_for_period() {
    snapshot_due_ = false;
    Snapshot latest = snapshot();
    for (auto earlier = snapshots_.rbegin(); earlier != snapshots_.rend(); ++earlier) {
      if (!is_repeated(*earlier, latest) || !lists_repeat(*earlier, latest)) continue;
      watch_->period = {earlier->now, latest.now, latest.microbatch - earlier->microbatch, earlier->next, latest.next};
      return;
    }
    if (snapshots_.size() == kMostCycles) snapshots_.pop_front();
    snapshots_.push_back(std::move(latest));
  }

  /// A cycle of the first rank ends with its first stage's Forward of the cycle's first microbatch.
  void end_cycle(int rank, const Action& action) {
    if (watch_ == nullptr || watch_->period || rank != 0 || action.kind != ActionKind::Forward || action.stage != 0)
      return;
    if (in_.mode != TransferMode::Rendezvous || action.microbatch % watch_->cycle != 0) return;
    snapshot_due_ = true;
    snapshot_microbatch_ = action.microbatch;
  }

  // --- ranks ---
  void computed(int rank, Seconds started) {
    const Action& action = in_.lists[to_index(rank)][next_[to_index(rank)]];
    record(rank, action, started, now_);
    end_cycle(rank, action);
    if (action.kind == ActionKind::Forward) forward_done_[slot(action.stage, action.microbatch)] = true;
    if (action.kind == ActionKind::Backward) backward_done_[slot(action.stage, action.microbatch)] = true;
    running_[to_index(rank)] = -1;
    step(rank);
    advance(rank);
  }
  void step(int rank) {
    ++next_[to_index(rank)];
    since_[to_index(rank)] = now_;
    waited_[to_index(rank)] = false;
  }

  /// Whether the inputs of a compute action have arrived; the waits become spans, in the order of the boundaries.
  bool inputs_ready(int rank, const Action& action) {
    if (action.kind == ActionKind::Update) return true;
    if (action.kind == ActionKind::WeightGradient) return backward_done_[slot(action.stage, action.microbatch)];
    const bool gradient = action.kind == ActionKind::Backward;
    if (gradient && !forward_done_[slot(action.stage, action.microbatch)]) return false;
    const std::vector<int>& joined = gradient ? plan_.outgoing(action.stage) : plan_.incoming(action.stage);
    for (const int b : joined) {
      const BoundaryEnds& pair = plan_.ends(b);
      const int peer = gradient ? pair.destination : pair.source;
      if (gradient && !pair.gradient) continue;
      if (plan_.runner(peer, action.microbatch) == rank) {
        if (!(gradient ? backward_done_ : forward_done_)[slot(peer, action.microbatch)]) return false;
      } else if (arrived_[gradient][to_index(b)][to_index(action.microbatch)] > now_) {
        return false;
      }
    }
    Seconds since = since_[to_index(rank)];
    for (const int b : joined) {
      const BoundaryEnds& pair = plan_.ends(b);
      const int peer = gradient ? pair.destination : pair.source;
      if ((gradient && !pair.gradient) || plan_.runner(peer, action.microbatch) == rank) continue;
      const Seconds end = std::max(since, arrived_[gradient][to_index(b)][to_index(action.microbatch)]);
      record(rank,
             {gradient ? ActionKind::ReceiveGradient : ActionKind::ReceiveActivation, action.stage, action.microbatch,
              peer},
             since, end);
      since = end;
    }
    return true;
  }

  Seconds cost(const Action& action) const {
    const StageCost& stage = in_.stages[to_index(action.stage)];
    if (action.kind == ActionKind::Forward) return stage.forward;
    if (action.kind == ActionKind::Backward)
      return stage.whole_backward && !split_[slot(action.stage, action.microbatch)] ? *stage.whole_backward
                                                                                    : stage.backward;
    if (action.kind == ActionKind::WeightGradient) return stage.weight_gradient;
    return stage.update;
  }

  /// The rank's thread goes on with its list; if that has to wait, with messages that have come.
  void advance(int rank) {
    continuing_ = rank;
    continue_list(rank);
    continuing_ = -1;
    if (own_thread_ && running_[to_index(rank)] < 0) handle_next(rank);
  }
  /// Whether the action waits for messages of other ranks.
  bool receives(int rank, const Action& action) const {
    const bool gradient = action.kind == ActionKind::Backward;
    if (action.kind != ActionKind::Forward && !gradient) return false;
    const std::vector<int>& joined = gradient ? plan_.outgoing(action.stage) : plan_.incoming(action.stage);
    return std::any_of(joined.begin(), joined.end(), [&](int b) {
      const BoundaryEnds& pair = plan_.ends(b);
      return (!gradient || pair.gradient) &&
             plan_.runner(gradient ? pair.destination : pair.source, action.microbatch) != rank;
    });
  }
  void continue_list(int rank) {
    const auto& list = in_.lists[to_index(rank)];
    while (next_[to_index(rank)] < list.size()) {
      const Action& action = list[next_[to_index(rank)]];
      switch (action.kind) {
        case ActionKind::SendActivation:
        case ActionKind::SendGradient:
          if (start_own_send(rank, action)) return;
          post(action);
          step(rank);
          break;
        case ActionKind::ReceiveActivation:
        case ActionKind::ReceiveGradient:
          post(action);
          step(rank);
          break;
        case ActionKind::Reduce:
          if (!is_last_of_group(rank)) {
            record(rank, action, now_, now_);
            step(rank);
            break;
          }
          join_reduce(rank, action);
          return;
        default:
          if (own_thread_ && !handled_[to_index(rank)].is_empty() && receives(rank, action)) return;
          if (!inputs_ready(rank, action)) return;
          start_compute(rank, cost(action));
          return;
      }
    }
  }
  void post(const Action& action) {
    const bool send = action.kind == ActionKind::SendActivation || action.kind == ActionKind::SendGradient;
    const bool gradient = action.kind == ActionKind::SendGradient || action.kind == ActionKind::ReceiveGradient;
    const int boundary = boundary_between(action.stage, action.peer);
    const int lane_id = lane_of(boundary, gradient, action.microbatch);
    Lane& lane = lanes_[to_index(lane_id)];
    if (in_.mode == TransferMode::Rendezvous) {
      (send ? lane.sent : lane.posted).push_back(action.microbatch);
      try_lane(lane_id);
    } else if (send) {  // messages do not occupy links or wait for others
      const Transfer cost = in_.transfer(boundary, gradient, lane.from, lane.to);
      Flow flow;
      flow.kind = Flow::Kind::Delivery;
      flow.owner = lane_id;
      flow.microbatch = action.microbatch;
      flow.remaining = cost.latency + cost.transmission;
      schedule(start_flow(flow));
    }
  }
  int group_of(const Action& reduce) const { return plan_.reduce_groups()[to_index(reduce.stage)]; }
  /// Whether the rank's next action, a Reduce, is its last one of the group; of several stages the last one waits.
  bool is_last_of_group(int rank) const {
    if (plan_.plan().chunks == 1) return true;
    const auto& list = in_.lists[to_index(rank)];
    const auto at = list.begin() + static_cast<std::ptrdiff_t>(next_[to_index(rank)]);
    return std::none_of(at + 1, list.end(), [&](const Action& later) {
      return later.kind == ActionKind::Reduce && group_of(later) == group_of(*at);
    });
  }
  /// Time to sum the gradients of all the rank's stages in the group, but for tied parameters.
  Seconds reduce_of(int rank, int group) const {
    Seconds out;
    for (const int stage : plan_.ranks()[to_index(rank)].stages) {
      if (plan_.reduce_groups()[to_index(stage)] == group) out += in_.stages[to_index(stage)].reduce;
    }
    return out;
  }
  void join_reduce(int rank, const Action& action) {
    if (waited_[to_index(rank)]) return;
    waited_[to_index(rank)] = true;
    const int group = group_of(action);
    auto& waiting = reduce_waiting_[to_index(group)];
    waiting.push_back({rank, now_});
    if (to_int(waiting.size()) < reduce_members_[to_index(group)]) return;
    std::vector<std::pair<int, Seconds>> members;
    members.swap(waiting);
    // A stage's buckets are reduced one at a time, each once all its replicas have it.
    Seconds left;
    std::map<int, std::vector<Seconds>> arrivals;  // by stage
    for (const auto& [member, since] : members)
      arrivals[in_.lists[to_index(member)][next_[to_index(member)]].stage].push_back(since);
    for (const auto& [stage, times] : arrivals) {
      const Seconds last = *std::max_element(times.begin(), times.end());
      Seconds end;
      for (const ReduceBucket& bucket : in_.stages[to_index(stage)].buckets)
        end = std::max(end, last - bucket.before_end) + bucket.time;
      left = std::max(left, end - now_);
    }
    Seconds reduce;
    Seconds tied;
    for (const auto& [member, since] : members) {
      reduce = std::max(reduce, reduce_of(member, group));
      for (const int stage : plan_.ranks()[to_index(member)].stages) {
        if (plan_.reduce_groups()[to_index(stage)] == group) tied = std::max(tied, in_.stages[to_index(stage)].tied);
      }
    }
    const Seconds cost_of_group = reduce + tied + left;
    for (const auto& [member, since] : members) {
      record(member, in_.lists[to_index(member)][next_[to_index(member)]], since, now_ + cost_of_group);
      Flow flow;
      flow.kind = Flow::Kind::Reduce;
      flow.owner = member;
      flow.remaining = cost_of_group;
      schedule(start_flow(flow));
    }
  }

  std::string describe(int rank) const {
    const Action& action = in_.lists[to_index(rank)][next_[to_index(rank)]];
    std::string out = "rank " + std::to_string(rank) + " (stage " + std::to_string(action.stage) + ") is blocked at " +
                      to_string(action.kind);
    if (action.microbatch >= 0) out += " of microbatch " + std::to_string(action.microbatch);
    return out;
  }
  std::string circle(int rank) const {
    std::string out = "deadlock: " + describe(rank);
    for (std::size_t r = 0; r < in_.lists.size(); ++r) {
      if (to_int(r) != rank && next_[r] < in_.lists[r].size()) out += "; " + describe(to_int(r));
    }
    return out;
  }

  static constexpr std::uint64_t kProgressEvents = 1 << 16;

  const SimulationInput& in_;
  const BoundPlan& plan_;
  PeriodSearch* watch_;
  bool snapshot_due_ = false;
  int snapshot_microbatch_ = 0;
  std::deque<Snapshot> snapshots_;
  std::uint64_t finished_ = 0;
  const int microbatches_;         // of all steps
  std::vector<int> step_of_rank_;  // of its last gradient
  Seconds now_;
  std::uint64_t sequence_ = 0;
  std::vector<Flow> flows_;
  std::vector<int> free_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  std::vector<Lane> lanes_;
  std::vector<int> first_lane_, lane_cycle_;
  std::vector<std::vector<Seconds>> arrived_[2];
  std::vector<bool> forward_done_, backward_done_, waited_;
  std::vector<bool> split_;  // by slot: whether a WeightGradient follows the Backward
  std::vector<std::size_t> next_;
  std::vector<Seconds> since_;
  std::vector<int> running_;
  std::vector<std::vector<int>> port_flows_;
  std::vector<Host> hosts_;
  std::vector<double> memory_slowdown_;  // by computations of a host
  int compute_threads_ = 1;              // of a rank
  std::vector<int> first_thread_;        // by rank: among those of its host
  std::vector<int> changed_hosts_;
  std::vector<WorkQueue> handled_;  // by rank: messages that wait for its thread
  const bool own_thread_;
  int continuing_ = -1;         // the rank whose thread goes on with its list at this moment
  std::vector<bool> handling_;  // by rank: whether that is busy with one
  std::vector<std::vector<std::pair<int, Seconds>>> reduce_waiting_;
  std::vector<int> reduce_members_;
  Timeline timeline_;
};

}  // namespace

std::variant<Timeline, Infeasible> simulate(const SimulationInput& input) { return Simulation(input).run(); }

std::variant<Timeline, Infeasible> simulate_and_watch(const SimulationInput& input, PeriodSearch& watch) {
  return Simulation(input, &watch).run();
}

std::size_t action_count(const SimulationInput& input) {
  std::size_t count = 0;
  for (const auto& list : input.lists) count += list.size();
  return count;
}

}  // namespace stagecraft
