#include "costmodel/simulation/closed_forms.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "costmodel/index.h"
#include "costmodel/simulation/step_numbers.h"

namespace stagecraft {
namespace {

Seconds sum(const std::vector<Seconds>& times) { return std::accumulate(times.begin(), times.end(), Seconds(0)); }
Seconds largest(const std::vector<Seconds>& times) { return *std::max_element(times.begin(), times.end()); }

Bytes all_layers(const TransformerShape& shape, double bytes_per_layer) {
  const double p = static_cast<double>(shape.pipeline_stages);
  const double v = static_cast<double>(shape.chunks);
  const double factor = shape.chunks > 1 ? 1 + (p - 1) / (p * v) : 1;
  return Bytes(static_cast<std::int64_t>(bytes_per_layer * static_cast<double>(shape.layers) * factor));
}

double tokens_times_hidden(const TransformerShape& shape) {
  return static_cast<double>(shape.sequence * shape.microbatch_samples * shape.hidden);
}

}  // namespace

Seconds gpipe_time(const StageTimes& stages, int microbatches, Seconds hop) {
  const double more = microbatches - 1;
  const double hops = 2.0 * (static_cast<double>(stages.forward.size()) - 1);
  return sum(stages.forward) + more * largest(stages.forward) + sum(stages.backward) + more * largest(stages.backward) +
         hops * hop;
}

Seconds one_forward_one_backward_time(Seconds forward, Seconds backward, int stages, int microbatches, Seconds hop) {
  const double p = stages;
  const double m = microbatches;
  const Seconds both = forward + backward;
  if (hop == Seconds(0) || stages == 1) return (m + p - 1) * both;
  return m / p * (p * both + 2 * (p - 1) * hop) + (p - 1) * both + 2 * (p - 2) * hop;
}

Seconds interleaved_time(Seconds forward, Seconds backward, int devices, int chunks, int microbatches) {
  const Seconds both = forward + backward;
  return microbatches * both + (devices - 1.0) / chunks * both;
}

Seconds zero_bubble_h1_time(Seconds forward, Seconds backward, Seconds weight_gradient, int stages, int microbatches) {
  return microbatches * (forward + backward + weight_gradient) +
         (stages - 1.0) * (forward + backward - weight_gradient);
}

Seconds interleaved_zero_bubble_time(Seconds forward, Seconds backward, Seconds weight_gradient, int devices,
                                     int chunks, int microbatches) {
  return microbatches * (forward + backward + weight_gradient) +
         (devices - 1.0) / chunks * std::max({forward, backward, forward + backward - weight_gradient});
}

Seconds zero_bubble_v_time(Seconds forward, int devices, int microbatches) {
  return (3.0 * microbatches + (devices - 1.0) / 2) * forward;
}

Seconds v_half_time(Seconds forward, int devices, int microbatches) {
  return (3.0 * microbatches + (3.5 * devices - 2) / 2) * forward;
}

Seconds dualpipev_time(Seconds forward, Seconds backward, Seconds weight_gradient, int devices, int microbatches) {
  return microbatches * (forward + backward + weight_gradient) +
         (devices - 1.0) / 2 * (forward + backward - weight_gradient);
}

Bracket one_forward_one_backward_bracket(const StageTimes& stages, int microbatches) {
  Bracket out;
  Seconds before;
  for (std::size_t s = 0; s < stages.forward.size(); ++s) {
    const Seconds both = stages.forward[s] + stages.backward[s];
    out.low = std::max(out.low, microbatches * both + before);
    before += both;
  }
  out.high = before + (microbatches - 1.0) * (largest(stages.forward) + largest(stages.backward));
  return out;
}

Bytes transformer_static_bytes(const TransformerShape& shape) {
  return Bytes(216 * shape.layers * shape.hidden * shape.hidden / (shape.tensor_parallel * shape.pipeline_stages));
}

Bytes transformer_activation_bytes(const TransformerShape& shape) {
  const double t = static_cast<double>(shape.tensor_parallel);
  const double scores = 5.0 * static_cast<double>(shape.heads * shape.sequence) / static_cast<double>(shape.hidden);
  return all_layers(shape, tokens_times_hidden(shape) * (10 + 24 / t + scores / t));
}

Bytes transformer_selective_activation_bytes(const TransformerShape& shape) {
  return all_layers(shape, 34 * tokens_times_hidden(shape) / static_cast<double>(shape.tensor_parallel));
}

std::vector<int> weight_versions(const std::vector<int>& replicas) {
  std::vector<int> out;
  for (std::size_t s = 0; s < replicas.size(); ++s) {
    const int later = std::accumulate(replicas.begin() + static_cast<std::ptrdiff_t>(s), replicas.end(), 0);
    out.push_back((later + replicas[s] - 1) / replicas[s]);
  }
  return out;
}

}  // namespace stagecraft

namespace stagecraft::simulation {
namespace {

constexpr Seconds kUnbounded(std::numeric_limits<double>::infinity());

/// Bounds of a step, or of the mean of several, from the numbers of a plan.
class StepBounds {
 public:
  /// Refers to `numbers`.
  explicit StepBounds(const StepNumbers& numbers)
      : n_(numbers), in_(numbers.input()), plan_(numbers.plan()), microbatches_(numbers.microbatches()) {}

  [[nodiscard]] Bracket step() const { return {lower(), std::min(one_after_the_other(), computed() + finish())}; }
  [[nodiscard]] Bracket mean_step() const;

 private:
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

  const StepNumbers& n_;
  const SimulationInput& in_;
  const BoundPlan& plan_;
  int microbatches_;
};

// --- lower ends ---

/// For each stage, a time before which its first forward cannot begin.
std::vector<Seconds> StepBounds::before() const {
  std::vector<Seconds> out(n_.stages().size());
  for (int s = 0; s < plan_.stages(); ++s) {
    for (const MessageHop& hop : n_.hops()) {
      if (hop.destination != s) continue;
      const Seconds sent = out[to_index(hop.source)] + n_.at(hop.source).forward;
      out[to_index(s)] = std::max(out[to_index(s)], sent + hop.activation.least);
    }
  }
  return out;
}

/// The least time from the end of a rank's computations to the end of the step.
Seconds StepBounds::end_of_rank(int position) const {
  Seconds out;
  if (!plan_.schedule().trains) return out;
  for (const int s : plan_.stages_at(position)) out += in_.stages[to_index(s)].update;
  if (plan_.plan().chunks == 1 && !plan_.schedule().needs_lists) out += n_.reduce_of(position);
  return out;
}

/// For each stage, the least time from the end of any of its backwards, or of its forwards where nothing is trained, to
/// the end of the step.
std::vector<Seconds> StepBounds::after() const {
  std::vector<Seconds> out(n_.stages().size());
  if (!plan_.schedule().trains) {
    for (int s = plan_.stages() - 1; s >= 0; --s) {
      for (const MessageHop& hop : n_.hops()) {
        if (hop.source != s) continue;
        const std::size_t next = to_index(hop.destination);
        out[to_index(s)] = std::max(out[to_index(s)], hop.activation.least + n_.stages()[next].forward + out[next]);
      }
    }
    return out;
  }
  for (int s = 0; s < plan_.stages(); ++s) {
    Seconds& time = out[to_index(s)];
    time = end_of_rank(plan_.position_of(s)) + n_.at(s).weights;
    for (const MessageHop& hop : n_.hops()) {
      if (hop.destination != s || !hop.gradient) continue;
      time = std::max(time, hop.back.least + n_.at(hop.source).backward + out[to_index(hop.source)]);
    }
  }
  return out;
}

Seconds StepBounds::lower() const {
  const std::vector<Seconds> first = before();
  const std::vector<Seconds> last = after();
  Seconds out;
  for (int d = 0; d < plan_.positions(); ++d) {
    Seconds begin = kUnbounded;
    Seconds end = kUnbounded;
    Seconds work;
    Seconds weights;
    for (const int s : plan_.stages_at(d)) {
      const StageNumbers& stage = n_.at(s);
      const StageCost& cost = in_.stages[to_index(s)];
      begin = std::min(begin, first[to_index(s)]);
      end = std::min(end, last[to_index(s)]);
      const Seconds backward = plan_.schedule().mixes_backwards ? std::min(cost.whole_backward.value_or(cost.backward),
                                                                           cost.backward + cost.weight_gradient)
                                                                : stage.backward;
      work += static_cast<double>(stage.most) * (stage.forward + backward);
      if (!plan_.schedule().mixes_backwards) weights += static_cast<double>(stage.most) * stage.weights;
    }
    // What follows the last action is not known then.
    if (!plan_.schedule().mixes_backwards) out = std::max(out, begin + work + end);
    out = std::max(out, begin + work + weights + end_of_rank(d));
  }
  if (n_.schedule() == "gpipe" && n_.equal_replicas() == 1 && n_.chained()) {
    Seconds hops;
    for (const MessageHop& hop : n_.hops()) {
      if (hop.destination == hop.source + 1) hops += hop.activation.least + hop.back.least;
    }
    const double more = microbatches_ - 1;
    const auto forward = [](const StageNumbers& stage) { return stage.forward; };
    const auto backward = [](const StageNumbers& stage) { return stage.backward; };
    out = std::max(out, n_.sum(forward) + more * n_.most(forward) + n_.sum(backward) + more * n_.most(backward) + hops +
                            end_of_rank(0));
  }
  return out;
}

// --- upper ends ---

/// At every moment before a replay ends, a computation, a message or a sum is under way: otherwise nothing would end
/// any more. The rates of messages that are under way together add up to at least 1: let the port with the most
/// messages have k of them. The other port of each of these k messages has at most k, so each moves at rate 1/k. The
/// replay therefore takes at most the sum of all times on idle ports.
Seconds StepBounds::one_after_the_other() const {
  Seconds out;
  for (int s = 0; s < plan_.stages(); ++s) {
    const StageNumbers& stage = n_.at(s);
    const StageCost& cost = in_.stages[to_index(s)];
    Seconds microbatch_time = stage.forward + stage.backward + stage.weights;
    if (plan_.schedule().mixes_backwards)
      microbatch_time =
          stage.forward + std::max(cost.whole_backward.value_or(cost.backward), cost.backward + cost.weight_gradient);
    out += static_cast<double>(microbatches_) * microbatch_time + n_.reduce_of(s) + n_.buckets_of(s);
    if (plan_.schedule().trains) out += static_cast<double>(stage.replicas) * cost.update;
  }
  for (const MessageHop& hop : n_.hops())
    out += static_cast<double>(microbatches_) * (hop.activation.alone + hop.back.alone);
  return out;
}

/// The end of all computations but updates.
Seconds StepBounds::computed() const {
  const std::string& name = n_.schedule();
  if (name == "gpipe" || name == "forward") return phases();
  if (name == "interleaved-1f1b") return interleaved();
  if (name != "1f1b" && name != "zb-h1") return kUnbounded;
  Seconds out = name == "1f1b" ? periodic() : kUnbounded;
  const int replicas = n_.equal_replicas();
  if (replicas == 0 || !n_.warms_up()) return out;
  // Replica q of each stage has the microbatches of replica q of all others: pipelines that do not meet.
  const int most_own = (microbatches_ + replicas - 1) / replicas;
  Seconds weight_gradients;  // weight gradients after the last backward
  for (int s = 0; s < plan_.stages(); ++s)
    weight_gradients = std::max(weight_gradients, static_cast<double>(std::min(s, most_own)) * n_.at(s).weights);
  return std::min(out, chain(most_own, weight_gradients));
}

/// What follows all other computations: sums and updates.
Seconds StepBounds::finish() const {
  if (!plan_.schedule().trains) return Seconds(0);
  Seconds all;
  Seconds reduce;
  Seconds tied;
  Seconds buckets;
  Seconds update;
  for (int s = 0; s < plan_.stages(); ++s) {
    const StageCost& cost = in_.stages[to_index(s)];
    all += n_.reduce_of(s) + n_.buckets_of(s) + cost.update;
    update = std::max(update, cost.update);
    buckets = std::max(buckets, n_.buckets_of(s));
    if (!plan_.reduces(s)) continue;
    reduce = std::max(reduce, cost.reduce);
    tied = std::max(tied, cost.tied);
  }
  return plan_.plan().chunks == 1 ? reduce + tied + buckets + update : all;
}

/// A flow shop with period P: microbatch m begins on stage s at A_s + m P, where A_s is the time of the stages and
/// messages before s. No two actions or messages overlap on a rank or lane if
///   r P >= T_s for each stage s, which takes T_s on each of its r replicas;
///   c P >= L for each boundary, whose messages take L and whose two ranks meet again after c microbatches.
/// With rendezvous, the first message from each of several senders leaves only when its receiver has no action left
/// before it: that message is added to T_s. The step takes A_p + (M - 1) P, with p stages and M microbatches.
Seconds StepBounds::phase(bool backward, int microbatches, bool replicas) const {
  Seconds period;
  Seconds all;
  for (const StageNumbers& stage : n_.stages()) {
    const Seconds time = backward ? stage.backward : stage.forward;
    all += time + (backward ? stage.back : stage.out);
    const int count = replicas ? stage.replicas : 1;
    if ((microbatches + count - 1) / count < 2) continue;
    const Seconds first = !n_.rendezvous() || !replicas ? Seconds(0) : backward ? stage.first_returned : stage.first_in;
    period = std::max(period, (time + first) / static_cast<double>(count));
  }
  for (const MessageHop& hop : n_.hops()) {
    const int cycle = replicas ? hop.cycle : 1;
    if (n_.rendezvous() && microbatches > cycle)
      period = std::max(period, (backward ? hop.back : hop.activation).longest / static_cast<double>(cycle));
  }
  return all + static_cast<double>(microbatches - 1) * period;
}

Seconds StepBounds::phases() const {
  const int equal = n_.equal_replicas();
  const int microbatches = equal > 0 ? (microbatches_ + equal - 1) / equal : microbatches_;
  const Seconds forward = phase(false, microbatches, equal == 0);
  return plan_.schedule().trains ? forward + phase(true, microbatches, equal == 0) : forward;
}

/// The longest first gradient of a sender. With rendezvous, that message leaves only when its receiver has no action
/// left before it. A chain of actions has at most one such message: once stage s has begun its first backward, neither
/// s nor a later stage has a first gradient to send.
Seconds StepBounds::first_message() const {
  return n_.rendezvous() ? n_.most([](const StageNumbers& stage) { return stage.returned; }) : Seconds(0);
}

/// The longest chain of actions, each of which waits for the one before it, without replicas. With p stages, M
/// microbatches and w_s forwards of warm-up on stage s, give forward m of s the level m + s, and backward m of s the
/// level m + p - 1 - s.
/// 1. Within a run of forwards, or of backwards, of the chain, each action is at least one level above the one before.
/// 2. Between runs, too, levels rise by at least one from the last forward of a run to the first one of the next run,
///    and likewise for backwards: backward m of s follows forward m + w_s, forward m + w_s + 1 of s follows backward m,
///    w_s >= p - 1 - s, and w_s falls by at least one from stage to stage.
/// 3. So a chain whose last forward is on stage s has at most M + s forwards, of which one is on each stage up to s. A
///    chain whose backwards begin on stage s and end on stage e has at most M + s - e, of which one is on each stage
///    from e to s.
/// 4. The time of a message counts with the action that sends it. A message that waits for its lane, or for its
/// receiver
///    to come to the message before it, skips a level; the time of that level covers the wait.
/// 5. A weight gradient counts with the backward before it if the chain goes on with the next action of that rank.
Seconds StepBounds::chain(int microbatches, Seconds weight_gradients) const {
  const auto forward = [](const StageNumbers& stage) { return stage.forward + stage.out; };
  const auto backward = [](const StageNumbers& stage) { return stage.backward + std::max(stage.back, stage.weights); };
  return n_.sum(forward) + n_.sum(backward) +
         static_cast<double>(microbatches - 1) * (n_.most(forward) + n_.most(backward)) + weight_gradients +
         first_message();
}

/// The same for interleaved stages, with p positions, v chunks on each and M microbatches on each of the equal
/// replicas: forward number k of the rank at position d has the level k + d, and backward number k the level k + p - 1
/// - d, whatever their chunks. There are M v + p - 1 levels. With rendezvous, the first message over each boundary
/// leaves only when its receiver has no action left before it.
Seconds StepBounds::interleaved() const {
  const int most_own = n_.stages().front().most;
  const double levels = most_own * plan_.plan().chunks + plan_.positions() - 1;
  Seconds first;
  for (const MessageHop& hop : n_.hops()) first += hop.activation.longest + hop.back.longest;
  return levels * (n_.most([](const StageNumbers& stage) { return stage.forward + stage.out; }) +
                   n_.most([](const StageNumbers& stage) { return stage.backward + stage.back; })) +
         (n_.rendezvous() ? first : Seconds(0));
}

/// A step with period P: forward m of stage s begins at f_s + m P, backward m of s at f_s + D_s + m P, and every
/// message takes its longest time. Each of the r replicas of a stage has every r-th microbatch, so its forwards are r P
/// apart, and so are its backwards. The step keeps every order of actions and messages if, for each stage s with w
/// forwards of warm-up on each replica,
///   D_s >= w r P + F_s, and the first gradient of each sender in between: forward i + w comes before backward i;
///   D_s <= (w + 1) r P - B_s, if a replica has that many: backward i comes before forward i + w + 1;
///   f_(s+1) = f_s + F_s + message, and D_s - D_(s+1) >= F_s + B_(s+1) + both messages;
///   r P >= F_s and r P >= B_s, and c P >= message, where its two ranks meet again after c microbatches.
/// The code takes the least P that allows all of these, then the least D_s for that P.
Seconds StepBounds::periodic() const {
  const auto warmup = [this](int s) { return std::min(n_.at(s).warmup, n_.at(s).most - 1) * n_.at(s).replicas; };
  const auto first = [this](int s) { return n_.at(s).forward + (n_.rendezvous() ? n_.at(s).returned : Seconds(0)); };
  const auto in = [this](int s) { return n_.rendezvous() ? n_.at(s).first_in : Seconds(0); };
  Seconds period;
  for (int s = 0; s < plan_.stages(); ++s) {
    const StageNumbers& stage = n_.at(s);
    const double replicas = stage.replicas;
    if (stage.most >= 2) {
      period = std::max(period, (stage.forward + in(s)) / replicas);
      period = std::max(period, (stage.backward + (n_.rendezvous() ? stage.first_returned : Seconds(0))) / replicas);
    }
    if (stage.most < stage.warmup + 2) continue;
    Seconds round = stage.backward + in(s);
    for (int k = s; k < plan_.stages(); ++k) {
      const int room = (stage.warmup + 1) * stage.replicas - warmup(k);
      if (room <= 0) return kUnbounded;
      period = std::max(period, (round + first(k)) / static_cast<double>(room));
      if (k + 1 < plan_.stages()) round += n_.at(k).forward + n_.at(k).out + n_.at(k + 1).backward + n_.at(k + 1).back;
    }
  }
  for (const MessageHop& hop : n_.hops()) {
    if (n_.rendezvous() && microbatches_ > hop.cycle)
      period = std::max(period, hop.longest() / static_cast<double>(hop.cycle));
  }
  Seconds between;  // D of the stage
  for (int s = plan_.stages() - 1; s >= 0; --s) {
    if (s + 1 < plan_.stages()) between += n_.at(s).forward + n_.at(s).out + n_.at(s + 1).backward + n_.at(s + 1).back;
    between = std::max(between, static_cast<double>(warmup(s)) * period + first(s));
  }
  return between + static_cast<double>(microbatches_ - 1) * period + n_.at(0).backward;
}

/// The window W begins when the last action of a step has ended, and ends when the last action of the n-th step after
/// it has ended. With w_0 forwards of warm-up on stage 0: Upper bound: every action in W belongs to a later microbatch
/// than the steps before W. So a chain of actions in W has at most the forwards of n steps and of the warm-up, and one
/// message that may have begun before W. Lower bound: when W begins, each rank has done at most w_0 + 1 of the
/// microbatches of W, since no stage is ahead of stage 0, and stage 0 is not farther ahead of the last step.
Bracket StepBounds::mean_step() const {
  const StepWindow window = plan_.step_window();
  const double steps = window.last - window.first;
  const int count = microbatches_ * (window.last - window.first);
  const bool updates_each_microbatch = plan_.schedule().weights == Weights::Newest;  // an update after each backward
  const auto update = [this](const StageNumbers& stage) {
    return in_.stages[to_index(&stage - n_.stages().data())].update;
  };
  Seconds low;
  const double chained_microbatches = std::max(0, count - n_.at(0).warmup - 1);
  if (n_.chained()) {
    low = n_.most([&](const StageNumbers& stage) {
      return chained_microbatches * (stage.forward + stage.backward) +
             (updates_each_microbatch ? chained_microbatches : steps - 1) * update(stage);
    });
  }
  if (!n_.warms_up()) return {low / steps, kUnbounded};
  const auto forward = [](const StageNumbers& stage) { return stage.forward + stage.out; };
  const auto backward = [&](const StageNumbers& stage) {
    return stage.backward + (updates_each_microbatch ? std::max(stage.back, update(stage)) : stage.back);
  };
  const double more = count - 1;
  Seconds high =
      n_.sum(forward) + n_.sum(backward) + (more + n_.at(0).warmup) * n_.most(forward) + more * n_.most(backward);
  if (!updates_each_microbatch) high += (steps + 1) * n_.most(update);
  Seconds message;
  for (const MessageHop& hop : n_.hops()) message = std::max(message, hop.longest());
  return {low / steps, (high + message) / steps};
}

}  // namespace
}  // namespace stagecraft::simulation

namespace stagecraft {

std::optional<Bracket> step_bracket(const SimulationInput& input) {
  if (!input.hosts.of_rank.empty()) return std::nullopt;
  const simulation::StepNumbers numbers(input);
  if (numbers.takes_processors()) return std::nullopt;
  if (!input.plan.asynchronous()) return simulation::StepBounds(numbers).step();
  if (numbers.sums()) return std::nullopt;
  return simulation::StepBounds(numbers).mean_step();
}

}  // namespace stagecraft
