#include "costmodel/simulation/step_bounds.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "costmodel/index.h"

namespace stagecraft {
namespace {

constexpr Seconds kUnbounded(std::numeric_limits<double>::infinity());

/// Times of the messages over one boundary in one direction; 0 if the stages are on one rank.
struct MessageWay {
  Seconds longest;  ///< of the slowest pair of ranks, with all that may share its ports
  Seconds alone;    ///< on idle ports
  Seconds least;    ///< of the fastest pair, on idle ports
  int lanes = 0;
};

struct MessageHop {
  int source = 0;
  int destination = 0;
  bool gradient = false;
  int cycle = 1;  ///< microbatches after which the same pair of ranks meets again
  MessageWay activation;
  MessageWay back;  ///< of the gradient
  [[nodiscard]] Seconds longest() const { return std::max(activation.longest, back.longest); }
};

/// What the bounds need to know of one stage.
struct StageNumbers {
  Seconds forward;
  Seconds backward;  ///< the part before the gradient leaves
  Seconds weights;   ///< the other part; 0 if the schedule does not split the backward
  int replicas = 1;
  int most = 1;  ///< microbatches of a replica, at most
  int warmup = 0;
  Seconds out;             ///< the longest activation that it sends
  Seconds back;            ///< the longest gradient that it sends
  Seconds first_in;        ///< the longest activation from one of several senders; 0 if it has one
  Seconds returned;        ///< the longest gradient that it receives
  Seconds first_returned;  ///< of several senders; 0 if it has one
};

/// Sums and maxima over the stages of a plan.
class StepNumbers {
 public:
  explicit StepNumbers(const SimulationInput& input)
      : in_(input), plan_(input.plan), microbatches_(plan_.plan().microbatches), stages_(input.stages.size()) {
    take_costs();
    take_hops();
  }

  [[nodiscard]] bool takes_processors() const { return takes_processors_; }
  [[nodiscard]] bool sums() const {
    for (int s = 0; s < plan_.stages(); ++s) {
      if (plan_.reduces(s)) return true;
    }
    return false;
  }
  [[nodiscard]] Bracket step() const { return {lower(), std::min(one_after_the_other(), computed() + finish())}; }
  [[nodiscard]] Bracket mean_step() const;

 private:
  template <class Value>
  [[nodiscard]] Seconds sum(const Value& value) const {
    return std::accumulate(stages_.begin(), stages_.end(), Seconds(0),
                           [&](Seconds all, const StageNumbers& stage) { return all + value(stage); });
  }
  template <class Value>
  [[nodiscard]] Seconds most(const Value& value) const {
    return std::accumulate(stages_.begin(), stages_.end(), Seconds(0),
                           [&](Seconds all, const StageNumbers& stage) { return std::max(all, value(stage)); });
  }
  [[nodiscard]] const std::string& schedule() const { return plan_.schedule().name; }
  [[nodiscard]] bool rendezvous() const { return in_.mode == TransferMode::Rendezvous; }
  [[nodiscard]] const StageNumbers& at(int stage) const { return stages_[to_index(stage)]; }

  void take_costs();
  void take_hops();
  void take_stage_hops();
  [[nodiscard]] bool chained() const;
  [[nodiscard]] bool warms_up() const;
  [[nodiscard]] int equal_replicas() const;

  [[nodiscard]] Seconds reduce_of(int stage) const;
  [[nodiscard]] Seconds buckets_of(int stage) const;
  [[nodiscard]] std::vector<Seconds> before() const;
  [[nodiscard]] std::vector<Seconds> after() const;
  [[nodiscard]] Seconds end_of_rank(int position) const;
  [[nodiscard]] Seconds lower() const;

  [[nodiscard]] Seconds one_after_the_other() const;
  [[nodiscard]] Seconds computed() const;
  [[nodiscard]] Seconds finish() const;
  [[nodiscard]] Seconds phase(bool backward, int microbatches, bool replicas) const;
  [[nodiscard]] Seconds phases() const;
  [[nodiscard]] Seconds chain(int microbatches, Seconds weight_gradients) const;
  [[nodiscard]] Seconds periodic() const;
  [[nodiscard]] Seconds interleaved() const;
  [[nodiscard]] Seconds first_message() const;

  const SimulationInput& in_;
  const BoundPlan& plan_;
  int microbatches_;
  std::vector<StageNumbers> stages_;
  std::vector<MessageHop> hops_;
  bool takes_processors_ = false;
};

void StepNumbers::take_costs() {
  for (int s = 0; s < plan_.stages(); ++s) {
    const StageCost& cost = in_.stages[to_index(s)];
    StageNumbers& stage = stages_[to_index(s)];
    const bool split = plan_.schedule().splits_backward;
    stage.forward = cost.forward;
    if (plan_.schedule().trains) stage.backward = split ? cost.backward : cost.whole_backward.value_or(cost.backward);
    if (split) stage.weights = cost.weight_gradient;
    stage.replicas = plan_.replicas(s);
    stage.most = (microbatches_ + stage.replicas - 1) / stage.replicas;
    stage.warmup = plan_.plan().warmups[to_index(s)];
  }
}

/// A message that shares its ports with k others at most takes at most k + 1 times its transmission: the share of a
/// port is never smaller than that.
void StepNumbers::take_hops() {
  struct UsedLane {
    std::size_t hop;
    bool gradient;
    Transfer cost;
  };
  std::vector<UsedLane> lanes;
  std::vector<int> at_port(to_index(in_.ports));
  for (int b = 0; b < to_int(plan_.plan().boundaries.size()); ++b) {
    const auto [source, destination, gradient] = plan_.ends(b);
    MessageHop hop;
    hop.source = source;
    hop.destination = destination;
    hop.gradient = gradient && plan_.schedule().trains;
    hop.cycle = std::lcm(plan_.replicas(source), plan_.replicas(destination));
    hops_.push_back(hop);
    for (int m = 0; m < std::min(hop.cycle, microbatches_ * in_.steps); ++m) {
      const int from = plan_.runner(source, m);
      const int to = plan_.runner(destination, m);
      if (from == to) continue;
      lanes.push_back({hops_.size() - 1, false, in_.transfer(b, false, from, to)});
      if (hop.gradient) lanes.push_back({hops_.size() - 1, true, in_.transfer(b, true, to, from)});
    }
  }
  const auto visit_ports = [](const Transfer& cost, const auto& visit) {
    for (const int port : {cost.egress, cost.ingress}) {
      if (port >= 0) visit(to_index(port));
    }
  };
  for (const UsedLane& lane : lanes) {
    visit_ports(lane.cost, [&](std::size_t port) { ++at_port[port]; });
    for (const Handling& handling : {lane.cost.sender, lane.cost.receiver})
      takes_processors_ = takes_processors_ || handling.fixed + handling.streaming > Seconds(0);
  }
  for (const UsedLane& lane : lanes) {
    int shared = 1;
    if (rendezvous()) visit_ports(lane.cost, [&](std::size_t port) { shared = std::max(shared, at_port[port]); });
    const Seconds idle = lane.cost.latency + lane.cost.transmission;
    MessageHop& hop = hops_[lane.hop];
    MessageWay& way = lane.gradient ? hop.back : hop.activation;
    way.longest = std::max(way.longest, lane.cost.latency + lane.cost.transmission * shared);
    way.alone = std::max(way.alone, idle);
    way.least = way.lanes++ == 0 ? idle : std::min(way.least, idle);
  }
  take_stage_hops();
}

void StepNumbers::take_stage_hops() {
  for (const MessageHop& hop : hops_) {
    StageNumbers& source = stages_[to_index(hop.source)];
    StageNumbers& destination = stages_[to_index(hop.destination)];
    source.out = std::max(source.out, hop.activation.longest);
    destination.back = std::max(destination.back, hop.back.longest);
    source.returned = std::max(source.returned, hop.back.longest);
    if (hop.cycle > destination.replicas) destination.first_in = std::max(destination.first_in, hop.activation.longest);
    if (hop.cycle > source.replicas) source.first_returned = std::max(source.first_returned, hop.back.longest);
  }
}

/// Whether every stage reads the one before it, and returns a gradient to it where anything is trained.
bool StepNumbers::chained() const {
  for (int s = 0; s + 1 < plan_.stages(); ++s) {
    const bool joined = std::ranges::any_of(hops_, [&](const MessageHop& hop) {
      return hop.source == s && hop.destination == s + 1 && (hop.gradient || !plan_.schedule().trains);
    });
    if (!joined) return false;
  }
  return true;
}

/// Whether each stage has one more forward of warm-up than the next one, as warmup_counts gives it at least.
bool StepNumbers::warms_up() const {
  for (int s = 0; s + 1 < plan_.stages(); ++s) {
    if (at(s).warmup <= at(s + 1).warmup) return false;
  }
  return true;
}

/// The number of replicas of each stage; 0 if they differ.
int StepNumbers::equal_replicas() const {
  const int first = stages_.front().replicas;
  const bool equal = std::ranges::all_of(stages_, [&](const StageNumbers& stage) { return stage.replicas == first; });
  return equal ? first : 0;
}

Seconds StepNumbers::reduce_of(int stage) const {
  const StageCost& cost = in_.stages[to_index(stage)];
  return plan_.reduces(stage) ? cost.reduce + cost.tied : Seconds(0);
}

Seconds StepNumbers::buckets_of(int stage) const {
  Seconds out;
  if (!plan_.reduces(stage)) return out;
  for (const ReduceBucket& bucket : in_.stages[to_index(stage)].buckets) out += bucket.time;
  return out;
}

// --- lower ends ---

/// Of each stage, a time before which its first forward cannot begin.
std::vector<Seconds> StepNumbers::before() const {
  std::vector<Seconds> out(stages_.size());
  for (int s = 0; s < plan_.stages(); ++s) {
    for (const MessageHop& hop : hops_) {
      if (hop.destination != s) continue;
      const Seconds sent = out[to_index(hop.source)] + at(hop.source).forward;
      out[to_index(s)] = std::max(out[to_index(s)], sent + hop.activation.least);
    }
  }
  return out;
}

/// A time that passes at least from the end of a rank's computations to the end of the step.
Seconds StepNumbers::end_of_rank(int position) const {
  Seconds out;
  if (!plan_.schedule().trains) return out;
  for (const int s : plan_.stages_at(position)) out += in_.stages[to_index(s)].update;
  if (plan_.plan().chunks == 1 && !plan_.schedule().needs_lists) out += reduce_of(position);
  return out;
}

/// Of each stage, a time that passes at least from the end of any of its backwards, or forwards where nothing is
/// trained, to the end of the step.
std::vector<Seconds> StepNumbers::after() const {
  std::vector<Seconds> out(stages_.size());
  if (!plan_.schedule().trains) {
    for (int s = plan_.stages() - 1; s >= 0; --s) {
      for (const MessageHop& hop : hops_) {
        if (hop.source != s) continue;
        const std::size_t next = to_index(hop.destination);
        out[to_index(s)] = std::max(out[to_index(s)], hop.activation.least + stages_[next].forward + out[next]);
      }
    }
    return out;
  }
  for (int s = 0; s < plan_.stages(); ++s) {
    Seconds& time = out[to_index(s)];
    time = end_of_rank(plan_.position_of(s)) + at(s).weights;
    for (const MessageHop& hop : hops_) {
      if (hop.destination != s || !hop.gradient) continue;
      time = std::max(time, hop.back.least + at(hop.source).backward + out[to_index(hop.source)]);
    }
  }
  return out;
}

Seconds StepNumbers::lower() const {
  const std::vector<Seconds> first = before();
  const std::vector<Seconds> last = after();
  Seconds out;
  for (int d = 0; d < plan_.positions(); ++d) {
    Seconds begin = kUnbounded;
    Seconds end = kUnbounded;
    Seconds work;
    Seconds weights;
    for (const int s : plan_.stages_at(d)) {
      const StageNumbers& stage = at(s);
      const StageCost& cost = in_.stages[to_index(s)];
      begin = std::min(begin, first[to_index(s)]);
      end = std::min(end, last[to_index(s)]);
      // Lists by hand split a backward or not.
      const Seconds backward = plan_.schedule().needs_lists ? std::min(cost.whole_backward.value_or(cost.backward),
                                                                       cost.backward + cost.weight_gradient)
                                                            : stage.backward;
      work += static_cast<double>(stage.most) * (stage.forward + backward);
      if (!plan_.schedule().needs_lists) weights += static_cast<double>(stage.most) * stage.weights;
    }
    // What follows the last action of a list by hand is not known.
    if (!plan_.schedule().needs_lists) out = std::max(out, begin + work + end);
    out = std::max(out, begin + work + weights + end_of_rank(d));
  }
  if (schedule() == "gpipe" && equal_replicas() == 1 && chained()) {
    Seconds hops;
    for (const MessageHop& hop : hops_) {
      if (hop.destination == hop.source + 1) hops += hop.activation.least + hop.back.least;
    }
    const double more = microbatches_ - 1;
    const auto forward = [](const StageNumbers& stage) { return stage.forward; };
    const auto backward = [](const StageNumbers& stage) { return stage.backward; };
    out = std::max(out,
                   sum(forward) + more * most(forward) + sum(backward) + more * most(backward) + hops + end_of_rank(0));
  }
  return out;
}

// --- upper ends ---

/// Until a replay ends, a computation, a message or a sum is under way, or it would never end. Messages under way
/// together move at rates that add up to 1 or more: those on the fullest port of all get equal shares of it.
Seconds StepNumbers::one_after_the_other() const {
  Seconds out;
  for (int s = 0; s < plan_.stages(); ++s) {
    const StageNumbers& stage = at(s);
    const StageCost& cost = in_.stages[to_index(s)];
    Seconds microbatch_time = stage.forward + stage.backward + stage.weights;
    if (plan_.schedule().needs_lists)
      microbatch_time =
          stage.forward + std::max(cost.whole_backward.value_or(cost.backward), cost.backward + cost.weight_gradient);
    out += static_cast<double>(microbatches_) * microbatch_time + reduce_of(s) + buckets_of(s);
    if (plan_.schedule().trains) out += static_cast<double>(stage.replicas) * cost.update;
  }
  for (const MessageHop& hop : hops_)
    out += static_cast<double>(microbatches_) * (hop.activation.alone + hop.back.alone);
  return out;
}

/// The end of all computations but updates.
Seconds StepNumbers::computed() const {
  const std::string& name = schedule();
  if (name == "gpipe" || name == "forward") return phases();
  if (name == "interleaved-1f1b") return interleaved();
  if (name != "1f1b" && name != "zb-h1") return kUnbounded;
  Seconds out = name == "1f1b" ? periodic() : kUnbounded;
  const int replicas = equal_replicas();
  if (replicas == 0 || !warms_up()) return out;
  // Replica q of each stage has the microbatches of replica q of all others: pipelines that do not meet.
  const int most_own = (microbatches_ + replicas - 1) / replicas;
  Seconds weight_gradients;  // weight gradients after the last backward
  for (int s = 0; s < plan_.stages(); ++s)
    weight_gradients = std::max(weight_gradients, static_cast<double>(std::min(s, most_own)) * at(s).weights);
  return std::min(out, chain(most_own, weight_gradients));
}

/// What follows all other computations: sums and updates.
Seconds StepNumbers::finish() const {
  if (!plan_.schedule().trains) return Seconds(0);
  Seconds all;
  Seconds reduce;
  Seconds tied;
  Seconds buckets;
  Seconds update;
  for (int s = 0; s < plan_.stages(); ++s) {
    const StageCost& cost = in_.stages[to_index(s)];
    all += reduce_of(s) + buckets_of(s) + cost.update;
    update = std::max(update, cost.update);
    buckets = std::max(buckets, buckets_of(s));
    if (!plan_.reduces(s)) continue;
    reduce = std::max(reduce, cost.reduce);
    tied = std::max(tied, cost.tied);
  }
  return plan_.plan().chunks == 1 ? reduce + tied + buckets + update : all;
}

/// A flow shop in which microbatch m begins on stage s at (sum of the stages and messages before) + m P: P is at least
/// a replica's time over the number of replicas, and a message over the microbatches until the same two ranks send
/// again. The first message of each of several senders leaves only when its receiver has nothing else to do before it.
Seconds StepNumbers::phase(bool backward, int microbatches, bool replicas) const {
  Seconds period;
  Seconds all;
  for (const StageNumbers& stage : stages_) {
    const Seconds time = backward ? stage.backward : stage.forward;
    all += time + (backward ? stage.back : stage.out);
    const int count = replicas ? stage.replicas : 1;
    if ((microbatches + count - 1) / count < 2) continue;
    const Seconds first = !rendezvous() || !replicas ? Seconds(0) : backward ? stage.first_returned : stage.first_in;
    period = std::max(period, (time + first) / static_cast<double>(count));
  }
  for (const MessageHop& hop : hops_) {
    const int cycle = replicas ? hop.cycle : 1;
    if (rendezvous() && microbatches > cycle)
      period = std::max(period, (backward ? hop.back : hop.activation).longest / static_cast<double>(cycle));
  }
  return all + static_cast<double>(microbatches - 1) * period;
}

Seconds StepNumbers::phases() const {
  const int equal = equal_replicas();
  const int microbatches = equal > 0 ? (microbatches_ + equal - 1) / equal : microbatches_;
  const Seconds forward = phase(false, microbatches, equal == 0);
  return plan_.schedule().trains ? forward + phase(true, microbatches, equal == 0) : forward;
}

/// The first gradient of each sender leaves when the receiver has nothing else to do before it. A chain of actions has
/// one such message at most: after the first backward of a stage, none of its own or of later stages is the first.
Seconds StepNumbers::first_message() const {
  return rendezvous() ? most([](const StageNumbers& stage) { return stage.returned; }) : Seconds(0);
}

/// The longest chain of actions of which each waits for the one before it, without replicas. Forward m of stage s has
/// level m + s, backward m level m + p - 1 - s, and an action that follows one of its own kind is one level higher.
/// With w_s >= p - 1 - s forwards of warm-up, which fall by one or more from stage to stage, backward m of stage s
/// follows forward m + w_s, and forward m + w_s + 1 follows that. So from one run of forwards in the chain to the next,
/// levels rise by one at least, as they do within a run, and so with backwards. A chain that leaves its last forward at
/// stage s has M + s forwards at most, one of each of the stages up to s; one that begins its backwards at stage s and
/// ends at stage e has M + s - e, one of each of these stages. A message that leaves an action belongs to it; one that
/// waits for its lane, or for its receiver to come to the message before it, skips a level, which has room for it.
/// A weight gradient comes after a backward that a chain leaves to the next action of its rank.
Seconds StepNumbers::chain(int microbatches, Seconds weight_gradients) const {
  const auto forward = [](const StageNumbers& stage) { return stage.forward + stage.out; };
  const auto backward = [](const StageNumbers& stage) { return stage.backward + std::max(stage.back, stage.weights); };
  return sum(forward) + sum(backward) + static_cast<double>(microbatches - 1) * (most(forward) + most(backward)) +
         weight_gradients + first_message();
}

/// The chains of interleaved stages: forward number k of the rank at position d has level k + d, backward number k
/// level k + p - 1 - d, whatever their chunks, and the rest as in chain(). There are M v + p - 1 levels. The first
/// message over each boundary leaves when its receiver has nothing else to do before it.
Seconds StepNumbers::interleaved() const {
  const double levels = microbatches_ * plan_.plan().chunks + plan_.positions() - 1;
  Seconds first;
  for (const MessageHop& hop : hops_) first += hop.activation.longest + hop.back.longest;
  return levels * (most([](const StageNumbers& stage) { return stage.forward + stage.out; }) +
                   most([](const StageNumbers& stage) { return stage.backward + stage.back; })) +
         (rendezvous() ? first : Seconds(0));
}

/// Forward m of stage s begins at f_s + m P, backward m at f_s + D_s + m P, messages as late as they may. A replica of
/// r has every r-th microbatch, so its actions are r P apart:
///   forward i + w before backward i: D_s >= w r P + F_s, and the first gradient of each sender in between;
///   backward i before forward i + w + 1, if a replica has that many: D_s <= (w + 1) r P - B_s;
///   f_(s+1) = f_s + F_s + message, and D_s - D_(s+1) >= F_s + B_(s+1) + both messages;
///   r P >= F_s and r P >= B_s, and a message <= P times the microbatches until its two ranks meet again.
/// P is the least that allows all of these, D the least for that P.
Seconds StepNumbers::periodic() const {
  const auto warmup = [this](int s) { return std::min(at(s).warmup, at(s).most - 1) * at(s).replicas; };
  const auto first = [this](int s) { return at(s).forward + (rendezvous() ? at(s).returned : Seconds(0)); };
  const auto in = [this](int s) { return rendezvous() ? at(s).first_in : Seconds(0); };
  Seconds period;
  for (int s = 0; s < plan_.stages(); ++s) {
    const StageNumbers& stage = at(s);
    const double replicas = stage.replicas;
    if (stage.most >= 2) {
      period = std::max(period, (stage.forward + in(s)) / replicas);
      period = std::max(period, (stage.backward + (rendezvous() ? stage.first_returned : Seconds(0))) / replicas);
    }
    if (stage.most < stage.warmup + 2) continue;
    Seconds round = stage.backward + in(s);
    for (int k = s; k < plan_.stages(); ++k) {
      const int room = (stage.warmup + 1) * stage.replicas - warmup(k);
      if (room <= 0) return kUnbounded;
      period = std::max(period, (round + first(k)) / static_cast<double>(room));
      if (k + 1 < plan_.stages()) round += at(k).forward + at(k).out + at(k + 1).backward + at(k + 1).back;
    }
  }
  for (const MessageHop& hop : hops_) {
    if (rendezvous() && microbatches_ > hop.cycle)
      period = std::max(period, hop.longest() / static_cast<double>(hop.cycle));
  }
  Seconds between;  // D of the stage
  for (int s = plan_.stages() - 1; s >= 0; --s) {
    if (s + 1 < plan_.stages()) between += at(s).forward + at(s).out + at(s + 1).backward + at(s + 1).back;
    between = std::max(between, static_cast<double>(warmup(s)) * period + first(s));
  }
  return between + static_cast<double>(microbatches_ - 1) * period + at(0).backward;
}

/// The window ends n steps after it begins, each when its last action has ended. What is under way in it is of later
/// microbatches than the steps before it. Of a chain of actions in it, forwards are at most those of n steps and of the
/// warm-up; one message may have begun before. A rank has at most w_0 + 1 microbatches of the window's behind it as it
/// begins, since no stage is ahead of the first one, and none of the first one's is farther ahead of the last step.
Bracket StepNumbers::mean_step() const {
  const StepWindow window = plan_.step_window();
  const double steps = window.last - window.first;
  const int count = microbatches_ * (window.last - window.first);
  const bool updates_each_microbatch = plan_.schedule().weights == Weights::Newest;  // an update after each backward
  const auto update = [this](const StageNumbers& stage) {
    return in_.stages[to_index(&stage - stages_.data())].update;
  };
  Seconds low;
  const double chained_microbatches = std::max(0, count - at(0).warmup - 1);
  if (chained()) {
    low = most([&](const StageNumbers& stage) {
      return chained_microbatches * (stage.forward + stage.backward) +
             (updates_each_microbatch ? chained_microbatches : steps - 1) * update(stage);
    });
  }
  if (!warms_up()) return {low / steps, kUnbounded};
  const auto forward = [](const StageNumbers& stage) { return stage.forward + stage.out; };
  const auto backward = [&](const StageNumbers& stage) {
    return stage.backward + (updates_each_microbatch ? std::max(stage.back, update(stage)) : stage.back);
  };
  const double more = count - 1;
  Seconds high = sum(forward) + sum(backward) + (more + at(0).warmup) * most(forward) + more * most(backward);
  if (!updates_each_microbatch) high += (steps + 1) * most(update);
  Seconds message;
  for (const MessageHop& hop : hops_) message = std::max(message, hop.longest());
  return {low / steps, (high + message) / steps};
}

}  // namespace

std::optional<Bracket> step_bracket(const SimulationInput& input) {
  if (!input.hosts.of_rank.empty()) return std::nullopt;
  const StepNumbers numbers(input);
  if (numbers.takes_processors()) return std::nullopt;
  if (!input.plan.asynchronous()) return numbers.step();
  if (numbers.sums()) return std::nullopt;
  return numbers.mean_step();
}

}  // namespace stagecraft
