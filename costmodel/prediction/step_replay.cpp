#include "costmodel/prediction/step_replay.h"

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "costmodel/index.h"
#include "costmodel/prediction/stage_costs.h"
#include "costmodel/prediction/transfer_costs.h"
#include "costmodel/simulation/simulate.h"

namespace stagecraft {
namespace {

/// simulation_input for a plan that fits graph and topology.
SimulationInput input_of(const Graph& graph, const Topology& topology, BoundPlan plan, const PredictOptions& options) {
  const int steps = plan.step_window().steps;
  auto lists = plan.action_lists(steps, options.prefetch);
  auto costs = stage_costs(graph, topology, plan);
  for (StageCost& cost : costs) {
    for (Seconds StageCost::* part :
         {&StageCost::forward, &StageCost::backward, &StageCost::weight_gradient, &StageCost::update})
      cost.*part += options.host_per_action;
  }
  const bool charged = charges_messages(graph, plan, topology);
  const auto transfers = std::make_shared<const TransferCosts>(plan, topology, charged, options.free_transfers);
  SimulationInput out{.plan = std::move(plan),
                      .lists = std::move(lists),
                      .stages = std::move(costs),
                      .steps = steps,
                      .mode = options.mode,
                      .ports = transfers->ports()};
  out.transfer = [transfers](int boundary, bool gradient, int from_rank, int to_rank) {
    return (*transfers)(boundary, gradient, from_rank, to_rank);
  };
  out.hosts = host_input(graph, topology, out.plan, charged && !options.free_transfers);
  return out;
}

/// The moments at which messages were put on their links.
class MessageStarts {
 public:
  MessageStarts(const BoundPlan& plan, const Timeline& timeline)
      : plan_(plan), starts_(2 * plan.plan().boundaries.size()) {
    for (const Span& span : timeline.spans) {
      if (!is_send(span.action.kind)) continue;
      std::vector<std::optional<Seconds>>& starts = starts_[place(span.action)];
      const std::size_t microbatch = to_index(span.action.microbatch);
      if (starts.size() <= microbatch) starts.resize(microbatch + 1);
      starts[microbatch] = span.start;
    }
  }
  /// The moment for the message that an action receives; absent if that message was not sent.
  [[nodiscard]] std::optional<Seconds> of(const Action& receive) const {
    const auto& starts = starts_[place(receive)];
    const std::size_t microbatch = to_index(receive.microbatch);
    return microbatch < starts.size() ? starts[microbatch] : std::nullopt;
  }

 private:
  [[nodiscard]] std::size_t place(const Action& transfer) const {
    return 2 * to_index(*plan_.boundary(transfer.stage, transfer.peer)) + (carries_gradient(transfer.kind) ? 1 : 0);
  }

  const BoundPlan& plan_;
  std::vector<std::vector<std::optional<Seconds>>> starts_;  // by boundary and direction, then microbatch
};

/// The activity of each stage from `begin` to `end` of the replay of `input`.
std::vector<StageShares> shares_of(const SimulationInput& input, const Timeline& timeline, Seconds begin, Seconds end) {
  const MessageStarts sent(input.plan, timeline);
  // The members of a reduce end together; each waits for the last one.
  const std::vector<int>& groups = input.plan.reduce_groups();
  std::map<std::pair<int, Seconds>, Seconds> all_there;
  for (const Span& span : timeline.spans) {
    if (span.action.kind != ActionKind::Reduce) continue;
    Seconds& last = all_there[{groups[to_index(span.action.stage)], span.end}];
    last = std::max(last, span.start);
  }
  std::vector<StageShares> out(input.stages.size());
  for (const Span& span : timeline.spans) {
    StageShares& stage = out[to_index(span.action.stage)];
    const auto within = [&](Seconds from, Seconds to) {
      return std::max(std::min(to, end) - std::max(from, begin), Seconds(0));
    };
    const Seconds time = within(span.start, span.end);
    switch (span.action.kind) {
      case ActionKind::Forward:
        stage.forward += time;
        break;
      case ActionKind::Backward:
      case ActionKind::WeightGradient:
        stage.backward += time;
        break;
      case ActionKind::Update:
        stage.update += time;
        break;
      case ActionKind::Gather:
        stage.reduce += time;
        break;
      case ActionKind::Reduce:
        stage.reduce += within(all_there.at({groups[to_index(span.action.stage)], span.end}), span.end);
        break;
      case ActionKind::ReceiveActivation:
      case ActionKind::ReceiveGradient: {
        if (const auto start = sent.of(span.action))
          stage.exposed_transfer += within(std::max(span.start, *start), span.end);
        break;
      }
      default:
        break;
    }
  }
  return out;
}

std::variant<StepReplay, Infeasible> replay_whole(const Graph& graph, const Topology& topology, const BoundPlan& plan,
                                                  const PredictOptions& options) {
  StepReplay out{.input = input_of(graph, topology, plan, options)};
  PeriodSearch watch;
  watch.cycle = std::numeric_limits<int>::max();
  watch.progress = options.progress;
  auto simulated = simulate_and_watch(out.input, watch);
  if (auto* infeasible = std::get_if<Infeasible>(&simulated)) return std::move(*infeasible);
  out.timeline = std::move(std::get<Timeline>(simulated));
  // From the end of one step to the end of another, several steps later if steps overlap.
  const StepWindow window = plan.step_window();
  const bool flushed = window.steps == 1;
  const Seconds begin = flushed ? Seconds(0) : out.timeline.steps[to_index(window.first)].end;
  const Seconds end = out.timeline.steps[to_index(window.last)].end;
  out.steps = flushed ? 1 : window.last - window.first;
  out.time = end - begin;
  out.shares = shares_of(out.input, out.timeline, begin, end);
  return out;
}

Action later(Action action, int microbatches) {
  if (action.microbatch >= 0) action.microbatch += microbatches;
  return action;
}

/// Whether the lists of a step with one period more are those of `input` with the period once more.
bool grows_by_period(const SimulationInput& input, const Period& period,
                     const std::vector<std::vector<Action>>& longer) {
  for (std::size_t rank = 0; rank < input.lists.size(); ++rank) {
    const auto& list = input.lists[rank];
    const std::size_t length = period.end[rank] - period.begin[rank];
    if (longer[rank].size() != list.size() + length) return false;
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (i < period.end[rank] && longer[rank][i] != list[i]) return false;
      if (i >= period.begin[rank] && longer[rank][i + length] != later(list[i], period.microbatches)) return false;
    }
  }
  return true;
}

/// The replay of a shorter step, extended to the plan's step; absent if it does not repeat itself soon enough.
std::optional<StepReplay> replay_ends(const Graph& graph, const Topology& topology, const BoundPlan& bound,
                                      const PredictOptions& options) {
  const Plan& plan = bound.plan();
  if (bound.step_window().steps > 1 || !plan.listed.empty()) return std::nullopt;
  // With chunks, the microbatches of each replica go through the positions in groups.
  std::int64_t cycle = plan.chunks > 1 ? bound.positions() * bound.replicas(0) : 1;
  const std::int64_t most = options.most_whole / bound.stages();
  for (int s = 0; s < bound.stages(); ++s) {
    cycle = std::lcm(cycle, static_cast<std::int64_t>(bound.replicas(s)));
    if (cycle > most) return std::nullopt;
  }
  // The number of microbatches left out is a multiple of periods of 1, 2, 3, 4, 6 and 12 cycles.
  constexpr std::int64_t kCycles = 12;
  // Each attempt takes 4 times as long as the one before, so all attempts together take at most 4/3 of the last one.
  constexpr std::int64_t kLonger = 4;
  for (std::int64_t least = 4 * kCycles * cycle; least <= most; least *= kLonger) {
    const std::int64_t count = least + (plan.microbatches - least) % (kCycles * cycle);
    if (count > most || count >= plan.microbatches) break;
    Plan shorter = plan;
    shorter.microbatches = to_int(count);
    StepReplay out{.input = input_of(graph, topology, BoundPlan(shorter), options)};
    PeriodSearch watch;
    watch.cycle = to_int(cycle);
    auto simulated = simulate_and_watch(out.input, watch);
    if (std::holds_alternative<Infeasible>(simulated)) return std::nullopt;
    const int left = plan.microbatches - shorter.microbatches;
    if (!watch.period || left % watch.period->microbatches != 0) continue;
    const Period& period = *watch.period;
    shorter.microbatches += period.microbatches;
    if (!grows_by_period(out.input, period, BoundPlan(shorter).action_lists(1, options.prefetch))) continue;
    out.timeline = std::move(std::get<Timeline>(simulated));
    out.reckoned_microbatches = left;
    const double times = left / period.microbatches;
    const Seconds added = (period.to - period.from) * times;
    out.time = out.timeline.steps.front().end + added;
    out.shares = shares_of(out.input, out.timeline, Seconds(0), out.timeline.steps.front().end);
    const std::vector<StageShares> more = shares_of(out.input, out.timeline, period.from, period.to);
    for (std::size_t s = 0; s < more.size(); ++s) {
      out.shares[s].forward += more[s].forward * times;
      out.shares[s].backward += more[s].backward * times;
      out.shares[s].update += more[s].update * times;
      out.shares[s].reduce += more[s].reduce * times;
      out.shares[s].exposed_transfer += more[s].exposed_transfer * times;
    }
    for (Span& span : out.timeline.spans) {
      if (span.start < period.to) continue;
      span.start += added;
      span.end += added;
      span.action = later(span.action, left);
    }
    out.timeline.steps.front().end = out.time;
    return out;
  }
  return std::nullopt;
}

}  // namespace

SimulationInput simulation_input(const Graph& graph, const Topology& topology, BoundPlan plan,
                                 const PredictOptions& options) {
  validate(plan, graph, topology);
  return input_of(graph, topology, std::move(plan), options);
}

std::variant<StepReplay, Infeasible> replay_step(const Graph& graph, const Topology& topology, const BoundPlan& plan,
                                                 const PredictOptions& options) {
  const std::int64_t stages = plan.stages();
  const std::int64_t steps = plan.step_window().steps;
  const int microbatches = plan.plan().microbatches;
  const std::int64_t pairs = stages * steps * microbatches;
  if (pairs <= options.most_whole) return replay_whole(graph, topology, plan, options);
  if (auto ends = replay_ends(graph, topology, plan, options)) return std::move(*ends);
  if (pairs > options.most_replayed) {
    const std::int64_t most = options.most_replayed / (stages * steps);
    throw std::invalid_argument(std::to_string(microbatches) + " microbatches: the " + std::to_string(stages) +
                                " stages of schedule \"" + plan.plan().schedule +
                                "\" do not repeat, so every microbatch must be simulated" +
                                (steps > 1 ? ", in " + std::to_string(steps) + " steps" : "") + "; the limit is " +
                                std::to_string(most) + ", because more take minutes and gigabytes");
  }
  return replay_whole(graph, topology, plan, options);
}

PredictOptions ProgressParts::next(double weight) {
  PredictOptions out = options_;
  if (!options_.progress) return out;
  const double begin = done_;
  const double length = (1 - begin) * (weight / std::max(weight, left_));
  options_.progress(begin);
  out.progress = [&progress = options_.progress, begin, length](double done) { progress(begin + length * done); };
  done_ = begin + length;
  left_ -= weight;
  return out;
}

}  // namespace stagecraft
