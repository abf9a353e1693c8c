#include "costmodel/prediction/predict.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "costmodel/errors.h"
#include "costmodel/index.h"
#include "costmodel/prediction/backward_parts.h"
#include "costmodel/prediction/collectives.h"
#include "costmodel/prediction/device_match.h"
#include "costmodel/prediction/device_types.h"
#include "costmodel/prediction/memory.h"
#include "costmodel/prediction/memory_replay.h"
#include "costmodel/text/table.h"

namespace stagecraft {
namespace {

/// Latency and transmission of a message of these bytes, tensor by tensor.
Transfer transfer_cost(const Link& link, const Boundary& boundary, bool gradient) {
  Transfer out;
  for (const BoundaryTensor& tensor : boundary.tensors) {
    if (gradient && !tensor.gradient) continue;
    const Seconds alone = transfer_time(link, tensor.bytes);
    const Seconds latency = std::min(alone, link.latency);
    out.latency += latency;
    out.transmission += alone - latency;
  }
  return out;
}

/// The graph's layers of each stage, in the plan's order.
using StageLayers = std::vector<std::vector<const Layer*>>;

StageLayers layers_of_stages(const Graph& graph, const BoundPlan& plan) {
  std::unordered_map<std::string, const Layer*> by_id;
  for (const Layer& layer : graph.layers) by_id[layer.id] = &layer;
  StageLayers out;
  for (const Stage& stage : plan.plan().stages) {
    auto& layers = out.emplace_back();
    for (const std::string& id : stage.layers) layers.push_back(by_id.at(id));
  }
  return out;
}

/// Time of each stage to load a microbatch of the inputs that it reads, if it was measured. Times of input layers in
/// imported profiles do not count: PipeDream's include its own data loader.
std::vector<Seconds> loading_times(const Graph& graph, const StageLayers& layers) {
  std::unordered_map<const Layer*, std::size_t> stage_of;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    for (const Layer* layer : layers[s]) stage_of[layer] = s;
  }
  std::set<std::pair<std::size_t, int>> reads;  // (stage, input)
  for (const Edge& edge : graph.edges) {
    const Layer& source = graph.layers[to_index(edge.source)];
    if (!is_input(source) || source.forward.count == 0) continue;
    reads.emplace(stage_of.at(&graph.layers[to_index(edge.destination)]), edge.source);
  }
  std::vector<Seconds> out(layers.size());
  for (const auto& [stage, input] : reads) out[stage] += graph.layers[to_index(input)].forward.median;
  return out;
}

/// The buckets of a replicated stage's gradients, which a backward completes from the last layer to the first: a bucket
/// takes layers until it is full; the parameters of one layer stay together. A `split` backward leaves the gradients to
/// later parts, so all buckets wait for its end.
std::vector<ReduceBucket> reduce_buckets(const std::vector<const Layer*>& layers, const Topology& topology,
                                         const std::vector<int>& devices, Bytes bucket_bytes, bool split,
                                         double closure) {
  std::vector<ReduceBucket> out;
  if (devices.size() < 2) return out;
  Seconds left;
  for (const Layer* layer : layers) left += split ? Seconds(0) : layer->backward.median * closure;
  Bytes bytes;
  for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
    left -= (*layer)->backward.median * closure;
    bytes += (*layer)->parameter_bytes;
    for (const TiedParameter& tied : (*layer)->tied) bytes -= tied.bytes;
    if (bytes == Bytes(0) || (bytes < bucket_bytes && std::next(layer) != layers.rend())) continue;
    out.push_back({all_reduce_time(bytes, devices, topology), std::max(left, Seconds(0))});
    bytes = Bytes(0);
  }
  return out;
}

/// Costs of a microbatch and an update of a stage, without data loading and reduce. `parts`: of its backward, if the
/// schedule splits it.
StageCost compute_cost(const std::vector<const Layer*>& layers, bool recompute, const SplitBackwardTimes* parts,
                       double closure) {
  StageCost out;
  for (const Layer* layer : layers) {
    out.forward += layer->forward.median;
    out.backward += layer->backward.median;
    if (layer->update) out.update += layer->update->median;
  }
  out.forward = out.forward * closure;
  out.backward = out.backward * closure;
  out.update = out.update * closure;
  if (parts) {
    out.whole_backward = out.backward;
    out.backward = parts->inputs * closure;
    out.weight_gradient = parts->weights * closure;
  }
  if (recompute) {
    out.backward += out.forward;
    if (out.whole_backward) *out.whole_backward += out.forward;
  }
  return out;
}

/// The devices of all stages that reduce together with `stage`.
std::vector<int> devices_of_group(const BoundPlan& plan, int stage) {
  std::set<int> out;
  for (int other = 0; other < plan.stages(); ++other) {
    if (plan.reduce_groups()[to_index(other)] != plan.reduce_groups()[to_index(stage)]) continue;
    const std::vector<int>& devices = plan.plan().stages[to_index(other)].devices;
    out.insert(devices.begin(), devices.end());
  }
  return {out.begin(), out.end()};
}

/// Sets the costs of summing a stage's gradients: over its replicas, and `tied` bytes over all their holders.
void add_reduce(StageCost& cost, const std::vector<const Layer*>& layers, const Topology& topology,
                const BoundPlan& plan, int stage, Bytes tied, double closure) {
  const std::vector<int>& devices = plan.plan().stages[to_index(stage)].devices;
  if (plan.plan().gradient_bucket_bytes && !plan.asynchronous()) {
    cost.buckets = reduce_buckets(layers, topology, devices, *plan.plan().gradient_bucket_bytes,
                                  plan.schedule().splits_backward, closure);
  } else {
    Bytes parameters;
    for (const Layer* layer : layers) parameters += layer->parameter_bytes;
    cost.reduce = all_reduce_time(parameters - tied, devices, topology);
  }
  if (tied > Bytes(0)) cost.tied = all_reduce_time(tied, devices_of_group(plan, stage), topology);
}

/// With one type of devices.
std::vector<StageCost> costs_of_one_type(const Graph& graph, const Topology& topology, const BoundPlan& plan) {
  const double closure = closure_factor(graph);
  const StageLayers layers = layers_of_stages(graph, plan);
  const std::vector<Seconds> loading = loading_times(graph, layers);
  const std::vector<Bytes> tied = tied_bytes(graph, plan);
  std::vector<SplitBackwardTimes> parts;
  if (plan.schedule().splits_backward) parts = split_backward_times(graph, plan);
  std::vector<StageCost> out;
  for (int s = 0; s < plan.stages(); ++s) {
    StageCost cost = compute_cost(layers[to_index(s)], plan.plan().stages[to_index(s)].recompute,
                                  parts.empty() ? nullptr : &parts[to_index(s)], closure);
    cost.forward += loading[to_index(s)];
    add_reduce(cost, layers[to_index(s)], topology, plan, s, tied[to_index(s)], closure);
    out.push_back(std::move(cost));
  }
  return out;
}

/// Of each stage on the type of its devices; where replicas are of several types, on the slowest of them.
std::vector<StageCost> stage_costs(const Graph& graph, const Topology& topology, const BoundPlan& plan) {
  if (topology.others.empty()) return costs_of_one_type(graph, topology, plan);
  const auto microbatch = [](const StageCost& cost) { return cost.forward + cost.backward + cost.weight_gradient; };
  std::vector<StageCost> out(plan.plan().stages.size());
  std::vector<bool> is_known(out.size());
  for (const std::string& type : types_of(topology, plan.plan())) {
    const std::vector<StageCost> costs = costs_of_one_type(graph_on(graph, type), topology, plan);
    for (std::size_t s = 0; s < out.size(); ++s) {
      if (!types_of(topology, plan.plan().stages[s].devices).contains(type)) continue;
      if (is_known[s] && microbatch(out[s]) >= microbatch(costs[s])) continue;
      out[s] = costs[s];
      is_known[s] = true;
    }
  }
  return out;
}

/// The processors of each host that the ranks of a plan compute on; 0: unknown, or they compute on GPUs.
int shared_processors(const Topology& topology) {
  const MeasuredDevice device = described_device(topology);
  return device.kind == DeviceKind::Processor ? device.host_processors : 0;
}

int threads_of(const Graph& graph) { return graph.threads > 0 ? to_int(graph.threads) : 1; }

/// The host of each rank: its group of the innermost level.
std::vector<int> hosts_of(const BoundPlan& plan, const Topology& topology) {
  std::vector<int> out;
  for (const RankRole& role : plan.ranks()) out.push_back(group_below(topology, 1, role.device));
  return out;
}

/// The most ranks of the plan that one host has.
int most_on_one_host(const BoundPlan& plan, const Topology& topology) {
  std::map<int, int> ranks;
  int most = 0;
  for (const int host : hosts_of(plan, topology)) most = std::max(most, ++ranks[host]);
  return most;
}

/// The thread that handles messages. Where hosts are joined, processes have a thread for that whatever the channel.
MessageThread message_thread(const BoundPlan& plan, const Topology& topology) {
  const std::vector<int> hosts = hosts_of(plan, topology);
  const bool several = std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) != hosts.end();
  const auto& processing = topology.levels.front().link.processing;
  return !several && processing ? processing->thread : MessageThread::Separate;
}

/// Whether messages are charged with processor time: it is known that they compete for processors, or that ranks do
/// nothing else meanwhile.
bool charges_messages(const Graph& graph, const BoundPlan& plan, const Topology& topology) {
  const int processors = shared_processors(topology);
  if (processors == 0) return false;
  if (message_thread(plan, topology) == MessageThread::Own) return true;
  return most_on_one_host(plan, topology) * (threads_of(graph) + 1) > processors;
}

/// Processor time of a message of these bytes at one end, tensor by tensor.
Handling handling_of(const Curve& curve, const Boundary& boundary, bool gradient) {
  Handling out;
  if (curve.points.empty()) return out;
  for (const BoundaryTensor& tensor : boundary.tensors) {
    if ((gradient && !tensor.gradient) || tensor.bytes <= Bytes(0)) continue;
    const Seconds all = interpolate(curve, tensor.bytes);
    const Seconds fixed = std::min(all, curve.points.front().time);
    out.fixed += fixed;
    out.streaming += all - fixed;
  }
  return out;
}

/// Costs of messages. Ports: two for each group of devices (out, in) at each level.
class TransferCosts {
 public:
  /// `charged`: with the processor time of messages, where it was measured. `free`: they take none at all.
  TransferCosts(const BoundPlan& plan, const Topology& topology, bool charged, bool free) : topology_(topology) {
    for (const RankRole& role : plan.ranks()) device_of_rank_.push_back(role.device);
    const int devices = device_count(topology);
    for (int level = 0; level < to_int(topology.levels.size()); ++level) {
      first_port_.push_back(ports_);
      ports_ += 2 * (group_below(topology, level, devices - 1) + 1);
      const Link& link = topology.levels[to_index(level)].link;
      for (const bool gradient : {false, true}) {
        auto& row = by_level_[gradient].emplace_back();
        for (const Boundary& boundary : plan.plan().boundaries) {
          Transfer& cost = row.emplace_back(free ? Transfer{} : transfer_cost(link, boundary, gradient));
          if (free || !charged || !link.processing) continue;
          cost.sender = handling_of(link.processing->sender, boundary, gradient);
          cost.receiver = handling_of(link.processing->receiver, boundary, gradient);
        }
      }
    }
  }

  int ports() const { return ports_; }

  Transfer operator()(int boundary, bool gradient, int from_rank, int to_rank) const {
    const int from = device_of_rank_[to_index(from_rank)];
    const int to = device_of_rank_[to_index(to_rank)];
    const int level = joining_level(topology_, from, to);
    Transfer out = by_level_[gradient][to_index(level)][to_index(boundary)];
    out.egress = first_port_[to_index(level)] + 2 * group_below(topology_, level, from);
    out.ingress = first_port_[to_index(level)] + 2 * group_below(topology_, level, to) + 1;
    return out;
  }

 private:
  Topology topology_;
  std::vector<int> device_of_rank_;
  std::vector<std::vector<Transfer>> by_level_[2];  // [gradient][level][boundary]
  std::vector<int> first_port_;                     // by level
  int ports_ = 0;
};

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
  const auto transfers = std::make_shared<const TransferCosts>(plan, topology, charges_messages(graph, plan, topology),
                                                               options.free_transfers);
  SimulationInput out{.plan = std::move(plan),
                      .lists = std::move(lists),
                      .stages = std::move(costs),
                      .steps = steps,
                      .mode = options.mode,
                      .ports = transfers->ports()};
  out.transfer = [transfers](int boundary, bool gradient, int from_rank, int to_rank) {
    return (*transfers)(boundary, gradient, from_rank, to_rank);
  };
  out.slowdown = graph.slowdown;
  const int processors = shared_processors(topology);
  if (processors > 0 || !graph.slowdown.empty()) out.host_of_rank = hosts_of(out.plan, topology);
  out.host_processors = processors;
  out.compute_processors = threads_of(graph);
  out.message_thread = message_thread(out.plan, topology);
  return out;
}

}  // namespace

// Layer times are separate medians and do not include the time that an iteration loses between and around the layers.
// If the whole iteration was measured too, this is the factor that makes the layers add up to it.
double closure_factor(const Graph& graph) {
  Seconds sum;
  for (const Layer& layer : graph.layers) {
    if (is_input(layer)) continue;
    sum += layer.forward.median + layer.backward.median;
    if (layer.update) sum += layer.update->median;
  }
  if (!graph.iteration || sum <= Seconds(0) || graph.iteration->median <= Seconds(0)) return 1;
  return graph.iteration->median / sum;
}

SimulationInput simulation_input(const Graph& graph, const Topology& topology, BoundPlan plan,
                                 const PredictOptions& options) {
  validate(plan, graph, topology);
  return input_of(graph, topology, std::move(plan), options);
}

std::string message_processing_assumption(const Graph& graph, const Topology& topology, const BoundPlan& plan) {
  const int processors = shared_processors(topology);
  const int ranks = most_on_one_host(plan, topology);
  if (processors == 0 || plan.plan().boundaries.empty() || ranks * threads_of(graph) <= processors) return "";
  if (topology.levels.front().link.processing) return "";
  return std::to_string(ranks) + " ranks share " + std::to_string(processors) +
         (processors == 1 ? " processor" : " processors") +
         "; messages are assumed to take no processor time, because the topology does not say how much";
}

namespace {

const std::vector<std::pair<FigureSource, const char*>>& source_names() {
  static const std::vector<std::pair<FigureSource, const char*>> names{
      {FigureSource::Measured, "measured"}, {FigureSource::Fitted, "fitted"},
      {FigureSource::Analytic, "analytic"}, {FigureSource::Extrapolated, "extrapolated"},
      {FigureSource::Assumed, "assumed"},   {FigureSource::Calibrated, "calibrated"}};
  return names;
}

}  // namespace

const char* to_string(FigureSource source) {
  for (const auto& [value, name] : source_names()) {
    if (value == source) return name;
  }
  return "";
}

FigureSource figure_source(const std::string& word) {
  std::vector<std::string> known;
  for (const auto& [value, name] : source_names()) {
    if (name == word) return value;
    known.emplace_back(name);
  }
  throw InputError(ErrorKind::UnknownName, unknown_name("source", word, known));
}

std::string idle_text(const Prediction& prediction) {
  const std::vector<int>& idle = prediction.idle_devices;
  const std::vector<int>& unused = prediction.unused_devices;
  if (idle.empty() && unused.empty()) return "";
  std::string out =
      std::to_string(idle.size() + unused.size()) + " of " + std::to_string(prediction.devices) + " devices are idle: ";
  if (!idle.empty()) out += format_ranges(idle) + " have no microbatch";
  if (!idle.empty() && !unused.empty()) out += ", ";
  if (!unused.empty()) out += format_ranges(unused) + " are not in any stage";
  return out;
}

namespace {

/// A stage's time by activity, summed over its replicas.
struct Shares {
  Seconds forward, backward, update, reduce, exposed_transfer;
};

/// The activity of each stage from `begin` to `end` of the replay of `input`.
std::vector<Shares> shares_of(const SimulationInput& input, const Timeline& timeline, Seconds begin, Seconds end) {
  // When each message was on its link, by (boundary stages, microbatch).
  std::map<std::tuple<int, int, int, bool>, Seconds> sent;
  for (const Span& span : timeline.spans) {
    const bool gradient = span.action.kind == ActionKind::SendGradient;
    if (span.action.kind != ActionKind::SendActivation && !gradient) continue;
    sent[{span.action.stage, span.action.peer, span.action.microbatch, gradient}] = span.start;
  }
  // The members of a reduce end together; each waits for the last one.
  const std::vector<int>& groups = input.plan.reduce_groups();
  std::map<std::pair<int, Seconds>, Seconds> all_there;
  for (const Span& span : timeline.spans) {
    if (span.action.kind != ActionKind::Reduce) continue;
    Seconds& last = all_there[{groups[to_index(span.action.stage)], span.end}];
    last = std::max(last, span.start);
  }
  std::vector<Shares> out(input.stages.size());
  for (const Span& span : timeline.spans) {
    Shares& stage = out[to_index(span.action.stage)];
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
      case ActionKind::Reduce:
        stage.reduce += within(all_there.at({groups[to_index(span.action.stage)], span.end}), span.end);
        break;
      case ActionKind::ReceiveActivation:
      case ActionKind::ReceiveGradient: {
        const bool gradient = span.action.kind == ActionKind::ReceiveGradient;
        const auto it = sent.find({span.action.peer, span.action.stage, span.action.microbatch, gradient});
        if (it != sent.end()) { stage.exposed_transfer += within(std::max(span.start, it->second), span.end); }
        break;
      }
      default:
        break;
    }
  }
  return out;
}

/// The result of a replay for a step, or for the steps of the window.
struct Replay {
  SimulationInput input;  ///< of the microbatches that were replayed
  Timeline timeline = {};
  std::vector<Shares> shares = {};
  Seconds time = {};
  int steps = 1;  ///< covered by `shares` and `time`
  int reckoned_microbatches = 0;
};

std::variant<Replay, Infeasible> replay_whole(const Graph& graph, const Topology& topology, const BoundPlan& plan,
                                              const PredictOptions& options) {
  Replay out{.input = input_of(graph, topology, plan, options)};
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
std::optional<Replay> replay_ends(const Graph& graph, const Topology& topology, const BoundPlan& bound,
                                  const PredictOptions& options) {
  const Plan& plan = bound.plan();
  if (bound.step_window().steps > 1 || !plan.listed.empty()) return std::nullopt;
  std::int64_t cycle = plan.chunks > 1 ? bound.positions() : 1;
  const std::int64_t most = options.most_whole / bound.stages();
  for (int s = 0; s < bound.stages(); ++s) {
    cycle = std::lcm(cycle, static_cast<std::int64_t>(bound.replicas(s)));
    if (cycle > most) return std::nullopt;
  }
  // A shorter step differs by a multiple of periods of 1, 2, 3, 4, 6 and 12 cycles.
  constexpr std::int64_t kCycles = 12;
  constexpr std::int64_t kLonger = 4;
  for (std::int64_t least = 4 * kCycles * cycle; least <= most; least *= kLonger) {
    const std::int64_t count = least + (plan.microbatches - least) % (kCycles * cycle);
    if (count > most || count >= plan.microbatches) break;
    Plan shorter = plan;
    shorter.microbatches = to_int(count);
    Replay out{.input = input_of(graph, topology, BoundPlan(shorter), options)};
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
    const std::vector<Shares> more = shares_of(out.input, out.timeline, period.from, period.to);
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

/// The replay of a step that is too long to replay in full, or why there is none.
std::variant<Replay, Infeasible> replay(const Graph& graph, const Topology& topology, const BoundPlan& plan,
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

/// Times and memory of each stage.
std::vector<StagePrediction> predicted_stages(const Graph& graph, const BoundPlan& plan, const Replay& replayed,
                                              Seconds iteration) {
  std::vector<StagePrediction> out;
  const std::vector<bool> splits = splits_backward(graph, plan);
  const int steps = replayed.steps;
  const double microbatches = static_cast<double>(plan.plan().microbatches) * steps;
  for (int s = 0; s < plan.stages(); ++s) {
    const Shares& shares = replayed.shares[to_index(s)];
    StagePrediction stage;
    stage.stage = s;
    stage.replicas = plan.replicas(s);
    const double parts = stage.replicas * steps;
    stage.compute = (shares.forward + shares.backward) / parts;
    stage.forward = shares.forward / microbatches;
    stage.backward = shares.backward / microbatches;
    stage.update = shares.update / parts;
    stage.reduce = shares.reduce / parts;
    stage.exposed_transfer = shares.exposed_transfer / parts;
    const int rank = plan.first_rank(s);
    stage.in_flight = in_flight(replayed.input.lists[to_index(rank)], s, splits[to_index(s)]);
    out.push_back(std::move(stage));
  }
  // Chunks of one rank share its idle time, which is reported for the first of them, and its memory.
  for (int first = 0; first < plan.positions(); ++first) {
    Seconds used;
    for (int s = first; s < plan.stages(); s += plan.positions()) {
      const StagePrediction& chunk = out[to_index(s)];
      used += chunk.compute + chunk.update + chunk.reduce + chunk.exposed_transfer;
    }
    out[to_index(first)].bubble = std::max(iteration - used, Seconds(0));
  }
  return out;
}

bool is_work(ActionKind kind) {
  return kind == ActionKind::Forward || kind == ActionKind::Backward || kind == ActionKind::WeightGradient ||
         kind == ActionKind::Reduce || kind == ActionKind::Update;
}

/// What a rank holds as it begins and ends each of its computations.
MemoryCourse course_of(const MemoryReplay& replay, const std::vector<Action>& list, const Timeline& timeline) {
  MemoryCourse out{replay.peak.rank, {}};
  std::map<std::tuple<ActionKind, int, int>, std::vector<const Span*>> spans;  // of equal actions in order
  for (const Span& span : timeline.spans) {
    if (span.rank == out.rank && is_work(span.action.kind))
      spans[{span.action.kind, span.action.stage, span.action.microbatch}].push_back(&span);
  }
  std::map<std::tuple<ActionKind, int, int>, std::size_t> used;
  const auto add = [&out](Seconds from, Bytes bytes) {
    if (out.moments.empty() || out.moments.back().bytes != bytes) out.moments.push_back({from, bytes});
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!is_work(list[i].kind)) continue;
    const std::tuple key(list[i].kind, list[i].stage, list[i].microbatch);
    const auto it = spans.find(key);
    const std::size_t number = used[key]++;
    if (it == spans.end() || number >= it->second.size()) continue;
    add(it->second[number]->start, replay.during[i]);
    add(it->second[number]->end, replay.after[i]);
  }
  return out;
}

/// Sets the memory of ranks and stages. A stage's is that of its replica with the largest bound.
void add_memory(Prediction& out, const Graph& graph, const Topology& topology, const BoundPlan& plan,
                const std::vector<std::vector<Action>>& lists) {
  std::vector<MemoryReplay> replays = replay_memory(graph, topology, plan, lists);
  const auto fits = [&](int rank) {
    const std::optional<Bytes>& memory = device_at(topology, plan.ranks()[to_index(rank)].device).memory;
    return !memory || replays[to_index(rank)].bound <= *memory;
  };
  for (int position = 0; position < plan.positions(); ++position) {
    const int first = plan.first_rank(position);
    int fullest = first;
    for (const int rank : plan.ranks_of(position)) {
      if (replays[to_index(rank)].bound > replays[to_index(fullest)].bound) fullest = rank;
    }
    const MemoryReplay& replay = replays[to_index(fullest)];
    const std::vector<int> ranks = plan.ranks_of(position);
    const std::vector<int>& stages = plan.ranks()[to_index(fullest)].stages;
    for (std::size_t i = 0; i < stages.size(); ++i) {
      StagePrediction& stage = out.stages[to_index(stages[i])];
      stage.memory = replay.stages[i];
      stage.memory_bound = replay.bounds[i];
      stage.fits = std::all_of(ranks.begin(), ranks.end(), fits);
    }
  }
  for (int position = 0; position < plan.positions() && out.reckoned_microbatches == 0; ++position) {
    const std::size_t rank = to_index(plan.first_rank(position));
    out.memory_over_time.push_back(course_of(replays[rank], lists[rank], out.timeline));
  }
  for (MemoryReplay& replay : replays) out.timeline.memory.push_back(std::move(replay.peak));
}

/// Sets the idle devices.
void add_idle_devices(Prediction& prediction, const BoundPlan& plan) {
  std::vector<bool> is_used(to_index(prediction.devices), false);
  std::vector<bool> has_work(plan.ranks().size(), false);
  for (const Span& span : prediction.timeline.spans) {
    if (span.action.microbatch >= 0) has_work[to_index(span.rank)] = true;
  }
  for (std::size_t rank = 0; rank < has_work.size(); ++rank) {
    const int device = plan.ranks()[rank].device;
    is_used[to_index(device)] = true;
    if (!has_work[rank]) prediction.idle_devices.push_back(device);
  }
  std::sort(prediction.idle_devices.begin(), prediction.idle_devices.end());
  for (int device = 0; device < prediction.devices; ++device) {
    if (!is_used[to_index(device)]) prediction.unused_devices.push_back(device);
  }
}

}  // namespace

std::variant<Prediction, Infeasible> predict(const Graph& graph, const Topology& topology, const BoundPlan& plan,
                                             const PredictOptions& options) {
  validate(plan, graph, topology);
  auto result = replay(graph, topology, plan, options);
  if (auto* infeasible = std::get_if<Infeasible>(&result)) return std::move(*infeasible);
  Replay& replayed = std::get<Replay>(result);

  Prediction out;
  out.timeline = std::move(replayed.timeline);
  out.reckoned_microbatches = replayed.reckoned_microbatches;
  out.iteration = replayed.time / replayed.steps;
  if (graph.microbatch_samples && out.iteration > Seconds(0)) {
    const double samples = static_cast<double>(*graph.microbatch_samples) * plan.plan().microbatches;
    out.samples_per_s = samples / out.iteration.value;
  }
  out.yardstick = graph.conditions.yardstick;
  out.stages = predicted_stages(graph, plan, replayed, out.iteration);
  add_memory(out, graph, topology, plan, replayed.input.lists);
  out.devices = device_count(topology);
  add_idle_devices(out, plan);
  Seconds busy;
  for (const StagePrediction& stage : out.stages)
    busy += (stage.compute + stage.update + stage.reduce) * stage.replicas;
  const double rank_time = out.iteration.value * out.timeline.ranks;
  out.bubble = rank_time > 0 ? std::max(0.0, 1 - busy.value / rank_time) : 0;
  out.backward_parts = backward_parts_assumption(graph, plan);
  if (plan.ranks().size() > 1) out.channel = topology.levels.front().link.channel;
  out.message_processing = message_processing_assumption(graph, topology, plan);
  return out;
}

}  // namespace stagecraft
