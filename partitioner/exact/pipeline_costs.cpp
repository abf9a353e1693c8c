#include "partitioner/exact/pipeline_costs.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <stdexcept>

#include "costmodel/index.h"
#include "costmodel/prediction/backward_parts.h"
#include "costmodel/prediction/collectives.h"
#include "costmodel/prediction/stage_costs.h"

namespace stagecraft::partitioner {
namespace {

/// A steady state is measured over a window of steps, at whose ends stages are not equally far ahead of each other.
constexpr double kOfWindow = 0.99;
/// Action lists are remembered, up to so many actions.
constexpr std::size_t kMostActions = 4'000'000;

Seconds larger(Seconds a, Seconds b) { return a < b ? b : a; }

ScheduleEntry entry_of(const PlanSettings& settings) {
  ScheduleEntry out = schedule_by_name(settings.schedule);
  if (settings.listed.empty()) return out;
  out.trains = false;
  for (const auto& list : settings.listed) {
    for (const Action& action : list) out.trains = out.trains || action.kind == ActionKind::Backward;
  }
  return out;
}

NodeCosts costs_of(const Layer& layer, const ScheduleEntry& schedule, const PlanSettings& settings, double closure,
                   std::int64_t optimizer_values) {
  NodeCosts out;
  out.forward = layer.forward.median * closure;
  out.least = out.forward;
  out.parameters = layer.parameter_bytes;
  out.untied = layer.parameter_bytes;
  for (const TiedParameter& tied : layer.tied) out.untied -= tied.bytes;
  out.kept = layer.parameter_bytes;
  if (!schedule.trains) return out;
  const bool listed = !settings.listed.empty();  // its lists may leave a backward out
  const BackwardParts parts = backward_parts(layer);
  const Seconds again = settings.recompute ? out.forward : Seconds(0);
  out.backward = layer.backward.median * closure + again;
  out.inputs = parts.inputs.median * closure;
  out.weights = parts.weights.median * closure;
  out.separable = parts.separable;
  if (layer.update) out.update = layer.update->median * closure;
  const Seconds split = std::min(layer.backward.median, parts.inputs.median + parts.weights.median) * closure;
  if (!listed) out.least += again + (schedule.splits_backward ? split : layer.backward.median * closure);
  if (!schedule.splits_backward && !listed) out.least_return = out.backward;
  out.kept += layer.parameter_bytes * (1 + optimizer_values);
  if (!settings.recompute) out.saved = layer.saved_bytes.value_or(activation_bytes(layer));
  out.kept += out.saved;
  return out;
}

}  // namespace

/// Sums over the nodes of a stage.
struct PipelineCosts::StageSums {
  Seconds forward, backward, weights, update, least;
  Bytes untied;
  Bytes parameters;
  Bytes tied;  ///< of `parameters`, what other stages hold too
  Bytes saved, kept;
  std::vector<int> nodes;  ///< ascending
};

/// Messages that go one way through one port of a device: out or in, of activations or gradients.
struct PipelineCosts::PortUse {
  Seconds first{1e100};  ///< when the first of them can begin
  Seconds sum;
};

PipelineCosts::PipelineCosts(const Graph& graph, const Topology& topology, const PlanSettings& settings)
    : graph_(graph), topology_(topology), settings_(settings), schedule_(entry_of(settings)) {
  devices_ = device_count(topology);
  waits_ = schedule_.weights == Weights::Flushed && settings.listed.empty();
  closure_ = closure_factor(graph);
  reduce_grows_ =
      std::ranges::all_of(topology.levels, [](const Level& level) { return level.link.all_reduce.empty(); });
  std::vector<int> node_of(graph.layers.size(), -1);
  for (const int layer : topological_order(graph)) {
    if (is_input(graph.layers[to_index(layer)])) continue;
    node_of[to_index(layer)] = to_int(layer_of_node_.size());
    layer_of_node_.push_back(layer);
    nodes_.push_back(
        costs_of(graph.layers[to_index(layer)], schedule_, settings, closure_, graph.optimizer_state_values));
  }
  for (int v = 0; v < to_int(nodes_.size()); ++v) {
    for (const TiedParameter& tied : graph.layers[to_index(layer_of_node_[to_index(v)])].tied) {
      tied_[tied.name].bytes = tied.bytes;
      tied_[tied.name].nodes.push_back(v);
    }
  }
  dag_.nodes = to_int(nodes_.size());
  read_.resize(nodes_.size());
  made_.resize(nodes_.size());
  loads_.resize(nodes_.size());
  std::map<std::pair<int, int>, std::set<int>> readers;  // of (producer, output; -1: all)
  std::vector<std::set<int>> loaded(nodes_.size());
  for (const Edge& edge : graph.edges) {
    const int to = node_of[to_index(edge.destination)];
    const Layer& source = graph.layers[to_index(edge.source)];
    if (is_input(source)) {
      if (source.forward.count == 0 || !loaded[to_index(to)].insert(edge.source).second) continue;
      loads_[to_index(to)].emplace_back(edge.source, source.forward.median);
      continue;
    }
    const int from = node_of[to_index(edge.source)];
    dag_.edges.emplace_back(from, to);
    readers[{from, edge.output.value_or(-1)}].insert(to);
  }
  for (const auto& [key, nodes] : readers) {
    const Layer& layer = graph.layers[to_index(layer_of_node_[to_index(key.first)])];
    CrossingValue value;
    value.producer = key.first;
    value.readers.assign(nodes.begin(), nodes.end());
    Bytes bytes = activation_bytes(layer);
    if (key.second >= 0) {
      bytes = layer.outputs[to_index(key.second)].bytes;
      value.gradient = layer.outputs[to_index(key.second)].requires_grad;
    }
    value.gradient = value.gradient && schedule_.trains;
    for (const Level& level : topology.levels) {
      value.forward.push_back(transfer_time(level.link, bytes));
      value.back.push_back(value.gradient ? value.forward.back() : Seconds(0));
    }
    if (topology.levels.size() == 1 && !topology.levels.front().link.processing) {
      const Seconds all = value.forward.front();
      value.port = all - std::min(all, topology.levels.front().link.latency);
      if (value.gradient) value.port_back = value.port;
    }
    value.least_forward = *std::min_element(value.forward.begin(), value.forward.end());
    value.least_back = *std::min_element(value.back.begin(), value.back.end());
    const int number = to_int(values_.size());
    made_[to_index(value.producer)].push_back(number);
    for (const int node : value.readers) read_[to_index(node)].push_back(number);
    values_.push_back(std::move(value));
  }
}

double PipelineCosts::share(int replicas) const {
  const int m = settings_.microbatches;
  if (schedule_.weights != Weights::Flushed) return kOfWindow * m / replicas;
  return (m + replicas - 1) / replicas;
}

/// The least of all ways to spread so many devices over the groups of this level and those above it, for a sum as
/// all_reduce_time has it: with k groups at most in one, a level takes 2 (k - 1) (latency + part / k / bandwidth), and
/// leaves 1 / k of its part to the levels above. n devices in groups of k are in ceil(n / k) groups or more.
PipelineCosts::Line PipelineCosts::least_reduce_from(std::size_t level, int replicas) const {
  if (replicas <= 1 || level == topology_.levels.size()) return {};
  const Level& own = topology_.levels[level];
  int above = 1;  // groups at most
  for (std::size_t l = level + 1; l < topology_.levels.size() && above < replicas; ++l)
    above *= std::min(topology_.levels[l].count, replicas);
  std::optional<Line> out;
  for (int k = 1; k <= std::min(own.count, replicas); ++k) {
    const int groups = (replicas + k - 1) / k;
    if (groups > above) continue;
    const Line rest = least_reduce_from(level + 1, groups);
    const Line line{2.0 * (k - 1) * own.link.latency.value + rest.fixed,
                    2.0 * (k - 1) / k / own.link.bandwidth.value + rest.per_byte / k};
    if (!out) out = line;
    out->fixed = std::min(out->fixed, line.fixed);
    out->per_byte = std::min(out->per_byte, line.per_byte);
  }
  return out.value_or(Line{});
}

Seconds PipelineCosts::least_reduce(Bytes bytes, int replicas) const {
  if (replicas < 2 || !waits_ || !schedule_.trains || settings_.gradient_bucket_bytes || bytes <= Bytes(0))
    return Seconds(0);
  if (topology_.levels.size() == 1) {
    const stagecraft::Link& link = topology_.levels.front().link;
    const auto curve = link.all_reduce.find(replicas);
    // A measured curve may fall: only the right bytes are a bound.
    if (curve != link.all_reduce.end() && !tied_.empty()) return Seconds(0);
    return curve != link.all_reduce.end() ? interpolate(curve->second, bytes)
                                          : ring_all_reduce_time(bytes, replicas, link);
  }
  if (!reduce_grows_) return Seconds(0);
  const auto [known, fresh] = reduces_.try_emplace(replicas);
  if (fresh) {
    known->second = least_reduce_from(0, replicas);
    // A level's part is rounded down to whole bytes.
    for (const Level& level : topology_.levels) known->second.fixed -= 2 / level.link.bandwidth.value;
  }
  return Seconds(std::max(0.0, known->second.fixed + known->second.per_byte * static_cast<double>(bytes.value)));
}

std::vector<PipelineCosts::StageSums> PipelineCosts::sums_of(const Split& split) const {
  std::vector<StageSums> out(split.replicas.size());
  std::vector<std::set<int>> loaded(split.replicas.size());
  for (int v = 0; v < dag_.nodes; ++v) {
    const int s = split.stage_of_node[to_index(v)];
    StageSums& stage = out[to_index(s)];
    const NodeCosts& node = nodes_[to_index(v)];
    stage.forward += node.forward;
    stage.backward += node.backward;
    stage.update += node.update;
    stage.least += node.least;
    stage.untied += node.untied;
    stage.parameters += node.parameters;
    stage.saved += node.saved;
    stage.kept += node.kept;
    stage.nodes.push_back(v);
    for (const auto& [input, time] : loads_[to_index(v)]) {
      if (loaded[to_index(s)].insert(input).second) stage.forward += time;
    }
  }
  return out;
}

/// As split_backward_times: what gradients of received values pass through is split.
void PipelineCosts::split_backward(const Split& split, std::vector<StageSums>& sums) const {
  for (StageSums& stage : sums) {
    const Seconds whole = stage.backward;
    if (settings_.recompute && settings_.recompute_every > 0) {  // each segment is split by itself
      stage.backward = Seconds(0);
      continue;
    }
    Seconds inputs;
    Seconds weights;
    bool leads_any = false;
    bool separable = true;
    std::map<int, bool> led;
    for (const int v : stage.nodes) {
      const NodeCosts& node = nodes_[to_index(v)];
      const bool out = std::ranges::any_of(read_[to_index(v)], [&](int number) {
        const CrossingValue& value = values_[to_index(number)];
        if (!value.gradient) return false;
        const bool inside = split.stage_of_node[to_index(value.producer)] == split.stage_of_node[to_index(v)];
        return !inside || led[value.producer];
      });
      led[v] = out;
      leads_any = leads_any || out;
      separable = separable && node.separable;
      const Seconds again = settings_.recompute ? node.forward : Seconds(0);
      inputs += again + (out ? node.inputs : Seconds(0));
      weights += out ? node.weights : node.backward - again;
    }
    stage.backward = leads_any && separable ? inputs : whole;
    stage.weights = leads_any && separable ? weights : Seconds(0);
  }
}

std::vector<PipelineCosts::Link> PipelineCosts::links_of(const Split& split) const {
  std::map<std::pair<int, int>, Link> links;
  const std::size_t levels = topology_.levels.size();
  std::set<int> stages;
  for (const CrossingValue& value : values_) {
    int from = split.stage_of_node[to_index(value.producer)];
    stages.clear();
    for (const int reader : value.readers) stages.insert(split.stage_of_node[to_index(reader)]);
    for (const int to : stages) {
      if (to == from) continue;
      Link& link = links[{from, to}];
      link.from = from;
      link.to = to;
      link.gradient = link.gradient || value.gradient;
      link.forward.resize(levels);
      link.back.resize(levels);
      for (std::size_t level = 0; level < levels; ++level) {
        link.forward[level] += value.forward[level];
        link.back[level] += value.back[level];
      }
      link.port += value.port;
      link.port_back += value.port_back;
      from = to;
    }
  }
  std::vector<Link> out;
  for (auto& [stages_of, link] : links) out.push_back(std::move(link));
  return out;
}

const std::vector<std::vector<Action>>& PipelineCosts::lists_of(const Split& split) const {
  std::vector<int> key = split.replicas;
  key.push_back(split.chunks);
  const auto known = lists_.find(key);
  if (known != lists_.end()) return known->second;
  if (actions_ > kMostActions) {
    lists_.clear();
    actions_ = 0;
  }
  PipelineShape shape;
  shape.stages = to_int(split.replicas.size());
  shape.microbatches = settings_.microbatches;
  shape.chunks = split.chunks;
  shape.replicas = split.replicas;
  shape.warmups = warmup_counts(split.replicas);
  std::vector<std::vector<Action>> lists;
  for (int position = 0; position < shape.stages / shape.chunks; ++position) {
    for (int replica = 0; replica < split.replicas[to_index(position)]; ++replica)
      actions_ += lists.emplace_back(schedule_.compute_actions(shape, position, replica)).size();
  }
  return lists_.emplace(std::move(key), std::move(lists)).first->second;
}

Seconds PipelineCosts::busiest(const Split& split, const std::vector<StageSums>& sums) const {
  const std::size_t positions = sums.size() / to_index(split.chunks);
  Seconds out;
  for (std::size_t p = 0; p < positions; ++p) {
    Seconds load;
    for (std::size_t s = p; s < sums.size(); s += positions) load += sums[s].least;
    out = larger(out, load * share(split.replicas[p]));
  }
  return out;
}

/// Time for the stage's replicas to sum its gradients once they all have them; `devices` are theirs.
Seconds PipelineCosts::reduce_of(const Split& split, const StageSums& stage, int number, int first_device,
                                 std::vector<int>& devices) const {
  const int replicas = split.replicas[to_index(number)];
  if (replicas < 2) return Seconds(0);
  devices.resize(to_index(replicas));
  std::iota(devices.begin(), devices.end(), first_device);
  if (!settings_.gradient_bucket_bytes) return all_reduce_time(stage.parameters - stage.tied, devices, topology_);
  // Buckets fill from the last layer to the first while the backward goes on.
  Seconds left;
  for (const int v : stage.nodes) {
    if (!schedule_.splits_backward)
      left += graph_.layers[to_index(layer_of_node_[to_index(v)])].backward.median * closure_;
  }
  Seconds end;
  Seconds at = Seconds(0) - left;  // relative to the end of the backward
  Bytes bytes;
  for (std::size_t i = stage.nodes.size(); i-- > 0;) {
    const int v = stage.nodes[i];
    left -= graph_.layers[to_index(layer_of_node_[to_index(v)])].backward.median * closure_;
    bytes += nodes_[to_index(v)].untied;
    if (bytes == Bytes(0) || (bytes < *settings_.gradient_bucket_bytes && i > 0)) continue;
    at = larger(at, Seconds(0) - larger(left, Seconds(0))) + all_reduce_time(bytes, devices, topology_);
    end = larger(end, at);
    bytes = Bytes(0);
  }
  return end;
}

std::optional<Seconds> PipelineCosts::lower_bound(const Split& split) const {
  const int stages = to_int(split.replicas.size());
  if (stages % split.chunks != 0) return std::nullopt;
  {
    PipelineShape shape;
    shape.stages = stages;
    shape.microbatches = settings_.microbatches;
    shape.chunks = split.chunks;
    shape.replicas = split.replicas;
    shape.warmups = warmup_counts(split.replicas);
    const bool replicated = std::ranges::any_of(split.replicas, [](int r) { return r > 1; });
    if ((replicated && !schedule_.replicated) || (split.chunks > 1 && !schedule_.chunked)) return std::nullopt;
    if (schedule_.check || schedule_.weights == Weights::StepBefore) {
      try {
        check_shape(schedule_, shape);
      } catch (const std::invalid_argument&) { return std::nullopt; }
    }
  }
  int ranks = 0;
  for (int p = 0; p < stages / split.chunks; ++p) ranks += split.replicas[to_index(p)];
  if (ranks > devices_) return std::nullopt;
  std::vector<StageSums> sums = sums_of(split);
  if (!waits_) return busiest(split, sums);
  if (schedule_.splits_backward) split_backward(split, sums);

  const int m = settings_.microbatches;
  const int positions = stages / split.chunks;
  const std::vector<Link> links = links_of(split);
  std::vector<std::vector<int>> incoming(to_index(stages));
  std::vector<std::vector<int>> outgoing(to_index(stages));
  for (int l = 0; l < to_int(links.size()); ++l) {
    incoming[to_index(links[to_index(l)].to)].push_back(l);
    outgoing[to_index(links[to_index(l)].from)].push_back(l);
  }
  std::vector<int> first_rank(to_index(stages));
  int next_rank = 0;
  for (int p = 0; p < positions; ++p) {
    for (int s = p; s < stages; s += positions) first_rank[to_index(s)] = next_rank;
    next_rank += split.replicas[to_index(p)];
  }
  const auto runner = [&](int stage, int microbatch) {
    return first_rank[to_index(stage)] + replica_of(microbatch, split.replicas[to_index(stage)]);
  };
  // When a microbatch has arrived over a link, and when the lane of its two ranks is free again.
  constexpr Seconds kNever(-1);
  const std::size_t per = to_index(m);
  std::vector<Seconds> arrived[2];
  std::vector<Seconds> lane_free[2];
  std::vector<int> cycle;
  for (const Link& link : links)
    cycle.push_back(std::min(m, std::lcm(split.replicas[to_index(link.from)], split.replicas[to_index(link.to)])));
  for (const int way : {0, 1}) {
    arrived[way].assign(links.size() * per, kNever);
    lane_free[way].assign(links.size() * per, Seconds(0));
  }
  std::vector<Seconds> done[2];  // forward and backward of (stage, microbatch)
  for (const int way : {0, 1}) done[way].assign(to_index(stages) * per, kNever);
  const auto& lists = lists_of(split);
  std::vector<std::size_t> next(lists.size(), 0);
  std::vector<Seconds> now(lists.size());
  // The time at which the action can begin at the earliest; kNever: not known yet.
  const auto ready = [&](const Action& action, Seconds at) {
    const std::size_t slot = to_index(action.stage) * per + to_index(action.microbatch);
    if (action.kind == ActionKind::WeightGradient) return at;
    const bool back = action.kind == ActionKind::Backward;
    if (back && done[0][slot] < Seconds(0)) return kNever;
    for (const int l : back ? outgoing[to_index(action.stage)] : incoming[to_index(action.stage)]) {
      if (back && !links[to_index(l)].gradient) continue;
      const Seconds come = arrived[back ? 1 : 0][to_index(l) * per + to_index(action.microbatch)];
      if (come < Seconds(0)) return kNever;
      at = larger(at, come);
    }
    return at;
  };
  std::vector<PortUse> ports(4 * lists.size());  // by rank: activations out and in, gradients out and in
  const auto send = [&](int l, bool back, int microbatch, Seconds at) {
    const Link& link = links[to_index(l)];
    const int a = runner(link.from, microbatch);
    const int b = runner(link.to, microbatch);
    for (const bool in : {false, true}) {
      PortUse& use = ports[4 * to_index(in == back ? a : b) + (back ? 2 : 0) + (in ? 1 : 0)];
      use.first = std::min(use.first, at);
      use.sum += back ? link.port_back : link.port;
    }
    Seconds& come = arrived[back ? 1 : 0][to_index(l) * per + to_index(microbatch)];
    come = at;
    if (a == b) return;
    const auto level = to_index(joining_level(topology_, a, b));
    Seconds& lane = lane_free[back ? 1 : 0][to_index(l) * per + to_index(microbatch % cycle[to_index(l)])];
    come = larger(at, lane) + (back ? link.back : link.forward)[level];
    lane = come;
  };
  bool moved = true;
  while (moved) {
    moved = false;
    for (std::size_t rank = 0; rank < lists.size(); ++rank) {
      for (; next[rank] < lists[rank].size(); ++next[rank]) {
        const Action& action = lists[rank][next[rank]];
        const Seconds start = ready(action, now[rank]);
        if (start < Seconds(0)) break;
        moved = true;
        const StageSums& stage = sums[to_index(action.stage)];
        const bool back = action.kind == ActionKind::Backward;
        now[rank] = start + (action.kind == ActionKind::Forward ? stage.forward
                             : back                             ? stage.backward
                                                                : stage.weights);
        if (action.kind == ActionKind::WeightGradient) continue;
        done[back ? 1 : 0][to_index(action.stage) * per + to_index(action.microbatch)] = now[rank];
        for (const int l : back ? incoming[to_index(action.stage)] : outgoing[to_index(action.stage)]) {
          if (!back || links[to_index(l)].gradient) send(l, back, action.microbatch, now[rank]);
        }
      }
    }
  }
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    if (next[rank] < lists[rank].size()) return std::nullopt;  // a deadlock
  }
  Seconds port;
  if (split.chunks == 1 && topology_.levels.size() == 1) {
    std::vector<int> stage_of_rank;
    for (int s = 0; s < stages; ++s)
      stage_of_rank.insert(stage_of_rank.end(), to_index(split.replicas[to_index(s)]), s);
    port = busiest_port(sums, links, stage_of_rank, ports);
  }
  std::vector<Seconds> ends(to_index(positions));
  for (int p = 0; p < positions; ++p) {
    for (int r = 0; r < split.replicas[to_index(p)]; ++r)
      ends[to_index(p)] = larger(ends[to_index(p)], now[to_index(first_rank[to_index(p)] + r)]);
  }
  if (schedule_.trains) add_reduces(split, sums, first_rank, ends);
  return larger(port, larger(*std::max_element(ends.begin(), ends.end()), busiest(split, sums)));
}

/// What passes through a port does so one after the other, or shares it; then the last of it has a way to go.
Seconds PipelineCosts::busiest_port(const std::vector<StageSums>& sums, const std::vector<Link>& links,
                                    const std::vector<int>& stage_of_rank, const std::vector<PortUse>& ports) const {
  const std::size_t stages = sums.size();
  const auto backward = [&](std::size_t s) {
    return schedule_.trains && !schedule_.splits_backward ? sums[s].backward : Seconds(0);
  };
  std::vector<Seconds> trip(stages);   // from a forward to the end of the pipeline and back
  std::vector<Seconds> after(stages);  // what follows a backward
  for (std::size_t s = stages; s-- > 0;) {
    for (const Link& link : links) {
      if (to_index(link.from) != s || (!link.gradient && schedule_.trains && !schedule_.splits_backward)) continue;
      Seconds there = link.forward.front() + trip[to_index(link.to)];
      if (!schedule_.splits_backward) there += link.back.front();
      trip[s] = larger(trip[s], there);
    }
    trip[s] += sums[s].forward + backward(s);
  }
  for (std::size_t s = 0; s < stages; ++s) {
    for (const Link& link : links) {
      if (to_index(link.to) != s || !link.gradient || schedule_.splits_backward) continue;
      const auto from = to_index(link.from);
      after[s] = larger(after[s], link.back.front() + backward(from) + after[from]);
    }
  }
  // Of the stages at the other end, the one from which the least follows.
  std::vector<std::optional<Seconds>> follows(2 * stages);
  for (const Link& link : links) {
    const auto least = [](std::optional<Seconds>& at, Seconds time) { at = std::min(at.value_or(time), time); };
    least(follows[2 * to_index(link.from)], trip[to_index(link.to)] + after[to_index(link.to)]);
    least(follows[2 * to_index(link.to) + 1], backward(to_index(link.from)) + after[to_index(link.from)]);
  }
  Seconds out;
  for (std::size_t rank = 0; rank < stage_of_rank.size(); ++rank) {
    const auto s = to_index(stage_of_rank[rank]);
    const Seconds ways[] = {follows[2 * s].value_or(Seconds(0)), trip[s] + after[s],
                            follows[2 * s + 1].value_or(Seconds(0)), backward(s) + after[s]};
    for (std::size_t i = 0; i < 4; ++i) {
      const PortUse& use = ports[4 * rank + i];
      if (use.sum > Seconds(0)) out = larger(out, use.first + use.sum + ways[i]);
    }
  }
  return out;
}

/// Adds sums of gradients and updates to the times at which the positions' last computations end.
void PipelineCosts::add_reduces(const Split& split, std::vector<StageSums>& sums, const std::vector<int>& first_rank,
                                std::vector<Seconds>& ends) const {
  const int stages = to_int(sums.size());
  const int positions = to_int(ends.size());
  std::vector<int> group(to_index(stages));  // stages that reduce together have the same number
  std::iota(group.begin(), group.end(), 0);
  std::vector<Seconds> sharing(to_index(stages));  // sums of each stage's shared parameters, one after the other
  for (const auto& [name, holders] : tied_) {
    std::set<int> at;
    for (const int v : holders.nodes) at.insert(split.stage_of_node[to_index(v)]);
    if (at.size() < 2) continue;
    std::set<int> ranks;
    for (const int s : at) {
      for (int r = 0; r < split.replicas[to_index(s)]; ++r) ranks.insert(first_rank[to_index(s)] + r);
    }
    const Seconds time =
        holders.bytes > Bytes(0) ? all_reduce_time(holders.bytes, {ranks.begin(), ranks.end()}, topology_) : Seconds(0);
    for (const int s : at) {
      sums[to_index(s)].tied += holders.bytes;
      sharing[to_index(s)] += time;
      const int from = group[to_index(s)];
      const int to = group[to_index(*at.begin())];
      std::replace(group.begin(), group.end(), std::max(from, to), std::min(from, to));
    }
  }
  std::vector<Seconds> after = ends;
  std::vector<int> devices;
  for (int g = 0; g < stages; ++g) {
    if (group[to_index(g)] != g) continue;
    Seconds start;
    Seconds end;  // of sums over replicas alone; buckets do not wait for the rest of the group
    for (int s = g; s < stages; ++s) {
      if (group[to_index(s)] == g) start = larger(start, ends[to_index(s % positions)]);
    }
    end = start;
    for (int s = g; s < stages; ++s) {
      if (group[to_index(s)] != g) continue;
      const int first = first_rank[to_index(s)];
      const Seconds from = settings_.gradient_bucket_bytes ? ends[to_index(s % positions)] : start;
      if (split.chunks == 1) end = larger(end, from + reduce_of(split, sums[to_index(s)], s, first, devices));
    }
    Seconds tied;
    for (int s = g; s < stages; ++s) {
      if (group[to_index(s)] == g) tied = larger(tied, sharing[to_index(s)]);
    }
    for (int s = g; s < stages; ++s) {
      if (group[to_index(s)] == g) after[to_index(s % positions)] = larger(after[to_index(s % positions)], end + tied);
    }
  }
  ends = std::move(after);
  for (int s = 0; s < stages; ++s) ends[to_index(s % positions)] += sums[to_index(s)].update;
}

Bytes PipelineCosts::least_memory(const Split& split) const {
  const std::vector<StageSums> sums = sums_of(split);
  const std::size_t positions = sums.size() / to_index(split.chunks);
  PipelineShape shape;
  shape.stages = to_int(sums.size());
  shape.microbatches = settings_.microbatches;
  shape.chunks = split.chunks;
  shape.replicas = split.replicas;
  shape.warmups = warmup_counts(split.replicas);
  Bytes most;
  for (std::size_t p = 0; p < positions; ++p) {
    Bytes bytes;
    for (std::size_t s = p; s < sums.size(); s += positions) {
      // The schedules' bound is what a stage without chunks reaches.
      const bool is_reached = waits_ && split.chunks == 1 && !schedule_.splits_backward;
      const int held = is_reached ? schedule_.in_flight_bound(shape, to_int(s)) : 1;
      bytes += sums[s].kept + (held - 1) * sums[s].saved;
    }
    most = std::max(most, bytes);
  }
  return most;
}

Partition PipelineCosts::partition(const Split& split) const {
  Partition out;
  out.stage_of_layer.assign(graph_.layers.size(), -1);
  for (int v = 0; v < dag_.nodes; ++v)
    out.stage_of_layer[to_index(layer_of_node_[to_index(v)])] = split.stage_of_node[to_index(v)];
  out.replicas = split.replicas;
  return out;
}

Split PipelineCosts::split_of(const Partition& partition, int chunks) const {
  Split out;
  for (const int layer : layer_of_node_) out.stage_of_node.push_back(partition.stage_of_layer[to_index(layer)]);
  out.replicas = partition.replicas;
  out.chunks = chunks;
  return out;
}

}  // namespace stagecraft::partitioner
