#include "costmodel/simulation/simulate.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <span>
#include <stdexcept>
#include <utility>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/simulation/flows.h"
#include "costmodel/simulation/hosts.h"
#include "costmodel/simulation/rank_spans.h"
#include "costmodel/simulation/repetition.h"
#include "costmodel/simulation/waiting.h"

namespace stagecraft::simulation {
namespace {

constexpr Seconds kNever(std::numeric_limits<double>::infinity());

/// How far a rank has come in its list.
struct RankState {
  std::span<const Action> list;
  std::size_t next = 0;
  Seconds since{};     // it has been at `next`
  int step = 0;        // of its last gradient
  bool runs = false;   // its thread computes, or handles a message
  bool waits = false;  // in a Reduce, or for parameters
};

/// Replays the lists of all ranks. Ranks start flows (computations, messages, sums) and lanes pass messages on; each
/// end of a flow lets ranks and lanes go on.
class Simulation final : private Hosts::Messages {
 public:
  explicit Simulation(const SimulationInput& input, PeriodSearch* watch = nullptr)
      : in_(input),
        plan_(input.plan),
        watch_(watch),
        microbatches_(plan_.plan().microbatches * input.steps),
        flows_(input.ports),
        lanes_(input),
        hosts_(input.hosts, input.mode, input.lists.size(), lanes_.count(), flows_, *this),
        reduces_(input),
        gathers_(input.lists),
        spans_(input.lists),
        step_ends_(to_index(input.steps)) {
    const std::size_t slots = in_.stages.size() * to_index(microbatches_);
    const std::size_t messages = plan_.plan().boundaries.size() * to_index(microbatches_);
    for (std::vector<Seconds>& arrived : arrived_) arrived.assign(messages, kNever);
    for (std::vector<bool>& done : done_) done.assign(slots, false);
    ranks_.resize(in_.lists.size());
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) ranks_[rank].list = in_.lists[rank];
    find_splits();
    // At any moment each rank has at most one computation or sum and one timer of its host, and each lane one message
    // and one part of its handling at each end; replicas have one gather.
    flows_.reserve(3 * ranks_.size() + 3 * to_index(lanes_.count()));
  }

  std::variant<Timeline, Infeasible> run() {
    for (int rank = 0; rank < ranks(); ++rank) advance(rank);
    hosts_.share();
    for (int id = flows_.next(); id >= 0; id = flows_.next()) {
      finish(id);
      hosts_.share();
      if (snapshot_due_ && flows_.is_moment_over()) look_for_period();
      if (watch_ && watch_->progress && ++finished_ % kProgressEvents == 0) watch_->progress(actions_done());
    }
    for (int rank = 0; rank < ranks(); ++rank) {
      if (!has_ended(rank)) return Infeasible{circle(rank), ErrorKind::Unprovable};
    }
    return timeline();
  }

 private:
  int ranks() const { return to_int(ranks_.size()); }
  std::size_t slot(int stage, int microbatch) const {
    return to_index(stage) * to_index(microbatches_) + to_index(microbatch);
  }
  Seconds& arrival(bool gradient, int boundary, int microbatch) {
    return arrived_[gradient][to_index(boundary) * to_index(microbatches_) + to_index(microbatch)];
  }
  RankState& at(int rank) { return ranks_[to_index(rank)]; }
  const RankState& at(int rank) const { return ranks_[to_index(rank)]; }
  bool has_ended(int rank) const { return at(rank).next >= at(rank).list.size(); }
  double actions_done() const {
    double done = 0;
    for (const RankState& rank : ranks_) done += static_cast<double>(rank.next);
    return done / static_cast<double>(action_count(in_));
  }

  /// Marks the backwards that a WeightGradient follows, if a stage may have backwards of both kinds.
  void find_splits() {
    if (std::ranges::none_of(in_.stages, [](const StageCost& stage) { return stage.whole_backward.has_value(); }))
      return;
    split_.assign(in_.stages.size() * to_index(microbatches_), false);
    for (const std::vector<Action>& list : in_.lists) {
      for (const Action& action : list) {
        if (action.kind == ActionKind::WeightGradient) split_[slot(action.stage, action.microbatch)] = true;
      }
    }
  }

  void record(int rank, const Action& action, Seconds start, Seconds end) {
    int step = at(rank).step;
    if (action.microbatch >= 0) {
      step = in_.steps == 1 ? 0 : action.microbatch / plan_.plan().microbatches;
      const bool gradient = action.kind == ActionKind::Backward || action.kind == ActionKind::WeightGradient;
      if (gradient) at(rank).step = step;
    }
    Seconds& step_end = step_ends_[to_index(step)];
    step_end = std::max(step_end, end);
    spans_.add({rank, step, action, start, end});
  }
  Timeline timeline() {
    Timeline out;
    out.ranks = ranks();
    for (const RankState& rank : ranks_) out.stage_of_rank.push_back(rank.list.empty() ? -1 : rank.list.front().stage);
    Seconds start;
    for (int step = 0; step < in_.steps; ++step) {
      const Seconds end = std::max(start, step_ends_[to_index(step)]);
      out.steps.push_back({step, start, end});
      start = end;
    }
    out.spans = spans_.take();
    return out;
  }

  void finish(int id) {
    const Task task = flows_[id].task;
    const Seconds started = flows_[id].started;
    switch (task.kind) {
      case Task::Kind::Latency:
        start_streams(task.owner);
        break;
      case Task::Kind::Wire:
        end_stream(task.owner);
        break;
      case Task::Kind::Handling:
        hosts_.finish_handling(task.owner, task.part, lanes_[task.owner], id);
        break;
      case Task::Kind::Delivery:
        deliver(lanes_[task.owner], task.microbatch, started);
        break;
      case Task::Kind::Reduce:
        step(task.owner);
        if (!at(task.owner).runs) advance(task.owner);
        break;
      case Task::Kind::Gather:
        gathered(task.owner);
        break;
      case Task::Kind::Balance:
        hosts_.balance(task.owner);
        break;
      case Task::Kind::Compute:
        hosts_.give(task.owner, id);
        computed(task.owner, started);
        break;
    }
  }

  // --- ranks ---
  /// The rank's thread goes on with its list. When the list has to wait, the thread turns to messages that have come.
  void advance(int rank) {
    continuing_ = rank;
    continue_list(rank);
    continuing_ = -1;
    if (!at(rank).runs) hosts_.wait(rank);
  }
  void continue_list(int rank) {
    while (!has_ended(rank)) {
      const Action& action = at(rank).list[at(rank).next];
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
        case ActionKind::Gather:
          start_gather(gathers_.begin(rank, action.stage));
          [[fallthrough]];
        case ActionKind::Free:
          step(rank);
          break;
        case ActionKind::Reduce:
          if (!reduces_.is_last(rank, at(rank).next)) {
            record(rank, action, flows_.now(), flows_.now());
            step(rank);
            break;
          }
          join_reduce(rank, action);
          return;
        default:
          if (hosts_.interrupts(rank) && receives(action)) return;
          if (!is_whole(rank, action) || !inputs_ready(rank, action)) return;
          start_compute(rank, cost(action));
          return;
      }
    }
  }
  void step(int rank) {
    ++at(rank).next;
    at(rank).since = flows_.now();
    at(rank).waits = false;
  }
  void start_compute(int rank, Seconds cost) {
    at(rank).runs = true;
    hosts_.take(rank, flows_.start({.kind = Task::Kind::Compute, .owner = rank}, cost));
    // With many ranks, the rest of the list has left the caches by the time the rank goes on.
    const RankState& one = at(rank);
    __builtin_prefetch(one.list.data() + std::min(one.next + 4, one.list.size()));
  }
  void computed(int rank, Seconds started) {
    const Action& action = at(rank).list[at(rank).next];
    record(rank, action, started, flows_.now());
    end_cycle(rank, action);
    const bool gradient = action.kind == ActionKind::Backward;
    if (gradient || action.kind == ActionKind::Forward) done_[gradient][slot(action.stage, action.microbatch)] = true;
    at(rank).runs = false;
    step(rank);
    advance(rank);
  }
  Seconds cost(const Action& action) const {
    const bool splits = split_.empty() || action.microbatch < 0 || split_[slot(action.stage, action.microbatch)];
    return time_of(in_.stages[to_index(action.stage)], action.kind, splits);
  }

  /// Whether the action waits for messages of other ranks.
  bool receives(const Action& action) const {
    return std::ranges::any_of(plan_.inputs(action),
                               [&](const Passage& input) { return plan_.is_message(action, input); });
  }
  /// Whether the inputs of a compute action have arrived; the waits become spans, in the order of the boundaries.
  bool inputs_ready(int rank, const Action& action) {
    if (action.kind == ActionKind::Update) return true;
    if (action.kind == ActionKind::WeightGradient) return done_[true][slot(action.stage, action.microbatch)];
    const bool gradient = action.kind == ActionKind::Backward;
    if (gradient && !done_[false][slot(action.stage, action.microbatch)]) return false;
    for (const Passage& input : plan_.inputs(action)) {
      const bool ready = plan_.is_message(action, input)
                             ? arrival(gradient, input.boundary, action.microbatch) <= flows_.now()
                             : done_[gradient][slot(input.peer, action.microbatch)];
      if (!ready) return false;
    }
    Seconds since = at(rank).since;
    for (const Passage& input : plan_.inputs(action)) {
      if (!plan_.is_message(action, input)) continue;
      const Seconds end = std::max(since, arrival(gradient, input.boundary, action.microbatch));
      record(rank, receive_of(action, input), since, end);
      since = end;
    }
    return true;
  }

  /// Whether the rank has the parameters for the action. A wait for them becomes a span.
  bool is_whole(int rank, const Action& action) {
    if (gathers_.members(action.stage).empty() || action.kind == ActionKind::Update) return true;
    if (!gathers_.is_whole(rank, action.stage)) {
      at(rank).waits = true;
      return false;
    }
    if (!std::exchange(at(rank).waits, false)) return true;
    record(rank, {ActionKind::Gather, action.stage, -1, -1}, at(rank).since, flows_.now());
    at(rank).since = flows_.now();
    return true;
  }
  void start_gather(std::optional<int> stage) {
    if (stage) flows_.start({.kind = Task::Kind::Gather, .owner = *stage}, in_.stages[to_index(*stage)].gather);
  }
  void gathered(int stage) {
    start_gather(gathers_.end(stage));
    for (const int rank : gathers_.members(stage)) {
      if (!at(rank).runs) advance(rank);
    }
  }

  void join_reduce(int rank, const Action& action) {
    if (at(rank).waits) return;
    at(rank).waits = true;
    const auto members = reduces_.join({rank, action.stage, flows_.now()});
    if (members.empty()) return;
    const Seconds time = reduces_.time(members, flows_.now());
    for (const ReduceGroups::Member& member : members) {
      record(member.rank, at(member.rank).list[at(member.rank).next], member.since, flows_.now() + time);
      flows_.start({.kind = Task::Kind::Reduce, .owner = member.rank}, time);
    }
  }

  // --- messages ---
  void post(const Action& action) {
    const bool send = is_send(action.kind);
    const int id = lanes_.of(action);
    if (in_.mode == TransferMode::Rendezvous) {
      (send ? lanes_[id].sent : lanes_[id].posted).push_back(action.microbatch);
      try_lane(id);
    } else if (send) {  // messages do not occupy links or wait for others
      const Transfer& cost = lanes_.cost(lanes_[id]).transfer;
      flows_.start({.kind = Task::Kind::Delivery, .owner = id, .microbatch = action.microbatch},
                   cost.latency + cost.transmission);
    }
  }
  /// Begins the lane's next message, unless another one moves, it has not been sent, or its receive has not been
  /// posted.
  void try_lane(int id) {
    Lane& lane = lanes_[id];
    if (lane.busy || lane.moved >= lane.sent.size() || lane.moved >= lane.posted.size()) return;
    if (lane.sent[lane.moved] != lane.posted[lane.moved]) {
      throw std::invalid_argument("rank " + std::to_string(lane.from) + " sends microbatch " +
                                  std::to_string(lane.sent[lane.moved]) + " where rank " + std::to_string(lane.to) +
                                  " receives microbatch " + std::to_string(lane.posted[lane.moved]));
    }
    lane.busy = true;
    lane.started = flows_.now();
    if (!hosts_.delays_departure(id, lane, lanes_.cost(lane).transfer)) start_latency(id);
  }
  void start_latency(int id) override {
    const Seconds latency = lanes_.cost(lanes_[id]).latency;
    if (!(latency > Seconds(0))) return start_streams(id);
    flows_.start({.kind = Task::Kind::Latency, .owner = id}, latency);
  }
  void start_streams(int id) {
    Lane& lane = lanes_[id];
    if (hosts_.begins_to_move(id, lane, lane.cost->transfer)) start_wire(id);
  }
  void start_wire(int id) override {
    const MessageCost& cost = *lanes_[id].cost;
    flows_.start({.kind = Task::Kind::Wire, .owner = id}, cost.transmission,
                 {cost.transfer.egress, cost.transfer.ingress});
  }
  void end_stream(int id) override {
    Lane& lane = lanes_[id];
    if (--lane.streams > 0) return;
    if (!hosts_.delays_arrival(id, lane, lane.cost->transfer)) arrive(id);
  }
  void arrive(int id) override {
    Lane& lane = lanes_[id];
    const Seconds started = lane.started;
    const int microbatch = lane.sent[lane.moved++];
    lane.busy = false;
    try_lane(id);
    deliver(lane, microbatch, started);
  }
  void deliver(const Lane& lane, int microbatch, Seconds started) {
    const BoundaryEnds& ends = plan_.ends(lane.boundary);
    const bool gradient = lane.gradient;
    record(lane.from,
           {gradient ? ActionKind::SendGradient : ActionKind::SendActivation, gradient ? ends.destination : ends.source,
            microbatch, gradient ? ends.source : ends.destination},
           started, flows_.now());
    arrival(gradient, lane.boundary, microbatch) = flows_.now();
    if (!at(lane.to).runs) advance(lane.to);
  }

  // --- what hosts see of ranks and messages ---
  MovingMessage& message(int lane) override { return lanes_[lane]; }
  const Transfer& transfer(int lane) override { return lanes_[lane].cost->transfer; }
  bool is_free(int rank) override { return !at(rank).runs && rank != continuing_; }
  void set_busy(int rank, bool busy) override { at(rank).runs = busy; }
  /// Whether the Send takes time of the rank's own thread.
  bool start_own_send(int rank, const Action& action) {
    if (!hosts_.has_one_thread_per_rank()) return false;
    const int id = lanes_.of(action);
    return hosts_.delays_send(rank, id, lanes_.cost(lanes_[id]).transfer);
  }
  void end_own_send(int rank) override {
    at(rank).runs = false;
    post(at(rank).list[at(rank).next]);
    step(rank);
    advance(rank);
  }

  // --- repetition ---
  /// A cycle of the first rank ends with its first stage's Forward of the cycle's first microbatch.
  void end_cycle(int rank, const Action& action) {
    if (watch_ == nullptr || watch_->period || rank != 0 || action.kind != ActionKind::Forward || action.stage != 0)
      return;
    if (in_.mode != TransferMode::Rendezvous || action.microbatch % watch_->cycle != 0) return;
    snapshot_due_ = true;
    snapshot_microbatch_ = action.microbatch;
  }
  void look_for_period() {
    snapshot_due_ = false;
    fill(repetition_.add());
    watch_->period = repetition_.find(in_.lists);
  }
  void fill(Snapshot& out) {
    out.now = flows_.now();
    out.microbatch = snapshot_microbatch_;
    for (int rank = 0; rank < ranks(); ++rank) append_rank(rank, out);
    for (const Lane& lane : lanes_.all()) append_lane(lane, out);
    hosts_.append_state(out.counts, out.times);
    for (int group = 0; group < reduces_.count(); ++group)
      out.counts.push_back(static_cast<std::int64_t>(reduces_.waiting(group)));
    gathers_.append_state(out.counts);
    flows_.visit_in_order([&](const Flow& flow, Seconds end) {
      for (const int number : {static_cast<int>(flow.task.kind), flow.task.owner, static_cast<int>(flow.task.part),
                               flow.ports.egress, flow.ports.ingress})
        out.counts.push_back(number);
      out.times.push_back(end - out.now);
      out.times.push_back(flow.started - out.now);
      out.rates.push_back(flow.rate);
    });
  }
  void append_rank(int id, Snapshot& out) {
    const RankState& rank = at(id);
    out.next.push_back(rank.next);
    out.counts.push_back(rank.runs);
    out.counts.push_back(rank.waits);
    hosts_.append_rank(id, out.counts);
    if (rank.runs && !hosts_.handles_itself(id)) return;
    out.times.push_back(rank.since - out.now);
    if (has_ended(id)) return;
    // The rank waits for these messages: the state has the arrival times of those that have come.
    const Action& action = rank.list[rank.next];
    for (const Passage& input : plan_.inputs(action)) {
      const Seconds time = arrival(input.gradient, input.boundary, action.microbatch);
      out.counts.push_back(time < kNever);
      if (time < kNever) out.times.push_back(time - out.now);
    }
  }
  void append_lane(const Lane& lane, Snapshot& out) const {
    out.counts.push_back(lane.busy);
    if (lane.busy) {
      out.counts.push_back(lane.streams);
      out.times.push_back(lane.started - out.now);
    }
    for (const std::vector<int>* queue : {&lane.sent, &lane.posted}) {
      out.counts.push_back(static_cast<std::int64_t>(queue->size() - lane.moved));
      for (std::size_t i = lane.moved; i < queue->size(); ++i) out.counts.push_back((*queue)[i] - out.microbatch);
    }
  }

  // --- deadlock ---
  std::string describe(int rank) const {
    const Action& action = at(rank).list[at(rank).next];
    std::string out = "rank " + std::to_string(rank) + " (stage " + std::to_string(action.stage) + ") is blocked at " +
                      to_string(action.kind);
    if (action.microbatch >= 0) out += " of microbatch " + std::to_string(action.microbatch);
    return out;
  }
  std::string circle(int rank) const {
    std::string out = "deadlock: " + describe(rank);
    for (int r = 0; r < ranks(); ++r) {
      if (r != rank && !has_ended(r)) out += "; " + describe(r);
    }
    return out;
  }

  // A few milliseconds of events: often enough for a progress line, and too rare to slow the replay down.
  static constexpr std::uint64_t kProgressEvents = 1 << 16;

  const SimulationInput& in_;
  const BoundPlan& plan_;
  PeriodSearch* watch_;
  const int microbatches_;  // of all steps
  Flows flows_;
  Lanes lanes_;
  Hosts hosts_;
  ReduceGroups reduces_;
  Gathers gathers_;
  RankSpans spans_;
  std::vector<Seconds> step_ends_;
  std::vector<RankState> ranks_;
  int continuing_ = -1;              // the rank whose thread goes on with its list at this moment
  std::vector<Seconds> arrived_[2];  // [gradient], by boundary and microbatch
  std::vector<bool> done_[2];        // [gradient], by stage and microbatch
  std::vector<bool> split_;          // by stage and microbatch: whether a WeightGradient follows the Backward; see cost
  Repetition repetition_;
  bool snapshot_due_ = false;
  int snapshot_microbatch_ = 0;
  std::uint64_t finished_ = 0;
};

}  // namespace
}  // namespace stagecraft::simulation

namespace stagecraft {

std::variant<Timeline, Infeasible> simulate(const SimulationInput& input) {
  return simulation::Simulation(input).run();
}

std::variant<Timeline, Infeasible> simulate_and_watch(const SimulationInput& input, PeriodSearch& watch) {
  return simulation::Simulation(input, &watch).run();
}

std::size_t action_count(const SimulationInput& input) {
  std::size_t count = 0;
  for (const auto& list : input.lists) count += list.size();
  return count;
}

}  // namespace stagecraft
