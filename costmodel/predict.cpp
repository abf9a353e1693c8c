#include "costmodel/predict.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <unordered_map>

#include "costmodel/collectives.h"
#include "costmodel/memory.h"
#include "costmodel/table.h"

namespace stagecraft {
namespace {

std::size_t at(int i) { return static_cast<std::size_t>(i); }

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

/// Time to load a microbatch of the inputs that the stage reads, where it was measured. Imported profiles state times
/// of input layers that are not ours to count: PipeDream's hold its own data loader.
Seconds loading_time(const Graph& graph, const Stage& stage) {
  const std::set<std::string> own(stage.layers.begin(), stage.layers.end());
  std::set<int> inputs;
  for (const Edge& edge : graph.edges) {
    const Layer& source = graph.layers[at(edge.source)];
    if (is_input(source) && source.forward.count > 0 && own.contains(graph.layers[at(edge.destination)].id))
      inputs.insert(edge.source);
  }
  Seconds sum;
  for (const int input : inputs) sum += graph.layers[at(input)].forward.median;
  return sum;
}

/// The buckets of a replicated stage's gradients, which a backward completes from the last layer to the first: a bucket
/// takes layers until it holds enough, all that a layer holds of its own together.
std::vector<ReduceBucket> reduce_buckets(const Graph& graph, const Topology& topology, const Stage& stage,
                                         Bytes bucket_bytes, double closure) {
  std::vector<ReduceBucket> out;
  if (stage.devices.size() < 2) return out;
  std::unordered_map<std::string, const Layer*> by_id;
  for (const Layer& layer : graph.layers) by_id[layer.id] = &layer;
  Seconds left;
  for (const std::string& id : stage.layers) left += by_id.at(id)->backward.median * closure;
  Bytes bytes;
  for (auto id = stage.layers.rbegin(); id != stage.layers.rend(); ++id) {
    const Layer& layer = *by_id.at(*id);
    left -= layer.backward.median * closure;
    bytes += layer.parameter_bytes;
    for (const TiedParameter& tied : layer.tied) bytes -= tied.bytes;
    if (bytes == Bytes(0) || (bytes < bucket_bytes && std::next(id) != stage.layers.rend())) continue;
    out.push_back({all_reduce_time(bytes, stage.devices, topology), std::max(left, Seconds(0))});
    bytes = Bytes(0);
  }
  return out;
}

}  // namespace

// Layer times are medians, each taken apart, and miss what an iteration loses between and around the layers. Where the
// whole iteration was measured too, the layers share it out: this is the factor that makes them add up to it.
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

std::vector<int> reduce_groups(const Graph& graph, const Plan& plan) {
  std::vector<int> parent(plan.stages.size());
  std::iota(parent.begin(), parent.end(), 0);
  const auto root = [&](int s) {
    while (parent[at(s)] != s) s = parent[at(s)];
    return s;
  };
  std::unordered_map<std::string, int> stage_of;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    for (const std::string& id : plan.stages[s].layers) stage_of[id] = static_cast<int>(s);
  }
  std::map<std::string, int> first;
  for (const Layer& layer : graph.layers) {
    const auto it = stage_of.find(layer.id);
    if (it == stage_of.end()) continue;
    for (const TiedParameter& tied : layer.tied) {
      const auto [holder, fresh] = first.emplace(tied.name, it->second);
      if (!fresh) parent[at(root(it->second))] = root(holder->second);
    }
  }
  std::vector<int> out;
  for (int s = 0; s < static_cast<int>(parent.size()); ++s) out.push_back(root(s));
  return out;
}

SimulationInput simulation_input(const Graph& graph, const Topology& topology, const Plan& plan,
                                 const PredictOptions& options) {
  validate(plan, graph, topology);
  SimulationInput out;
  const std::vector<Bytes> tied = tied_bytes(graph, plan);
  out.steps = step_window(plan).steps;
  out.lists = action_lists(plan, options.prefetch, tied_stages(graph, plan), out.steps);
  for (const auto& list : out.lists) {
    for (const Action& action : list) {
      if (action.kind != ActionKind::WeightGradient) continue;
      throw std::invalid_argument(
          "schedule \"" + plan.schedule +
          "\" needs weight-gradient times, which this graph does not hold; use gpipe, 1f1b or interleaved-1f1b");
    }
  }
  out.microbatches = plan.microbatches;
  out.mode = options.mode;
  out.replicas = pipeline_shape(plan).replicas;
  out.reduce_group = reduce_groups(graph, plan);

  const double closure = closure_factor(graph);
  std::unordered_map<std::string, int> index;
  for (std::size_t i = 0; i < graph.layers.size(); ++i) index[graph.layers[i].id] = static_cast<int>(i);
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    StageCost cost;
    Bytes parameters;
    for (const std::string& id : plan.stages[s].layers) {
      const Layer& layer = graph.layers[at(index.at(id))];
      cost.forward += layer.forward.median;
      cost.backward += layer.backward.median;
      if (layer.update) cost.update += layer.update->median;
      parameters += layer.parameter_bytes;
    }
    cost.forward = cost.forward * closure;
    cost.backward = cost.backward * closure;
    cost.update = cost.update * closure;
    if (plan.stages[s].recompute) cost.backward += cost.forward;
    cost.forward += loading_time(graph, plan.stages[s]);
    if (plan.gradient_bucket_bytes && schedule_of(plan).weights == Weights::Flushed) {
      cost.buckets = reduce_buckets(graph, topology, plan.stages[s], *plan.gradient_bucket_bytes, closure);
    } else {
      cost.reduce = all_reduce_time(parameters - tied[s], plan.stages[s].devices, topology);
    }
    if (tied[s] > Bytes(0)) {
      std::vector<int> holders;
      for (std::size_t other = 0; other < plan.stages.size(); ++other) {
        if (out.reduce_group[other] != out.reduce_group[s]) continue;
        holders.insert(holders.end(), plan.stages[other].devices.begin(), plan.stages[other].devices.end());
      }
      cost.reduce += all_reduce_time(tied[s], holders, topology);
    }
    out.stages.push_back(cost);
    out.first_rank.push_back(rank_of(plan, static_cast<int>(s), 0));
  }

  const std::vector<RankRole> roles = ranks(plan);
  std::vector<int> device_of_rank;
  for (const RankRole& role : roles) device_of_rank.push_back(role.device);
  if (!graph.slowdown.empty()) {
    out.slowdown = graph.slowdown;
    for (const int device : device_of_rank) out.host_of_rank.push_back(group_below(topology, 1, device));
  }

  // Transfers of a boundary by joining level, ready made; ports: two a group (out, in) at each level.
  struct Costs {
    std::vector<std::vector<Transfer>> by_level[2];  // [gradient][level][boundary]
    std::vector<int> first_port;
    std::vector<int> device_of_rank;
    Topology topology;
  };
  const auto costs = std::make_shared<Costs>();
  costs->device_of_rank = std::move(device_of_rank);
  costs->topology = topology;
  int ports = 0;
  const int devices = device_count(topology);
  for (int level = 0; level < static_cast<int>(topology.levels.size()); ++level) {
    costs->first_port.push_back(ports);
    ports += 2 * (group_below(topology, level, devices - 1) + 1);
    for (const bool gradient : {false, true}) {
      std::vector<Transfer> row;
      for (const Boundary& boundary : plan.boundaries) {
        row.push_back(options.free_transfers ? Transfer{}
                                             : transfer_cost(topology.levels[at(level)].link, boundary, gradient));
      }
      costs->by_level[gradient].push_back(std::move(row));
    }
  }
  for (const Boundary& boundary : plan.boundaries) {
    const bool gradient = std::any_of(boundary.tensors.begin(), boundary.tensors.end(),
                                      [](const BoundaryTensor& t) { return t.gradient; });
    out.boundaries.push_back({boundary.source, boundary.destination, gradient});
  }
  out.ports = ports;
  out.transfer = [costs](int boundary, bool gradient, int from_rank, int to_rank) {
    const int from = costs->device_of_rank[at(from_rank)];
    const int to = costs->device_of_rank[at(to_rank)];
    const int level = joining_level(costs->topology, from, to);
    Transfer transfer = costs->by_level[gradient][at(level)][at(boundary)];
    transfer.egress = costs->first_port[at(level)] + 2 * group_below(costs->topology, level, from);
    transfer.ingress = costs->first_port[at(level)] + 2 * group_below(costs->topology, level, to) + 1;
    return transfer;
  };
  return out;
}

std::string idle_text(const Prediction& prediction) {
  const std::vector<int>& idle = prediction.idle_devices;
  const std::vector<int>& unused = prediction.unused_devices;
  if (idle.empty() && unused.empty()) return "";
  std::string out = std::to_string(idle.size() + unused.size()) + " of " + std::to_string(prediction.devices) +
                    " devices do nothing: ";
  if (!idle.empty()) out += format_ranges(idle) + " are replicas beyond the number of microbatches";
  if (!idle.empty() && !unused.empty()) out += ", ";
  if (!unused.empty()) out += format_ranges(unused) + " are in no stage";
  return out;
}

namespace {

/// A stage's time by what it did, of all its replicas together.
struct Shares {
  Seconds forward, backward, update, reduce, exposed_transfer;
};

/// What each stage did from `begin` to `end` of the replay of `input`.
std::vector<Shares> shares_of(const SimulationInput& input, const Timeline& timeline, Seconds begin, Seconds end) {
  // When each message was on its link, by (boundary stages, microbatch).
  std::map<std::tuple<int, int, int, bool>, Seconds> sent;
  for (const Span& span : timeline.spans) {
    const bool gradient = span.action.kind == ActionKind::SendGradient;
    if (span.action.kind != ActionKind::SendActivation && !gradient) continue;
    sent[{span.action.stage, span.action.peer, span.action.microbatch, gradient}] = span.start;
  }
  // The members of a reduce end together; each waits for the one that comes last.
  std::map<std::pair<int, Seconds>, Seconds> all_there;
  for (const Span& span : timeline.spans) {
    if (span.action.kind != ActionKind::Reduce) continue;
    Seconds& last = all_there[{input.reduce_group[at(span.action.stage)], span.end}];
    last = std::max(last, span.start);
  }
  std::vector<Shares> out(input.stages.size());
  for (const Span& span : timeline.spans) {
    Shares& stage = out[at(span.action.stage)];
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
        stage.reduce += within(all_there.at({input.reduce_group[at(span.action.stage)], span.end}), span.end);
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

/// What a replay says of a step, or of the steps that are looked at.
struct Replay {
  SimulationInput input;  ///< of the microbatches that were replayed
  Timeline timeline;
  std::vector<Shares> shares;
  Seconds time;
  int steps = 1;  ///< that `shares` and `time` are of
  int reckoned_microbatches = 0;
};

std::variant<Replay, Infeasible> replay_whole(const Graph& graph, const Topology& topology, const Plan& plan,
                                              const PredictOptions& options) {
  Replay out;
  out.input = simulation_input(graph, topology, plan, options);
  PeriodSearch watch;
  watch.cycle = std::numeric_limits<int>::max();
  watch.progress = options.progress;
  auto simulated = simulate_and_watch(out.input, watch);
  if (auto* infeasible = std::get_if<Infeasible>(&simulated)) return std::move(*infeasible);
  out.timeline = std::move(std::get<Timeline>(simulated));
  // From the end of one step to the end of another, several steps later where steps run into each other.
  const StepWindow window = step_window(plan);
  const bool flushed = window.steps == 1;
  const Seconds begin = flushed ? Seconds(0) : out.timeline.steps[at(window.first)].end;
  const Seconds end = out.timeline.steps[at(window.last)].end;
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

/// The replay of a shorter step, with what the plan's step holds more; absent if it does not repeat itself soon enough.
std::optional<Replay> replay_ends(const Graph& graph, const Topology& topology, const Plan& plan,
                                  const PredictOptions& options) {
  if (step_window(plan).steps > 1 || !plan.listed.empty()) return std::nullopt;
  std::int64_t cycle = plan.chunks > 1 ? static_cast<std::int64_t>(plan.stages.size()) / plan.chunks : 1;
  const std::int64_t most = options.most_whole / static_cast<std::int64_t>(plan.stages.size());
  for (const Stage& stage : plan.stages) {
    cycle = std::lcm(cycle, static_cast<std::int64_t>(stage.devices.size()));
    if (cycle > most) return std::nullopt;
  }
  // A shorter step differs by whole numbers of periods of 1, 2, 3, 4, 6 and 12 cycles.
  constexpr std::int64_t kCycles = 12;
  constexpr std::int64_t kLonger = 4;
  for (std::int64_t least = 4 * kCycles * cycle; least <= most; least *= kLonger) {
    const std::int64_t count = least + (plan.microbatches - least) % (kCycles * cycle);
    if (count > most || count >= plan.microbatches) break;
    Plan shorter = plan;
    shorter.microbatches = static_cast<int>(count);
    Replay out;
    out.input = simulation_input(graph, topology, shorter, options);
    PeriodSearch watch;
    watch.cycle = static_cast<int>(cycle);
    auto simulated = simulate_and_watch(out.input, watch);
    if (std::holds_alternative<Infeasible>(simulated)) return std::nullopt;
    const int left = plan.microbatches - shorter.microbatches;
    if (!watch.period || left % watch.period->microbatches != 0) continue;
    const Period& period = *watch.period;
    shorter.microbatches += period.microbatches;
    if (!grows_by_period(out.input, period, simulation_input(graph, topology, shorter, options).lists)) continue;
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

/// The replay of a step that is too long for one as a whole, or why there is none.
std::variant<Replay, Infeasible> replay(const Graph& graph, const Topology& topology, const Plan& plan,
                                        const PredictOptions& options) {
  const std::int64_t stages = static_cast<std::int64_t>(plan.stages.size());
  const std::int64_t steps = step_window(plan).steps;
  const std::int64_t pairs = stages * steps * plan.microbatches;
  if (pairs <= options.most_whole) return replay_whole(graph, topology, plan, options);
  if (auto ends = replay_ends(graph, topology, plan, options)) return std::move(*ends);
  if (pairs > options.most_replayed) {
    const std::int64_t most = options.most_replayed / (stages * steps);
    throw std::invalid_argument(
        std::to_string(plan.microbatches) + " microbatches: the " + std::to_string(stages) + " stages of schedule \"" +
        plan.schedule + "\" were not found to repeat themselves, so that each microbatch has to be replayed" +
        (steps > 1 ? ", in " + std::to_string(steps) + " steps" : "") + "; at most " + std::to_string(most) +
        " of them are, as more take minutes and gigabytes");
  }
  return replay_whole(graph, topology, plan, options);
}

}  // namespace

std::variant<Prediction, Infeasible> predict(const Graph& graph, const Topology& topology, const Plan& plan,
                                             const PredictOptions& options) {
  validate(plan, graph, topology);
  auto replayed = replay(graph, topology, plan, options);
  if (auto* infeasible = std::get_if<Infeasible>(&replayed)) return std::move(*infeasible);
  auto& [input, timeline, shares, time, steps, reckoned] = std::get<Replay>(replayed);

  Prediction out;
  out.timeline = std::move(timeline);
  out.reckoned_microbatches = reckoned;
  out.iteration = time / steps;
  if (graph.microbatch_samples && out.iteration > Seconds(0)) {
    out.samples_per_s = static_cast<double>(*graph.microbatch_samples) * plan.microbatches / out.iteration.value;
  }
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    StagePrediction stage;
    stage.stage = static_cast<int>(s);
    stage.replicas = static_cast<int>(plan.stages[s].devices.size());
    const double parts = stage.replicas * steps;
    stage.compute = (shares[s].forward + shares[s].backward) / parts;
    const double microbatches = static_cast<double>(plan.microbatches) * steps;
    stage.forward = shares[s].forward / microbatches;
    stage.backward = shares[s].backward / microbatches;
    stage.update = shares[s].update / parts;
    stage.reduce = shares[s].reduce / parts;
    stage.exposed_transfer = shares[s].exposed_transfer / parts;
    out.stages.push_back(stage);
  }
  Seconds busy;
  for (StagePrediction& stage : out.stages) {
    // Chunks of one rank share its idle time; it is told with the first of them.
    Seconds used = stage.compute + stage.update + stage.reduce + stage.exposed_transfer;
    const int positions = static_cast<int>(plan.stages.size()) / plan.chunks;
    if (stage.stage < positions) {
      for (int s = stage.stage + positions; s < static_cast<int>(plan.stages.size()); s += positions) {
        const StagePrediction& chunk = out.stages[at(s)];
        used += chunk.compute + chunk.update + chunk.reduce + chunk.exposed_transfer;
      }
      stage.bubble = std::max(out.iteration - used, Seconds(0));
    }
    busy += (stage.compute + stage.update + stage.reduce) * stage.replicas;
    stage.in_flight = in_flight(input.lists[at(input.first_rank[at(stage.stage)])], stage.stage);
    stage.memory = stage_memory(graph, plan, stage.stage, stage.in_flight);
    stage.memory.rank = input.first_rank[at(stage.stage)];
    stage.fits = !topology.device.memory || stage.memory.total <= *topology.device.memory;
  }
  out.devices = device_count(topology);
  std::vector<bool> is_used(at(out.devices), false);
  std::vector<bool> has_work(at(out.timeline.ranks), false);
  for (const Span& span : out.timeline.spans) {
    if (span.action.microbatch >= 0) has_work[at(span.rank)] = true;
  }
  const std::vector<RankRole> roles = ranks(plan);
  for (std::size_t rank = 0; rank < roles.size(); ++rank) {
    is_used[at(roles[rank].device)] = true;
    if (!has_work[rank]) out.idle_devices.push_back(roles[rank].device);
  }
  std::sort(out.idle_devices.begin(), out.idle_devices.end());
  for (int device = 0; device < out.devices; ++device) {
    if (!is_used[at(device)]) out.unused_devices.push_back(device);
  }
  const double rank_time = out.iteration.value * out.timeline.ranks;
  out.bubble = rank_time > 0 ? std::max(0.0, 1 - busy.value / rank_time) : 0;
  for (const RankRole& role : roles) {
    RankMemory memory;
    memory.rank = rank_of(plan, role.stages.front(), role.replica);
    for (const int s : role.stages) {
      memory.total += out.stages[at(s)].memory.total;
      for (const auto& [part, bytes] : out.stages[at(s)].memory.parts) memory.parts[part] += bytes;
    }
    out.timeline.memory.push_back(std::move(memory));
  }
  return out;
}

}  // namespace stagecraft
